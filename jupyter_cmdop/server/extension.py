"""The extension as Jupyter starts it: what it claims when it is linked, adds when it is loaded, and does at the end.

Linking comes before any manager exists: the two manager classes are claimed there, and only where nobody else has.
Loading comes when the application is there: routes and the gate before the identity provider. Starting comes when the
loop runs and HTTP listens already: sessions are adopted, and until that is done questions about kernels get a 503.
"""

from __future__ import annotations

import os
import signal
from typing import Any, cast

from jupyter_server.auth import IdentityProvider
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.gateway.gateway_client import GatewayClient
from jupyter_server.serverapp import ServerApp
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from jupyter_server.services.sessions.sessionmanager import SessionManager
from jupyter_server.utils import url_path_join
from traitlets import Enum, Float, Integer, Unicode, default

from jupyter_cmdop.client.errors import PlaceError
from jupyter_cmdop.core.grants import Role

from . import api_routes, events
from .api_reach import Api
from .beside import Beside, ServerHandler, slots, summary, take_routes_back
from .grants import GrantGate
from .handlers import SessionActionHandler
from .identity import People
from .kernel_manager import SessionKernelManager
from .link_socket import LinkSocketHandler
from .notebooks import NotebookSessions
from .settings import Keep, Settings, Share
from .websocket import NamedWebsocketHandler, SessionWebsocketHandler
from .websockets_open import OpenWebsockets
from .workspace import Workspace

_NAME = r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*(?:@[0-9a-f-]+)?)"
_KERNEL = r"(?P<kernel_id>\w+-\w+-\w+-\w+-\w+)"


