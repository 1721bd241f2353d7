"""The name of a session that a notebook opens: `a/Untitled.ipynb` is `Untitled`, the next one `Untitled-2`."""

from __future__ import annotations

import os
import re
import secrets
import unicodedata
from collections.abc import Iterable, Iterator

NAME_CHARACTERS = 64
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)


def base_name(path: str | None, kernel: str) -> str:
    """What to call the session of the document at `path`, or of no document."""
    if path:
        stem = os.path.basename(path).removesuffix(".ipynb")
        # Letters lose their accents; what has no Latin letter at all becomes a hyphen.
        plain = "".join(c for c in unicodedata.normalize("NFKD", stem) if not unicodedata.combining(c))
        cleaned = _NOT_IN_A_NAME.sub("-", plain).strip("-").lstrip("._-")[:NAME_CHARACTERS]
        if cleaned:
            return cleaned
    spec = _NOT_IN_A_NAME.sub("-", kernel).lstrip("._-")[: NAME_CHARACTERS - 5] or "kernel"
    return f"{spec}-{secrets.token_hex(2)}"


def free_names(base: str, taken: Iterable[str]) -> Iterator[str]:
    """`base` and its numbered successors, but for those that are taken; names differ by more than case."""
    known = {name.casefold() for name in taken}
    number = 1
    while True:
        suffix = "" if number == 1 else f"-{number}"
        name = base[: NAME_CHARACTERS - len(suffix)] + suffix
        if name.casefold() not in known:
            yield name
        number += 1
