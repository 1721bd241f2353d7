"""Beside other extensions: whose code answers on each of our routes, and cells that others execute in the server.

Extensions are linked and loaded in the order of their names, so some come before us and some after. What must be ours
for sessions to be sessions (the websocket) is looked at once more when all are there, and taken back. What others
execute in the server goes through a client that speaks as one user (see `inside`); where it is another one who asks,
either he gets a client of his own or he is told why not.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.httputil import HTTPHeaders, HTTPServerRequest
from tornado.routing import PathMatches, Rule
from traitlets.log import get_logger

from .errors import problem
from .handlers import SessionActionHandler
from .identity import People, Person
from .notebooks import NotebookSessions
from .websocket import SessionWebsocketHandler

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp

    from .kernel_manager import SessionKernelManager
    from .session_kernel import SessionKernel

TURN_SECONDS = 10.0
"""How long a user waits for cells of another one that an extension executes for the same notebook."""
_SOME_KERNEL = "00000000-0000-4000-8000-000000000000"
_ROUTES: tuple[tuple[str, str, type[web.RequestHandler]], ...] = (
    ("GET", "channels", SessionWebsocketHandler),
    ("POST", "interrupt", SessionActionHandler),
    ("POST", "restart", SessionActionHandler),
)


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in Jupyter that one class fills.

    Attributes:
        serves: the class that is there.
        instead_of: the class that would be there without us, or that we have left there.
        means: what follows from it, in a sentence.
    """

    slot: str
    serves: str
    instead_of: str
    means: str


def name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def package_of(kind: type) -> str:
    return kind.__module__.partition(".")[0]


# ---------------------------------------------------------------------- who serves what


def slots(serverapp: ServerApp) -> list[Slot]:
    """Who fills the slots that we use, or would use."""
    found = []
    kernels = type(serverapp.kernel_manager)
    stock = next(base for base in kernels.__mro__ if package_of(base) != "jupyter_cmdop")
    found.append(Slot("kernel manager", name_of(kernels), name_of(stock), "kernels are sessions"))
    notebooks = type(serverapp.session_manager)
    if issubclass(notebooks, NotebookSessions):
        stock = next(base for base in notebooks.__mro__ if package_of(base) != "jupyter_cmdop")
        means = "notebook sessions keep their ids when the server is started again"
        found.append(Slot("session manager", name_of(notebooks), name_of(stock), means))
    else:
        means = "left to it: notebook sessions end with the server, their kernels go on"
        found.append(Slot("session manager", name_of(notebooks), name_of(NotebookSessions), means))
    websockets = serverapp.web_app.settings.get("kernel_websocket_connection_class")
    inner = websockets if isinstance(websockets, type) else ZMQChannelsWebsocketConnection
    means = "a session's websocket is given to its keeper; that class serves plain kernels only"
    found.append(Slot("kernel websocket", name_of(SessionWebsocketHandler), name_of(inner), means))
    return found


def summary(found: list[Slot]) -> str:
    """One line for the log."""
    parts = []
    for slot in found:
        ours = slot.serves.startswith("jupyter_cmdop.")
        parts.append(
            f"{slot.slot} taken over from {slot.instead_of}"
            if ours
            else f"{slot.slot} left to {slot.serves} (notebook sessions end with the server)"
        )
    return "; ".join(parts)


def winner(application: web.Application, base_url: str, method: str, verb: str) -> type[web.RequestHandler]:
    """The handler that answers a request about a kernel."""
    path = url_path_join(base_url, "api", "kernels", _SOME_KERNEL, verb)
    request = HTTPServerRequest(method=method, uri=path, headers=HTTPHeaders({"Host": "localhost"}))
    delegate: Any = application.find_handler(request)
    return cast("type[web.RequestHandler]", delegate.handler_class)


