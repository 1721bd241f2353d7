"""An extension for tests, loaded before ours: it claims the websocket, and uses kernels in every way there is."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_server.base.handlers import APIHandler
from jupyter_server.services.kernels.handlers import _kernel_id_regex
from jupyter_server.utils import url_path_join
from tornado import web


class Channels(APIHandler):
    """What answers in place of a websocket."""

    @web.authenticated
    def get(self, kernel_id: str) -> None:
        self.finish("this is no websocket")


async def printed(client: AsyncKernelClient, code: str) -> str:
    """Execute; what it prints."""
    found: list[str] = []

    def hook(message: dict[str, Any]) -> None:
        if message["header"]["msg_type"] == "stream":
            found.append(message["content"]["text"])

    client.start_channels()
    try:
        await client.wait_for_ready(timeout=30)
        await client.execute_interactive(code, output_hook=hook, allow_stdin=False)
    finally:
        client.stop_channels()
    return "".join(found)


class Execute(APIHandler):
    """Executes codes at the same time, each on a client of its own, made in one of the ways there are."""

    @web.authenticated
    async def post(self, kernel_id: str) -> None:
        kernel = self.kernel_manager.get_kernel(kernel_id)
        by_info = AsyncKernelClient()
        by_info.load_connection_info(self.kernel_manager.get_connection_info(kernel_id))
        by_session = AsyncKernelClient(**kernel.get_connection_info(session=True))
        by_file = AsyncKernelClient()
        by_file.load_connection_file(kernel.connection_file)
        clients = [kernel.client(), kernel.client(), kernel.client_factory(), by_info, by_session, by_file]
        clients[2].load_connection_info(kernel.get_connection_info())
        codes = [f"print({number})" for number in range(len(clients))]
        found = await asyncio.gather(*map(printed, clients, codes))
        self.finish(json.dumps([text.strip() for text in found]))


class Act(APIHandler):
    @web.authenticated
    async def post(self, verb: str, kernel_id: str) -> None:
        kernel = self.kernel_manager.get_kernel(kernel_id)
        restarted = asyncio.Event()
        kernel.add_restart_callback(restarted.set, "restart")
        await getattr(kernel, f"{verb}_kernel")()
        if verb == "restart":
            await asyncio.wait_for(restarted.wait(), 30)
        kernel.remove_restart_callback(restarted.set, "restart")
        self.finish("done")


def _load_jupyter_server_extension(serverapp: Any) -> None:
    base = serverapp.base_url
    serverapp.web_app.add_handlers(
        ".*$",
        [
            (url_path_join(base, "api", "kernels", _kernel_id_regex, "channels"), Channels),
            (url_path_join(base, "an", "execute", _kernel_id_regex), Execute),
            (url_path_join(base, "an", r"(?P<verb>interrupt|restart|shutdown)", _kernel_id_regex), Act),
        ],
    )


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "an_extension"}]
