"""Watch a session from somewhere else: one line for each thing that happens, each once, over any number of cuts.

    jupyter cmdop invite NAME --as wall-display --kind device --role observer --grant-file-out wall.grant
    python monitor.py --url http://localhost:8888/ --grant-file wall.grant

Exit codes: 1 the session has ended, 3 the grant was taken back or has expired (or the session ended while the monitor
was cut off: a grant ends with its session). Others see the monitor among those who are there, by the name of its grant.
It needs websockets, and nothing of jupyter_cmdop.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
import time
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import connect

SESSION_ENDED, GRANT_ENDED = 1, 3
CLOSE_ENDED, CLOSE_CREDENTIAL = 4000, 4403
PAUSE_SECONDS = 1.0


def read_grant(path: str) -> dict[str, str]:
    """The grant in a file that nobody else may read."""
    with open(path, encoding="utf-8") as file:
        if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            sys.exit(f"{path} is open to other users: chmod 600 {path}, and ask for a new grant")
        return dict(json.load(file)["cmdop"])


def line(record: dict[str, Any]) -> str:
    """A record for a person: when, what, who, and what is particular to it."""
    data = record.get("data") or {}
    telling = ("preview", "outcome", "reason", "text", "message", "to", "prompt", "how")
    parts = [record.get("time"), record["kind"], record["type"], record.get("actor"), record.get("operation")]
    parts += [f"{key}={data[key]!r}" for key in telling if data.get(key) not in (None, "")]
    return " ".join(str(part) for part in parts if part)


def follow(url: str, token: str, cursor: str | None) -> int:
    """Print records until the session or the grant has ended; which of them."""
    headers = {"Authorization": f"token {token}"}
    while True:
        try:
            after = "" if cursor is None else f"?after={cursor}"
            with connect(url + after, additional_headers=headers, user_agent_header="monitor") as feed:
                for message in feed:
                    record = json.loads(message)
                    cursor = record["cursor"]
                    print(line(record), flush=True)
                code = feed.close_code
        except ConnectionClosed as closed:
            code = None if closed.rcvd is None else closed.rcvd.code
        except InvalidStatus as refused:
            code = CLOSE_CREDENTIAL if refused.response.status_code in (403, 404, 410) else None
        except (OSError, InvalidHandshake):
            code = None  # nobody answers, or not yet
        if code in (CLOSE_ENDED, CLOSE_CREDENTIAL):
            return SESSION_ENDED if code == CLOSE_ENDED else GRANT_ENDED
        print(f"cut off ({code}), and back soon", file=sys.stderr, flush=True)
        time.sleep(PAUSE_SECONDS)


def main() -> int:
    parser = argparse.ArgumentParser(description="Print what happens in a session, a line a record.")
    parser.add_argument("--url", required=True, help="of the Jupyter server")
    parser.add_argument("--grant-file", required=True, help="what `jupyter cmdop invite` wrote")
    parser.add_argument("--after", metavar="CURSOR", help="begin behind this cursor of an earlier record")
    args = parser.parse_args()
    grant = read_grant(args.grant_file)
    url = f"{args.url.rstrip('/')}/cmdop/api/sessions/{grant['session']}/feed".replace("http", "ws", 1)
    code = follow(url, grant["token"], args.after)
    print("the session has ended" if code == SESSION_ENDED else "the grant has ended", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