class CmdopApp(ExtensionApp):
    """Kernels of this server are sessions that people and agents share (see `jupyter cmdop --help`)."""

    name = "cmdop"
    description = "Named, durable kernels that people and agents share."

    share = Enum(
        ["all", "asked"],
        default_value="all",
        help="""Which kernels become sessions. `all`: every kernel that is started through this server. `asked`: only
        those whose kernel specification says `"metadata": {"cmdop": {"share": true}}`, and sessions that were made by
        `jupyter cmdop new`; every other kernel is a plain one.""",
    ).tag(config=True)

    keep_sessions = Enum(
        ["all", "shared", "none"],
        help="""Which sessions go on when the server is stopped by SIGTERM, Ctrl-C or its menu. `shared`: those that
        were made by hand, that somebody was invited to, or that somebody renamed; kernels that were merely opened from
        a notebook end, as in Jupyter. `all`: every session. `none`: no session of this server's directory. The
        default is `shared`, and `none` below a JupyterHub. A server that is killed (SIGKILL, a crash) ends nothing.""",
    ).tag(config=True)

    user_role = Enum(
        ["owner", "peer", "observer"],
        default_value="peer",
        help="""What users of this server other than its owner may do in its sessions. `observer`: see. `peer`: also
        run, take over, interrupt and answer. `owner`: also restart, close, invite and set policies.""",
    ).tag(config=True)

    issuer = Unicode(
        "",
        help="""What stands before the name of users other than the owner, as in `hub:alice`. By default a short name
        of the identity provider.""",
    ).tag(config=True)

    api_acts_per_minute = Integer(
        600,
        min=0,
        help="""How often one actor may `run`, `send` and `note` over the HTTP API in a minute; a sixth of it at once. 0
        sets no limit.""",
    ).tag(config=True)

    feed_patience = Float(
        30.0,
        min=0.1,
        help="""After how many seconds in which it takes nothing a reader of the feed is closed; it comes back with its
        cursor.""",
    ).tag(config=True)

    @default("keep_sessions")
    def _default_keep_sessions(self) -> str:
        return "none" if is_below_a_hub() else "shared"

    # ------------------------------------------------------------------ linking

    def _link_jupyter_server_extension(self, serverapp: ServerApp) -> None:
        super()._link_jupyter_server_extension(serverapp)
        self.workspace: Workspace | None = None
        self.websockets: OpenWebsockets | None = None
        self.beside: Beside | None = None
        self.api: Api | None = None
        obstacle = self._obstacle(serverapp)
        if obstacle:
            self.log.warning("jupyter_cmdop leaves kernels as they are: %s", obstacle)
            return
        try:
            workspace = Workspace(os.path.realpath(serverapp.root_dir))
            workspace.enter()
        except (PlaceError, OSError) as error:
            self.log.error("jupyter_cmdop leaves kernels as they are: %s", error)
            return
        self.workspace = workspace
        serverapp.kernel_manager_class = SessionKernelManager
        self._claim_notebook_sessions(serverapp, workspace)

    def _obstacle(self, serverapp: ServerApp) -> str:
        if GatewayClient.instance(parent=serverapp).gateway_enabled:
            return "they run behind a gateway"
        if "kernel_manager_class" in serverapp.config.ServerApp:
            return f"the configuration sets ServerApp.kernel_manager_class to {_chosen(serverapp, 'kernel')}"
        if (
            serverapp.trait_has_value("kernel_manager_class")
            and serverapp.kernel_manager_class is not AsyncMappingKernelManager
        ):
            return f"another extension has set the kernel manager to {_chosen(serverapp, 'kernel')}"
        return ""

    def _claim_notebook_sessions(self, serverapp: ServerApp, workspace: Workspace) -> None:
        is_claimed = "session_manager_class" in serverapp.config.ServerApp or (
            serverapp.trait_has_value("session_manager_class")
            and serverapp.session_manager_class is not SessionManager
        )
        if is_claimed:
            self.log.warning(
                "Notebook sessions are those of %s: they may not keep their ids when the server is started again",
                _chosen(serverapp, "session"),
            )
            return
        serverapp.session_manager_class = NotebookSessions
        if "database_filepath" in serverapp.config.SessionManager:
            return
        database = workspace.notebook_database()
        if database is None:
            self.log.info("Another server shows this directory: notebook sessions of this one end with it")
        else:
            serverapp.config.NotebookSessions.database_filepath = str(database)

    # ------------------------------------------------------------------ loading

    def initialize_handlers(self) -> None:
        if self.workspace is None or self.serverapp is None:
            return
        manager = self.serverapp.kernel_manager
        if not isinstance(manager, SessionKernelManager):
            self.log.warning("Another extension replaced the kernel manager by %s", type(manager).__name__)
            self.workspace = None
            return
        settings = self._settings(self.workspace)
        provider: IdentityProvider = self.serverapp.identity_provider
        people = People(provider, settings)
        manager.settle(settings, self.workspace, people)
        self.websockets = OpenWebsockets(manager, provider, people, self.workspace)
        self._watch_events(manager)
        application = self.serverapp.web_app
        application.settings["cmdop_websockets"] = self.websockets
        application.settings["identity_provider"] = GrantGate(
            provider, seen=self.websockets.seen, logged_out=self.websockets.logged_out
        )
        self.api = application.settings["cmdop_api"] = Api(
            manager,
            people,
            self.workspace,
            self.websockets,
            root=self.workspace.path,
            acts_per_minute=self.api_acts_per_minute,
            patience_seconds=self.feed_patience,
        )
        # Rules that are added later are tried before the stock ones.
        application.add_handlers(".*$", self._rules())
        application.add_handlers(
            ".*$", [api_routes.unknown(application.settings["base_url"])]
        )  # behind all of them
        self.beside = Beside(manager, people)
        self.log.info("Kernels are sessions: %s", summary(slots(self.serverapp)))

    def _rules(self) -> list[Any]:
        base_url = cast("ServerApp", self.serverapp).web_app.settings["base_url"]
        kernels = url_path_join(base_url, "api", "kernels", _KERNEL)
        return [
            (rf"{kernels}/channels", SessionWebsocketHandler),
            (rf"{kernels}/(?P<action>restart|interrupt)", SessionActionHandler),
            (url_path_join(base_url, "cmdop", "api", "server"), ServerHandler),
            (url_path_join(base_url, "cmdop", "api", "sessions", _NAME, "link"), LinkSocketHandler),
            (url_path_join(base_url, "cmdop", "api", "sessions", _NAME, "channels"), NamedWebsocketHandler),
            *api_routes.rules(base_url),
        ]

    def _settings(self, workspace: Workspace) -> Settings:
        return Settings(
            workspace=workspace.path,
            share=cast("Share", self.share),
            keep_sessions=cast("Keep", self.keep_sessions),
            user_role=cast("Role", self.user_role),
            issuer=self.issuer,
            owner_is_hub_user=is_below_a_hub(),
        )

    def _watch_events(self, manager: SessionKernelManager) -> None:
        logger = None if self.serverapp is None else self.serverapp.event_logger
        if logger is None:
            raise AssertionError("a server has its event logger before it loads extensions")
        events.register(logger)
        manager.on_entry(lambda session, entry: events.emit_entry(logger, session, entry))
        manager.on_action(lambda *action: events.emit_action(logger, *action))
        manager.on_change(lambda session, action, message: events.emit(logger, session, action, message))

    # ------------------------------------------------------------------ running

    async def _start_jupyter_server_extension(self, serverapp: ServerApp) -> None:
        if self.workspace is None or self.websockets is None:
            return
        manager = serverapp.kernel_manager
        if isinstance(manager, SessionKernelManager):
            application = serverapp.web_app
            take_routes_back(application, application.settings["base_url"], self._rules())
            if self.beside is not None:
                self.beside.guard(application, application.settings["base_url"])
            self._stop_on_interrupt(serverapp)
            await manager.adopt_all()
            self.websockets.start()

    def _stop_on_interrupt(self, serverapp: ServerApp) -> None:
        """Without a terminal Jupyter leaves SIGINT to Python, which ends the server and asks nobody what goes on."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda number, frame: serverapp.stop(from_signal=True))

    async def stop_extension(self) -> None:
        if self.websockets is not None:
            await self.websockets.stop()
        if self.api is not None:
            self.api.close()


def is_below_a_hub() -> bool:
    return bool(os.environ.get("JUPYTERHUB_USER") and os.environ.get("JUPYTERHUB_API_TOKEN"))


def _chosen(serverapp: ServerApp, what: str) -> Any:
    """The class in the slot, for a sentence."""
    name = f"{what}_manager_class"
    chosen = serverapp.config.ServerApp.get(name) or getattr(serverapp, name)
    return chosen if isinstance(chosen, str) else f"{chosen.__module__}.{chosen.__name__}"


__all__ = ["CmdopApp"]
