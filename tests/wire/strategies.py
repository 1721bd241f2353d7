"""Hypothesis strategies and probes that the tests of the codecs share."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import settings
from hypothesis import strategies as st

# No example database: a test leaves nothing behind.
FEW = settings(max_examples=12, deadline=None, database=None)
MANY = settings(max_examples=40, deadline=None, database=None)

ASCII = st.text(st.characters(min_codepoint=1, max_codepoint=126), max_size=8)


def json_values(text: st.SearchStrategy[str]) -> st.SearchStrategy[object]:
    """Three levels at most: `st.recursive` costs several times as much and finds nothing more here."""
    floats = st.floats(allow_nan=False, allow_infinity=False)
    value = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | floats | text
    for _ in range(2):
        value = value | st.lists(value, max_size=2) | st.dictionaries(text, value, max_size=2)
    return value


TEXT = st.text(max_size=8)


def json_objects(text: st.SearchStrategy[str] = TEXT) -> st.SearchStrategy[dict[str, object]]:
    return st.dictionaries(text, json_values(text), max_size=3)


buffers = st.lists(st.binary(max_size=20), max_size=3)
identities = st.lists(st.binary(min_size=1, max_size=8).filter(lambda raw: raw != b"<IDS|MSG>"), max_size=4)
channels = st.sampled_from(["shell", "control", "stdin", "iopub"])

# Numbers at which a careless decoder allocates, loops or wraps.
HOSTILE_NUMBERS = (
    0,
    1,
    2**8,
    2**16,
    2**20,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**63 - 1,
    2**63,
    2**64 - 8,
    2**64 - 1,
)


@st.composite
def damaged(draw: st.DrawFn, valid: st.SearchStrategy[bytes], *, word: int, order: str) -> bytes:
    """A valid frame with up to four injuries: a byte, a cut, an insertion, or a word that holds a hostile number."""
    frame = bytearray(draw(valid))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(frame)))
        match draw(st.sampled_from(["byte", "cut", "insert", "word", "remove"])):
            case "byte":
                frame[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "cut":
                del frame[at:]
            case "insert":
                frame[at:at] = draw(st.binary(max_size=9))
            case "remove":
                del frame[at : at + draw(st.integers(1, 9))]
            case "word":
                number = draw(st.sampled_from(HOSTILE_NUMBERS)) % 2 ** (8 * word)
                at -= at % word
                frame[at : at + word] = number.to_bytes(word, order)
    return bytes(frame)


@contextmanager
def allocates_at_most(limit_bytes: int) -> Iterator[None]:
    """Fail when more than `limit_bytes` are allocated inside, at any moment."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before <= limit_bytes, f"{peak - before} bytes were allocated"
