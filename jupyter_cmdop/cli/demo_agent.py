"""The demo's agent: a plain jupyter_client program that knows nothing of this package."""

from __future__ import annotations

import sys
import time
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient

PATIENCE_SECONDS = 30.0
CLEAN = "clean = [r for r in readings if r is not None]\nprint(len(clean), 'of', len(readings), 'readings are usable')"
STUCK = "import time\nwhile calibration is None:   # nobody has told the agent\n    time.sleep(0.05)"
NEXT = "mean = sum(clean) / len(clean) * calibration"
AGAIN = (
    "clean = [r for r in readings if r is not None]\n"
    "mean = sum(clean) / len(clean) * calibration\n"
    "print(f'mean of {len(clean)} readings: {mean:.2f}')"
)


def say(text: str) -> None:
    print(text, flush=True)


def show(message: dict[str, Any]) -> None:
    if message["msg_type"] == "stream":
        say("  " + message["content"]["text"].rstrip())


def reply_to(client: BlockingKernelClient, msg_id: str) -> dict[str, Any]:
    """The content of the reply to one of our requests, whichever comes first."""
    while True:
        reply = client.get_shell_msg(timeout=PATIENCE_SECONDS)
        if reply["parent_header"].get("msg_id") == msg_id:
            content: dict[str, Any] = reply["content"]
            return content


def main() -> int:
    """Go on from what a person has defined, get stuck, and go on again when helped."""
    client = BlockingKernelClient()
    client.load_connection_file(sys.argv[1])
    client.start_channels()
    client.wait_for_ready(timeout=PATIENCE_SECONDS)
    say("connected; I go on from `readings`")
    client.execute_interactive(CLEAN, timeout=PATIENCE_SECONDS, output_hook=show)
    say("now the calibration, and then the mean: two cells at once")
    stuck, following = client.execute(STUCK), client.execute(NEXT)
    content = reply_to(client, stuck)
    say(f"my cell ended: {content.get('ename')}")
    content = reply_to(client, following)
    say(f"my next cell did not run: {content.get('evalue')}")
    say("I wait until I drive again")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        content = client.execute_interactive(AGAIN, timeout=PATIENCE_SECONDS, output_hook=show)["content"]
        if content["status"] == "ok":
            say("done")
            client.stop_channels()
            return 0
        time.sleep(0.2)
    say(f"I gave up: {content.get('evalue')}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
