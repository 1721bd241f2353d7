"""The rows of the table: each a generator of figures, which can be measured alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.figures import Figure
from bench.rows import (
    commands,
    execute,
    floods,
    floor,
    isolation,
    large,
    price,
    returning,
    sessions,
    stalled,
    viewers,
)
from bench.servers import Bench


@dataclass(frozen=True, slots=True)
class Row:
    about: str
    run: Callable[[Bench], Iterator[Figure]]


ROWS = {
    "execute-zmq": Row("Execute over a session's kernel-protocol endpoint", execute.over_zmq),
    "execute-websocket": Row("Execute over the websocket of a Jupyter server", execute.over_websocket),
    "lines-ipykernel": Row("20,000 flushed lines of ipykernel", floods.lines_of_ipykernel),
    "lines-null": Row(
        "20,000 lines and 6,000 buffers of 32 KB of a kernel that does nothing else", floods.fast_kernel
    ),
    "large": Row("One message of 64 MB", large.large),
    "viewers": Row("64 websockets that watch one kernel", viewers.viewers),
    "stalled": Row("A viewer that does not read during 200 MB", stalled.stalled),
    "returning": Row("Clients that come back, or late, around 500 messages", returning.returning),
    "isolation": Row("A session while another one floods", isolation.isolation),
    "sessions": Row("New sessions, and idle ones", sessions.sessions),
    "server-cpu": Row("Processor time of the Jupyter server a message", price.server_cpu),
    "extension": Row("What the extension costs a Jupyter server at its start", price.extension),
    "floor": Row("The price of arbitration and attribution", floor.floor),
    "commands": Row("Commands that a person types", commands.commands),
}
