"""Routes of kernels where the stock handler would hide what a keeper says."""

from __future__ import annotations

import json

from jupyter_client.jsonutil import json_default
from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized
from jupyter_server.services.kernels.handlers import KernelActionHandler
from tornado import web


class SessionActionHandler(KernelActionHandler):
    """Interrupt and restart; the stock handler answers every refused restart with a 500."""

    @web.authenticated
    @authorized
    async def post(self, kernel_id: str, action: str) -> None:
        manager = self.kernel_manager
        if action == "interrupt":
            await ensure_async(manager.interrupt_kernel(kernel_id))  # type: ignore[func-returns-value]
            self.set_status(204)
            await self.finish()
            return
        try:
            await manager.restart_kernel(kernel_id)
        except web.HTTPError:
            raise
        except Exception as error:  # as the stock handler: whatever a plain kernel's restart raises
            raise web.HTTPError(500, "Exception restarting kernel") from error
        model = await ensure_async(manager.kernel_model(kernel_id))
        await self.finish(json.dumps(model, default=json_default))
