"""What the shell offers after Tab. A completer is silent when it cannot know: an error would end up in the prompt."""

from __future__ import annotations

import argparse
from typing import Any


def session_names(prefix: str, **_: Any) -> list[str]:
    """Live sessions, from their pointers alone: asking the keepers would take too long between two keystrokes."""
    from jupyter_cmdop.client.errors import ClientError
    from jupyter_cmdop.client.registry import Registry, facts

    try:
        pointers = Registry.of_user().list_pointers()
    except ClientError:
        return []
    folded = prefix.casefold()
    return [
        pointer.name
        for pointer in pointers
        if pointer.name.casefold().startswith(folded) and facts(pointer).state != "lost"
    ]


def kernel_specs(prefix: str, **_: Any) -> list[str]:
    from jupyter_client.kernelspec import KernelSpecManager

    return sorted(name for name in KernelSpecManager().find_kernel_specs() if name.startswith(prefix))


def grants(prefix: str, *, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Grant ids and the actors who hold them."""
    from jupyter_cmdop.client.errors import ClientError
    from jupyter_cmdop.client.session import Session

    try:
        with Session.open(parsed_args.name, client="jupyter cmdop completion") as session:
            items = session.grants()
    except ClientError:
        return []
    names = {item.grant for item in items} | {item.actor for item in items}
    return sorted(name for name in names if name.startswith(prefix))


def operations(prefix: str, *, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """What is running and what waits."""
    from jupyter_cmdop.client.errors import ClientError
    from jupyter_cmdop.client.session import Session

    try:
        with Session.open(parsed_args.name, client="jupyter cmdop completion") as session:
            status = session.status()
    except ClientError:
        return []
    known = [item.operation for item in status.running] + [item.operation for item in status.queue]
    return [operation for operation in known if operation.startswith(prefix)]