def take_routes_back(application: web.Application, base_url: str, rules: list[Any]) -> None:
    """Put our rules before those of an extension that was loaded earlier, if it has one of our routes."""
    for method, verb, ours in _ROUTES:
        other = winner(application, base_url, method, verb)
        if other is not ours:
            get_logger().warning("/api/kernels/<id>/%s is taken over from %s", verb, name_of(other))
            application.add_handlers(".*$", rules)
            order = application.default_router.rules
            order.insert(0, order.pop(-2))
            return


class ServerHandler(APIHandler):
    """`cmdop/api/server`: who serves what, asked of the router itself."""

    auth_resource = "kernels"

    @web.authenticated
    @authorized
    async def get(self) -> None:
        application, base_url = self.application, self.base_url
        routes = {
            f"/api/kernels/<id>/{verb}": name_of(winner(application, base_url, method, verb))
            for method, verb, _ in _ROUTES
        }
        found = slots(cast("ServerApp", self.serverapp))
        await self.finish({"slots": [asdict(slot) for slot in found], "routes": routes})


# ---------------------------------------------------------------------- cells that others execute in the server


class Beside:
    """Looks after the routes on which other extensions execute cells."""

    def __init__(self, manager: SessionKernelManager, people: People) -> None:
        self._manager = manager
        self._people = people
        # By notebook: requests that are being answered, and who waits for his turn.
        self._under_way: Counter[Any] = Counter()
        self._turning: dict[Any, str] = {}
        self._passed: dict[JupyterHandler, Any] = {}
        self._stacks: StackOfPeople | None = None

    def guard(self, application: web.Application, base_url: str) -> None:
        """Stand before each route that executes, whoever has added it."""
        path = url_path_join(base_url, "api", "kernels", _SOME_KERNEL, "execute")
        for rule in _rules(application):
            kind = rule.target
            if not (isinstance(kind, type) and issubclass(kind, JupyterHandler)):
                continue
            if package_of(kind) in ("jupyter_server", "jupyter_cmdop"):
                continue
            stack = (rule.target_kwargs or {}).get("execution_stack")
            if package_of(kind) == "jupyter_server_nbmodel" and stack is not None:
                rule.target_kwargs["execution_stack"] = self._stack(stack)
            if isinstance(rule.matcher, PathMatches) and rule.matcher.regex.match(path):
                rule.target = self._guarded(kind)
                get_logger().info(
                    "%s executes cells of sessions in the name of whoever asks (%s)",
                    package_of(kind),
                    rule.matcher.regex.pattern,
                )

    def _guarded(self, kind: type[JupyterHandler]) -> type[JupyterHandler]:
        beside = self

        class Guarded(kind):  # type: ignore[misc, valid-type]  # any handler there is
            async def prepare(self, *args: Any, **kwargs: Any) -> None:
                done = super().prepare(*args, **kwargs)
                if isinstance(done, Awaitable):
                    await done
                if self.request.method not in ("GET", "HEAD", "OPTIONS") and not self._finished:
                    await beside.check(self, package_of(kind))

            def on_finish(self) -> None:
                beside.finished(self)
                super().on_finish()

        Guarded.__name__, Guarded.__qualname__ = kind.__name__, kind.__qualname__
        Guarded.__module__ = kind.__module__
        return Guarded

    async def check(self, handler: JupyterHandler, extension: str) -> None:
        """Let a request to execute pass if what it executes will bear the name of whoever asks.

        Raises:
            HTTPError: 403, 404, 409 or 503, with a sentence that says why.
        """
        if handler.current_user is None:
            return  # whoever is not known is refused by the handler itself
        kernel_id = _kernel_id(handler)
        if kernel_id not in self._manager:
            return  # nbmodel executes in kernels of other servers too
        session = self._manager.session(kernel_id)
        if session is None:
            return
        person = self._people.of(handler)
        if person.role == "observer":
            raise problem(403, f"{person.actor.id} may only observe the session {session.name}")
        room = _room(handler)
        if room is not None:
            await self._check_room(handler, session, person, room)
            return
        if extension == "jupyter_server_nbmodel":
            return  # each user has a queue and a client of his own
        others = {held.person.actor.id for held in session.inside if held.extension == extension}
        if others and person.actor.id not in others:
            raise _of_another(extension, session, min(others))

    # --- jupyter_server_documents: one client for each notebook, made by whoever opened it

    async def _check_room(
        self, handler: JupyterHandler, session: SessionKernel, person: Person, room: Any
    ) -> None:
        speaks_as = _speaks_as(session, room)
        if room in self._turning:
            raise _of_another("jupyter_server_documents", session, self._turning[room])
        if speaks_as is not None and speaks_as != person.actor.id:
            await self._turn(session, person, room, speaks_as)
        self._under_way[room] += 1
        self._passed[handler] = room

    async def _turn(self, session: SessionKernel, person: Person, room: Any, earlier: str) -> None:
        """Connect the notebook in another name, when nothing of the earlier one is under way."""
        busy = _of_another("jupyter_server_documents", session, earlier)
        if self._under_way[room]:
            raise busy
        self._turning[room] = person.actor.id
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await room._execution_queue.join()  # noqa: SLF001 (there is no public name)
            await room.connect_kernel(session)
        except TimeoutError:
            raise busy from None
        finally:
            del self._turning[room]

    def finished(self, handler: JupyterHandler) -> None:
        """A request that `check` let pass has been answered."""
        room = self._passed.pop(handler, None)
        if room is not None:
            self._under_way[room] -= 1
            if not self._under_way[room]:
                del self._under_way[room]

    # --- jupyter_server_nbmodel: one queue and client for each kernel, whoever asks

    def _stack(self, first: Any) -> StackOfPeople:
        if self._stacks is None:
            self._stacks = StackOfPeople(first, self._people, self._manager)
        return self._stacks


