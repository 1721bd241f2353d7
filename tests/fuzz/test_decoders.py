"""No decoder lets an exception escape, takes long, or holds much more than it was given.

The same targets run for as long as one likes, led by coverage: `python tests/fuzz/run.py TARGET --seconds 60`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import targets
from tests.fuzz.targets import TARGETS, Target
from tests.wire.strategies import HOSTILE_NUMBERS

CORPUS = Path(__file__).parent / "corpus"
CORPUS_FILES = sorted(path for path in CORPUS.glob("*/*") if path.is_file())
SLACK = 10
"""What a loaded machine may add to the processor time of a call, as a factor."""
EXAMPLES = settings(max_examples=60, deadline=None, database=None)
FEW_EXAMPLES = settings(max_examples=25, deadline=None, database=None)
PIECES = (
    b"[" * 200,
    b'{"a":' * 150,
    b'"' * 60,
    b"\\u0063mdop",
    b'"cmdop":',
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"NaN",
    b"1e999",
    b"9" * 400,
    b"-9" + b"9" * 30,
    b"null",
    b"\0",
    b"9999-12-31T23:59:59+00:00|0001-01-01|",
)


@pytest.fixture(scope="module", autouse=True)
def _cleared() -> Iterator[None]:
    yield
    targets.place.clear()


def injured(samples: list[bytes]) -> st.SearchStrategy[bytes]:
    """A valid input with a few injuries, and now and then something else altogether."""

    @st.composite
    def injure(draw: st.DrawFn) -> bytes:
        data = bytearray(draw(st.sampled_from(samples)))
        for _ in range(draw(st.integers(0, 4))):
            at = draw(st.integers(0, len(data)))
            match draw(st.integers(0, 5)):
                case 0:
                    data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
                case 1:
                    del data[at : at + draw(st.integers(1, 20))]
                case 2:
                    data[at:at] = draw(st.sampled_from(PIECES))
                case 3:
                    number = draw(st.sampled_from(HOSTILE_NUMBERS))
                    data[at : at + 8] = struct.pack(draw(st.sampled_from((">Q", "<Q"))), number)
                case 4:
                    del data[at:]
                case _:
                    data[at:at] = data[: draw(st.integers(0, 64))]
        return bytes(data)

    return injure() | st.binary(max_size=200)


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_escapes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = TARGETS[name]
    samples = chosen.samples()
    slowest = 0.0
    for sample in samples:
        chosen.run(sample)

    @(FEW_EXAMPLES if chosen.is_slow else EXAMPLES)
    @given(injured(samples))
    def check(data: bytes) -> None:
        nonlocal slowest
        slowest = max(slowest, _checked(chosen, data))

    check()
    print(f"{name}: slowest {slowest * 1000:.2f} ms")


def _checked(chosen: Target, data: bytes) -> float:
    """Run it within its limits; returns the processor time."""
    took = targets.seconds_of(chosen, data)
    assert took < targets.CPU_SECONDS * SLACK, f"{took * 1000:.0f} ms"
    return took


@pytest.mark.parametrize("name", TARGETS)
def test_memory_is_bounded_by_the_input(name: str) -> None:
    """Each sample, whole and injured in the ways that make a careless parser allocate."""
    chosen = TARGETS[name]
    for sample in chosen.samples():
        for data in (
            sample,
            sample + sample[:40] * 50,
            *(sample[: len(sample) // 2] + piece * 8 for piece in PIECES),
        ):
            chosen.run(data)
            peak = targets.peak_of(chosen, data)
            assert peak <= targets.bound_of(chosen, data), f"{peak} bytes for {len(data)}: {data[:80]!r}"


@pytest.mark.parametrize("path", CORPUS_FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_corpus(path: Path) -> None:
    """What has ever been found, and what reaches far into a decoder."""
    _checked(TARGETS[path.parent.name], path.read_bytes())


def test_the_corpus_is_of_targets_that_exist() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(TARGETS)
    assert sum(path.stat().st_size for path in CORPUS_FILES) < 300_000
