"""`python -m tests.simulation.replay SEED…`: run single seeds, and tell what happens in each."""

from __future__ import annotations

import sys

from tests.simulation.world import simulate, small_limits


def main(seeds: list[str]) -> None:
    with small_limits():
        for seed in seeds:
            simulation = simulate(int(seed))
            for when, what in simulation.story:
                print(f"{when:9.2f}  {what}")
            rows = len(simulation.disk.rows)
            print(
                f"seed {seed}: {simulation.events} events, {simulation.handled} handled, {rows} entries: holds"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
