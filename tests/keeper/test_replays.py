"""Copies of signed messages are known for as long as promised, in bounded memory."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from jupyter_cmdop.keeper.replays import SeenSignatures


def signature(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).hexdigest().encode()


@given(st.lists(st.integers(0, 30), max_size=200))
def test_copy_within_half_the_window_is_known(numbers: list[int]) -> None:
    seen = SeenSignatures(16)
    came: list[int] = []
    for number in numbers:
        is_new = seen.is_new(signature(number))
        if number not in came:
            assert is_new
        elif len(set(came[::-1][: came[::-1].index(number)])) < 8:
            assert not is_new
        came.append(number)


def test_memory_is_bounded() -> None:
    seen = SeenSignatures(16)
    assert all(seen.is_new(signature(number)) for number in range(1000))
    assert len(seen._newer) + len(seen._older) <= 16


def test_without_a_key_there_is_no_signature() -> None:
    seen = SeenSignatures(16)
    assert seen.is_new(b"")
