"""What ends when the Jupyter server is asked to stop, and what goes on: one decision for each session.

A kernel that was merely opened from a notebook ends, as in Jupyter. A session goes on that somebody made by hand, was
invited to, or named; that another workspace owns; or that another running server shows too. In doubt it goes on: what
has ended cannot be brought back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from jupyter_cmdop.client.errors import ClientError

from .session_kernel import SessionKernel
from .settings import Keep
from .workspace import Workspace


@dataclass(frozen=True, slots=True)
class Stop:
    """What becomes of a session.

    Attributes:
        why: in a few words, why it goes on; "" when it ends.
    """

    session: SessionKernel
    why: str = ""

    @property
    def goes_on(self) -> bool:
        return bool(self.why)


async def decide(
    sessions: Sequence[SessionKernel], keep: Keep, workspace: Workspace, *, is_last: bool
) -> list[Stop]:
    """Decide for each session; keepers are asked all at once.

    Args:
        is_last: whether no other server shows this workspace.
    """
    return list(
        await asyncio.gather(*(_decide(session, keep, workspace, is_last=is_last) for session in sessions))
    )


async def _decide(session: SessionKernel, keep: Keep, workspace: Workspace, *, is_last: bool) -> Stop:
    if session.workspace != workspace.path:
        return Stop(session, "it belongs to another workspace")
    if not is_last:
        return Stop(session, "another server shows this workspace")
    if keep == "all":
        return Stop(session, "all")
    if keep == "none":
        return Stop(session)
    opened = await asyncio.to_thread(workspace.opened, session.kernel_id)
    if opened is None:
        return Stop(session, "made by hand")
    if opened.name and opened.name != session.name:
        return Stop(session, "named by somebody")
    try:
        granted = await session.ask("grants", {})
    except ClientError as error:
        return Stop(session, f"its keeper does not answer ({error})")
    # What this server's own extensions use is no invitation.
    invited = [grant for grant in granted.get("grants", []) if not grant.get("held")]
    actors = sorted({str(grant.get("actor")) for grant in invited})
    return Stop(session, f"shared with {', '.join(actors)}" if actors else "")


def last_words(stops: Sequence[Stop]) -> list[str]:
    """What a person at the terminal should read last: what goes on, why, and how to end it."""
    going_on = [stop for stop in stops if stop.goes_on]
    if not going_on:
        return []
    lines = [f"{len(going_on)} session{'s' if len(going_on) > 1 else ''} go on without this server:"]
    if len(going_on) == 1:
        lines = ["1 session goes on without this server:"]
    for stop in going_on:
        why = "keep_sessions = all" if stop.why == "all" else stop.why
        lines.append(f"    {stop.session.name} ({why})    end it: jupyter cmdop close {stop.session.name}")
    return lines
