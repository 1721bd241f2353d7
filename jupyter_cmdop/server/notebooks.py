"""Notebook sessions (`/api/sessions`) that keep their ids when the server is started again.

The stock manager deletes the row of a kernel that it does not know, at the first look. Here a row goes only when its
kernel is proved to have ended: until the running sessions are adopted every look is a 503, and a session that was made
a moment ago is adopted when its row is read.
"""

from __future__ import annotations

from typing import Any

from jupyter_server.services.sessions.sessionmanager import SessionManager

from .kernel_manager import SessionKernelManager


class NotebookSessions(SessionManager):
    """The stock manager, over rows that outlive the server."""

    async def row_to_model(self, row: Any, tolerate_culled: bool = False) -> Any:
        manager = self.kernel_manager
        if isinstance(manager, SessionKernelManager):
            manager.check_ready()
            if row["kernel_id"]:
                await manager.adopt(row["kernel_id"])
        return await super().row_to_model(row, tolerate_culled=tolerate_culled)
