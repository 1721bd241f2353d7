"""Notebook sessions (`/api/sessions`) that keep their ids when the server is started again.

The stock manager deletes the row of a kernel that it does not know, at the first look. Here a row goes only when its
kernel is proved to have ended: until the running sessions are adopted every look is a 503, and a session that was made
a moment ago is adopted when its row is read.
"""

from __future__ import annotations

from typing import Any

from jupyter_server.services.sessions.sessionmanager import SessionManager

from .kernel_manager import SessionKernelManager, is_kernel_id


class NotebookSessions(SessionManager):
    """The stock manager, over rows that outlive the server."""

    async def create_session(
        self,
        path: str | None = None,
        name: Any = None,
        type: str | None = None,  # noqa: A002 (Jupyter's word)
        kernel_name: Any = None,
        kernel_id: str | None = None,
    ) -> dict[str, Any]:
        """Clients of the old API send anything as a kernel's id; only one that can be the new kernel's is taken."""
        if kernel_id is not None and not is_kernel_id(kernel_id):
            self.log.info("A kernel id is a UUID: %r is not used", kernel_id)
            kernel_id = None
        made: dict[str, Any] = await super().create_session(
            path=path, name=name, type=type, kernel_name=kernel_name, kernel_id=kernel_id
        )
        return made

    async def row_to_model(self, row: Any, tolerate_culled: bool = False) -> Any:
        manager = self.kernel_manager
        if isinstance(manager, SessionKernelManager):
            manager.check_ready()
            if row["kernel_id"]:
                await manager.adopt(row["kernel_id"])
        return await super().row_to_model(row, tolerate_culled=tolerate_culled)