class StackOfPeople:
    """Stands where nbmodel's handlers have their one execution stack: each user has his own."""

    def __init__(self, first: Any, people: People, manager: SessionKernelManager) -> None:
        self._first = first
        self._people = people
        self._manager = manager
        self._stacks: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of(self._people.current()), name)

    def _of(self, person: Person) -> Any:
        if person.actor.id == self._people.owner.actor.id:
            return self._first
        stack = self._stacks.get(person.actor.id)
        if stack is None:
            document = getattr(self._first, "_ExecutionStack__ydoc", None)
            stack = type(self._first)(manager=self._manager, ydoc_extension=document)
            self._stacks[person.actor.id] = stack
        return stack


def _rules(application: web.Application) -> Iterator[Rule]:
    for router in (application.default_router, application.wildcard_router):
        for rule in router.rules:
            yield rule
            yield from getattr(rule.target, "rules", ())


def _kernel_id(handler: JupyterHandler) -> str:
    kwargs: Mapping[str, Any] = handler.path_kwargs or {}
    return str(kwargs.get("kernel_id") or next(iter(handler.path_args or ()), ""))


def _room(handler: JupyterHandler) -> Any:
    """The notebook of jupyter_server_documents that a request is about."""
    rooms = handler.settings.get("yroom_manager")
    if rooms is None:
        return None
    body: Any = handler.get_json_body()
    document = body.get("document_id") if isinstance(body, dict) else None
    room = rooms.get_room(document) if isinstance(document, str) and document else None
    return room if hasattr(room, "connect_kernel") else None


def _speaks_as(session: SessionKernel, room: Any) -> str | None:
    """In whose name the notebook's client is; None when it has none of this session."""
    client = getattr(room, "_kernel_client", None)
    if client is None:
        return None
    held = session.inside.holder_of(client.session.key)
    return None if held is None else held.person.actor.id


def _of_another(extension: str, session: SessionKernel, other: str) -> web.HTTPError:
    return problem(
        409,
        f"{extension} executes cells of the session {session.name} in the name of {other} at the moment; try again, or "
        "use the kernel's websocket or `jupyter cmdop run`, which act in yours",
    )


__all__ = ["Beside", "ServerHandler", "Slot", "slots", "summary", "take_routes_back"]
