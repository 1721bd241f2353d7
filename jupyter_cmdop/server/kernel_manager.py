"""The mapping kernel manager whose kernels are sessions: it starts, finds, shows, restarts and ends them.

A session is in the mapping from the moment its keeper is ready, or is found in the registry, until its keeper ends.
Kernels that are no sessions (`share = asked`, or a specification that only this server can start) live in the same
mapping and are the stock manager's business.

Until the sessions that are there have been adopted, every question about kernels is answered 503: a front end that is
shown a list without its kernel disposes of it, and one that gets a 503 asks again.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from jupyter_client.kernelspec import NATIVE_KERNEL_NAME, KernelSpec, KernelSpecManager, NoSuchKernel
from jupyter_core.utils import ensure_async
from jupyter_server.prometheus.metrics import KERNEL_CURRENTLY_RUNNING_TOTAL
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from jupyter_server.utils import ApiPath
from tornado import web

from jupyter_cmdop.client.errors import ClientError, Refused, UnknownSession
from jupyter_cmdop.client.registry import Pointer, Registry, facts, past_reason
from jupyter_cmdop.client.spawn import Spawned, reap, spawn

from .errors import http_error, problem
from .events import Action
from .identity import People, Person
from .naming import base_name, free_names
from .session_kernel import SessionKernel
from .settings import Keep, Settings
from .stopping import Stop, decide, last_words
from .workspace import How, Workspace

FIRST_WORD_SECONDS = 5.0
"""How long a keeper may take to say how it is before it is shown all the same."""
LOOK_SECONDS = 1.0
"""How often it is looked whether somebody made a session by hand; one `stat` when nobody did."""
SPAWNS_AT_ONCE = 8

Listener = Callable[[SessionKernel, str, str], None]
ActionListener = Callable[[str, str, Action, ClientError | None], None]
EntryListener = Callable[[SessionKernel, Mapping[str, Any]], None]


class SessionKernelManager(AsyncMappingKernelManager):
    """Kernels that are sessions, each with a keeper of its own."""

    _settings: Settings | None = None

    def settle(self, settings: Settings, workspace: Workspace, people: People) -> None:
        """Give the manager what the extension knows; nothing is started or shown before."""
        self._settings = settings
        self._workspace = workspace
        self.people = people
        self._adopted = asyncio.Event()
        self._look_task: asyncio.Task[None] | None = None
        self._seen_mtime = 0
        self._threads = ThreadPoolExecutor(SPAWNS_AT_ONCE, thread_name_prefix="cmdop spawn")
        self._starting: set[str] = set()
        self._listeners: list[Listener] = []
        self._entry_listeners: list[EntryListener] = []
        self._action_listeners: list[ActionListener] = []

    @property
    def _specs(self) -> KernelSpecManager:
        if self.kernel_spec_manager is None:
            raise AssertionError("a server makes its spec manager first")
        return self.kernel_spec_manager

    # ------------------------------------------------------------------ what is there

    @property
    def is_ready(self) -> bool:
        return self._settings is not None and self._adopted.is_set()

    def check_ready(self) -> None:
        """Raise HTTPError 503 until the sessions that are there have been adopted."""
        if not self.is_ready:
            raise web.HTTPError(503, "the running sessions are being adopted; try again")

    def sessions(self) -> list[SessionKernel]:
        return [kernel for kernel in self._kernels.values() if isinstance(kernel, SessionKernel)]

    def session(self, kernel_id: str) -> SessionKernel | None:
        """The session with this id, None for a plain kernel.

        Raises:
            HTTPError: 404 there is neither, 503 it is not known yet.
        """
        self._check_kernel_id(kernel_id)
        kernel = self._kernels[kernel_id]
        return kernel if isinstance(kernel, SessionKernel) else None

    def __contains__(self, kernel_id: str) -> bool:
        self.check_ready()
        return kernel_id in self._kernels

    def _check_kernel_id(self, kernel_id: str) -> None:
        """Raise HTTPError 404 when there is no such kernel; for a session that ended it says how."""
        if kernel_id in self:
            return
        record = Registry.of_user().record(kernel_id)
        if record is None or record.state == "open":  # one that lives, in another workspace
            raise problem(404, f"Kernel does not exist: {kernel_id}")
        state = "has ended" if record.state == "closed" else "is lost"
        raise problem(
            404, f"Kernel does not exist: session {record.name} ({kernel_id}) {state}: {past_reason(record)}"
        )

    def list_kernels(self) -> list[dict[str, Any]]:
        self.check_ready()
        return list(super().list_kernels())

    def kernel_model(self, kernel_id: str) -> dict[str, Any]:
        session = self.session(kernel_id)
        return dict(super().kernel_model(kernel_id)) if session is None else session.model()

    # ------------------------------------------------------------------ adopting

    async def adopt_all(self) -> None:
        """Take up every session of this workspace that lives; from then on questions are answered.

        It does not give up: an empty list would cost people what they see, a 503 costs them a moment.
        """
        while True:
            try:
                await self._adopt_once()
                break
            except (ClientError, OSError):
                self.log.exception("The running sessions cannot be adopted yet")
                await asyncio.sleep(LOOK_SECONDS)
        self._adopted.set()
        self._look_task = asyncio.create_task(self._keep_looking(), name="cmdop registry")

    async def _adopt_once(self) -> None:
        for gone in await self._in_thread(Registry.of_user().sweep):
            self.log.warning("Session %s (%s) was lost: %s", gone.name, gone.id, gone.reason)
        await self._look()
        sessions = self.sessions()
        await asyncio.gather(*(session.heard(FIRST_WORD_SECONDS) for session in sessions))
        await self._in_thread(_forget_ended, self._workspace)
        if sessions:
            names = ", ".join(session.name for session in sessions)
            self.log.info("Adopted %d running sessions: %s", len(sessions), names)

    async def adopted(self) -> None:
        """Wait until `adopt_all` has done its work."""
        await self._adopted.wait()

    async def adopt(self, kernel_id: str) -> SessionKernel | None:
        """Take up one session at once, wherever it was made, if its keeper lives."""
        known = self._kernels.get(kernel_id)
        if known is not None:
            return known if isinstance(known, SessionKernel) else None
        pointer = await self._in_thread(_find_pointer, kernel_id)
        if pointer is None:
            return None
        session = self._take_up(pointer)
        await session.heard(FIRST_WORD_SECONDS)
        return session

    async def take_up(self, session_id: str) -> None:
        """Show a session that was just made here by hand, and tell of it."""
        session = await self.adopt(session_id)
        if session is not None:
            self._tell(session, "started", "")
            self._tell_action(session_id, session.kernel_name, "start")

    def tell_done(self, session_id: str, action: Action, error: ClientError | None = None) -> None:
        """Tell what was asked of a session through this server and not through its kernel's routes."""
        session = self._kernels.get(session_id)
        if isinstance(session, SessionKernel):
            self._tell_action(session_id, session.kernel_name, action, error)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            reap()  # keepers are our children until we end: one that has ended would stay a zombie
            try:
                await self._look()
            except ClientError as error:
                self.log.warning("The registry of sessions cannot be read: %s", error)

    async def _look(self) -> None:
        """Take up what the registry has for this workspace and we do not."""
        registry = Registry.of_user()
        changed = _mtime(registry)
        if changed == self._seen_mtime:
            return
        pointers = await self._in_thread(registry.list_pointers)
        # A keeper that is starting writes its pointer again, which changes the folder once more.
        self._seen_mtime = changed
        for pointer in pointers:
            if pointer.id in self._kernels or pointer.id in self._starting or not self._is_ours(pointer):
                continue
            if pointer.link is not None and facts(pointer).state == "alive":
                self._take_up(pointer)

    def _is_ours(self, pointer: Pointer) -> bool:
        if pointer.kind != "kernel":
            return False
        return pointer.workspace == self._workspace.path or self._workspace.opened(pointer.id) is not None

    def _take_up(self, pointer: Pointer) -> SessionKernel:
        known = self._kernels.get(pointer.id)
        if isinstance(known, SessionKernel):
            return known
        session = SessionKernel(
            pointer.id,
            name=pointer.name,
            kernel_name=pointer.spec or self.default_kernel_name,
            link=pointer.link or "",
            workspace=pointer.workspace,
            changed=self._session_changed,
            noticed=self._session_noticed,
            gone=self._session_gone,
            recorded=self._session_recorded,
            acted=self._session_acted,
            person=self.people.current,
        )
        self._kernels[pointer.id] = session
        KERNEL_CURRENTLY_RUNNING_TOTAL.labels(type=session.kernel_name).inc()
        session.watch()
        if not self._initialized_culler:
            self.initialize_culler()
        return session

    def _session_changed(self, session: SessionKernel) -> None:
        self.last_kernel_activity = max(self.last_kernel_activity, session.last_activity)

    def _session_noticed(self, session: SessionKernel, action: str, why: str) -> None:
        if action == "unresponsive":
            self.log.warning("Session %s (%s) does not answer: %s", session.name, session.kernel_id, why)
        else:
            self.log.info("Session %s (%s) answers again", session.name, session.kernel_id)
        self._tell(session, action, why)

    def _session_gone(self, session: SessionKernel, how: str, why: str) -> None:
        if self._kernels.get(session.kernel_id) is not session:
            return
        del self._kernels[session.kernel_id]
        KERNEL_CURRENTLY_RUNNING_TOTAL.labels(type=session.kernel_name).dec()
        self.last_kernel_activity = datetime.now(UTC)
        self._workspace.forget(session.kernel_id)
        if how == "lost":
            self.log.warning("Session %s (%s) is lost: %s", session.name, session.kernel_id, why)
        else:
            self.log.info("Session %s (%s) has ended: %s", session.name, session.kernel_id, why)
        self._tell(session, "lost" if how == "lost" else "closed", why)

    def _session_recorded(self, session: SessionKernel, entry: Mapping[str, Any]) -> None:
        for listener in self._entry_listeners:
            listener(session, entry)

    def _session_acted(self, session: SessionKernel, action: Action, error: ClientError | None) -> None:
        self._tell_action(session.kernel_id, session.kernel_name, action, error)

    def _tell_action(
        self, kernel_id: str, kernel_name: str, action: Action, error: ClientError | None = None
    ) -> None:
        for listener in self._action_listeners:
            listener(kernel_id, kernel_name, action, error)

    def on_action(self, listener: ActionListener) -> None:
        """Have `listener` told of what is done to sessions through this server, and of what failed."""
        self._action_listeners.append(listener)

    def on_change(self, listener: Listener) -> None:
        """Have `listener` told of sessions that were started, closed or lost."""
        self._listeners.append(listener)

    def on_entry(self, listener: EntryListener) -> None:
        """Have `listener` told of the entries of `events.JOURNAL_TYPES`, as sessions record them."""
        self._entry_listeners.append(listener)

    def _tell(self, session: SessionKernel, action: str, message: str) -> None:
        for listener in self._listeners:
            listener(session, action, message)

    # ------------------------------------------------------------------ starting

    async def _async_start_kernel(
        self, *, kernel_id: str | None = None, path: ApiPath | None = None, **kwargs: Any
    ) -> str:
        """Start a session, or a plain kernel where none is wanted; open the one that has this id already."""
        if self._settings is None:
            raise web.HTTPError(503, "the server is starting; try again")
        await self.adopted()
        if kernel_id is not None and (found := await self._open(kernel_id)) is not None:
            self.log.info("Using existing kernel: %s", found)
            return found
        kernel_name = kwargs.pop("kernel_name", None) or self.default_kernel_name
        if kernel_name == "python":  # as jupyter_client's manager of one kernel has it
            kernel_name = NATIVE_KERNEL_NAME
        spec = await self._in_thread(self._specs.get_kernel_spec, kernel_name)
        if not await self._is_session_wanted(kernel_name, spec):
            return str(
                await super()._async_start_kernel(
                    kernel_id=kernel_id, path=path, kernel_name=kernel_name, **kwargs
                )
            )
        env = kwargs.get("env") or {}
        cwd = kwargs.get("cwd")
        if path is not None:
            cwd = self.cwd_for_path(path, env=env)
        return await self.start_session(kernel_name, kernel_id=kernel_id, cwd=cwd, env=env)

    # The stock handlers call this name, which a base class has bound to its own method.
    start_kernel = _async_start_kernel  # type: ignore[assignment]  # the base class has a blocking one

    async def start_session(
        self,
        kernel_name: str,
        *,
        kernel_id: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Start a session for whoever asks now; its name follows from the document in `JPY_SESSION_NAME`.

        Raises:
            HTTPError: it could not be started.
        """
        chosen_id = _checked_id(kernel_id) if kernel_id is not None else str(uuid.uuid4())
        wanted = dict(env or {})
        opener = self._opener()
        base = base_name(wanted.get("JPY_SESSION_NAME"), kernel_name)
        self._starting.add(chosen_id)
        try:
            spawned = await self._in_thread(self._spawn, base, kernel_name, chosen_id, cwd, wanted, opener)
            await self._in_thread(self._workspace.remember, chosen_id, "started", spawned.name)
            session = self._take_up(
                Pointer(
                    id=spawned.id,
                    name=spawned.name,
                    link=spawned.link,
                    spec=kernel_name,
                    workspace=self._workspace.path,
                )
            )
        except ClientError as error:
            self.log.error("The session %s could not be started: %s", base, error)
            self._tell_action(chosen_id, kernel_name, "start", error)
            raise http_error(error) from error
        finally:
            self._starting.discard(chosen_id)
        await session.heard(FIRST_WORD_SECONDS)
        self.log.info("Kernel started: %s (session %s)", chosen_id, session.name)
        self._tell(session, "started", "")
        self._tell_action(chosen_id, kernel_name, "start")
        return chosen_id

    def _opener(self) -> str:
        """The id of whoever asks for a session now; the owner's where an extension starts one for nobody known."""
        try:
            return self.people.current().actor.id
        except web.HTTPError:
            return self.people.owner.actor.id

    def _spawn(
        self,
        base: str,
        kernel_name: str,
        kernel_id: str,
        cwd: str | None,
        env: Mapping[str, str],
        opened_by: str,
    ) -> Spawned:
        # The keeper inherits our environment; what the request adds is all that must be written down.
        added = {key: value for key, value in env.items() if os.environ.get(key) != value}
        taken = [
            pointer.name for pointer in Registry.of_user().list_pointers() if facts(pointer).state != "lost"
        ]
        names = free_names(base, taken)
        while True:
            try:
                return spawn(
                    next(names),
                    spec=kernel_name,
                    cwd=cwd,
                    env=added,
                    workspace=self._workspace.path,
                    session_id=kernel_id,
                    opened_by=opened_by,
                )
            except Refused as refused:
                # Somebody else was faster with this name.
                if refused.refusal.code != "name_taken":
                    raise

    async def _open(self, kernel_id: str) -> str | None:
        """The kernel that has this id: ours, or a session of another workspace that is shown here from now on."""
        if kernel_id in self._kernels:
            return kernel_id
        session = await self.adopt(kernel_id)
        if session is None:
            return None
        if session.workspace != self._workspace.path:
            await self._remember(session, "opened")
        return kernel_id

    async def _remember(self, session: SessionKernel, how: How) -> None:
        await self._in_thread(self._workspace.remember, session.kernel_id, how, session.name)

    async def _is_session_wanted(self, kernel_name: str, spec: KernelSpec) -> bool:
        settings = self._settings
        if settings is None:
            raise AssertionError("nothing is started before the manager is settled")
        cmdop = spec.metadata.get("cmdop")
        asked = isinstance(cmdop, dict) and cmdop.get("share") is True
        if settings.share == "asked" and not asked:
            return False
        provisioner = spec.metadata.get("kernel_provisioner") or {}
        if provisioner.get("provisioner_name", "local-provisioner") != "local-provisioner":
            self.log.info("%s has a provisioner of its own: a plain kernel is started", kernel_name)
            return False
        if not await self._in_thread(keeper_knows, kernel_name):
            self.log.warning(
                "%s is known to this server's spec manager only: a plain kernel is started", kernel_name
            )
            return False
        return True

    # ------------------------------------------------------------------ acting

    async def interrupt_kernel(  # type: ignore[override]  # whoever calls it awaits what comes back
        self, kernel_id: str
    ) -> None:
        session = self.session(kernel_id)
        if session is None:
            await ensure_async(super().interrupt_kernel(kernel_id))
            return
        await self._act(session, "interrupt", session.interrupt(self.people.current()))

    async def _async_restart_kernel(self, kernel_id: str, now: bool = False) -> Any:
        session = self.session(kernel_id)
        if session is None:
            return await super()._async_restart_kernel(kernel_id, now=now)
        await self._act(session, "restart", session.restart(self.people.current()))
        return None

    restart_kernel = _async_restart_kernel  # type: ignore[assignment]

    async def _async_shutdown_kernel(
        self, kernel_id: str, now: bool | None = False, restart: bool | None = False
    ) -> Any:
        session = self.session(kernel_id)
        if session is None:
            return await super()._async_shutdown_kernel(kernel_id, now=now, restart=restart)
        if restart:
            await self._act(session, "restart", session.restart(self.people.current()))
        else:
            await self.close_session(session, self.people.current())
        return None

    shutdown_kernel = _async_shutdown_kernel  # type: ignore[assignment]

    async def close_session(
        self, session: SessionKernel, person: Person, *, client: str = "jupyter server"
    ) -> None:
        """End a session in somebody's name and take it out of the mapping.

        Raises:
            HTTPError: he may not, or its keeper does not answer.
        """
        await self._act(session, "shutdown", session.close(person, client=client))
        self._session_gone(session, "closed", f"{person.actor.id} closed it")
        await session.stop()

    async def _act(self, session: SessionKernel, verb: str, doing: Any) -> None:
        try:
            await doing
        except ClientError as error:
            self.log.warning("%s of session %s failed: %s", verb, session.name, error)
            raise http_error(error) from error
        self.log.info("%s of session %s (%s)", verb, session.name, session.kernel_id)

    def update_env(self, *, kernel_id: str, env: dict[str, str]) -> None:
        """A session's environment is that of its start; a document that moves does not change it."""
        if isinstance(self._kernels.get(kernel_id), SessionKernel):
            return
        super().update_env(kernel_id=kernel_id, env=env)

    # ------------------------------------------------------------------ idle kernels

    async def cull_kernel_if_idle(self, kernel_id: str) -> None:
        kernel = self._kernels[kernel_id]
        if not isinstance(kernel, SessionKernel):
            await super().cull_kernel_if_idle(kernel_id)
            return
        idle = datetime.now(UTC) - kernel.last_activity
        if (
            idle <= timedelta(seconds=await self._in_thread(self._cull_seconds, kernel.kernel_name))
            or (kernel.execution_state in ("busy", "unresponsive") and not self.cull_busy)
            or (kernel.connections and not self.cull_connected)
        ):
            return
        [stop] = await decide([kernel], self._keep_when_culling, self._workspace, is_last=True)
        if stop.goes_on:
            return  # whoever made or shares it decides; its keeper ends it when nobody has touched it for a day
        seconds = int(idle.total_seconds())
        self.log.warning("Culling session %s (%s), idle for %d seconds", kernel.name, kernel_id, seconds)
        await self.close_session(
            kernel, self.people.owner, client=f"jupyter server: culled, idle for {seconds} s"
        )

    @property
    def _keep_when_culling(self) -> Keep:
        """Idle kernels are culled because somebody said so; only what is shared is spared."""
        return "none" if self._settings is not None and self._settings.keep_sessions == "none" else "shared"

    def _cull_seconds(self, kernel_name: str) -> int:
        try:
            metadata = self._specs.get_kernel_spec(kernel_name).metadata
        except NoSuchKernel:
            return int(self.cull_idle_timeout)
        return int(metadata.get("cull_idle_timeout", self.cull_idle_timeout))

    # ------------------------------------------------------------------ the end of the server

    async def _async_shutdown_all(self, now: bool = False) -> None:
        """End what ends with the server, leave the rest as it is, and say so."""
        if self._look_task is not None:
            self._look_task.cancel()
            await asyncio.gather(self._look_task, return_exceptions=True)
        plain = [
            kernel_id for kernel_id, kernel in self._kernels.items() if not isinstance(kernel, SessionKernel)
        ]
        await asyncio.gather(
            *(super(SessionKernelManager, self)._async_shutdown_kernel(k, now=now) for k in plain)
        )
        stops = await self._stops()
        await asyncio.gather(*(self._end(stop) for stop in stops if not stop.goes_on))
        await asyncio.gather(*(stop.session.stop() for stop in stops))
        for line in last_words(stops):
            self.log.warning("%s", line)
        if self._settings is not None:
            self._workspace.leave()
            self._threads.shutdown(wait=False)

    shutdown_all = _async_shutdown_all  # type: ignore[assignment]

    async def _stops(self) -> list[Stop]:
        if self._settings is None:
            return []
        is_last = await self._in_thread(self._workspace.is_last)
        return await decide(self.sessions(), self._settings.keep_sessions, self._workspace, is_last=is_last)

    async def _end(self, stop: Stop) -> None:
        try:
            await self.close_session(stop.session, self.people.owner, client="jupyter server: it stops")
        except web.HTTPError as error:
            self.log.error("Session %s could not be ended: %s", stop.session.name, error)

    async def _in_thread(self, function: Any, *args: Any) -> Any:
        """Run what reads files, or starts a process, beside the loop and beside other people's thread pool."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)


def is_kernel_id(value: object) -> bool:
    """Whether a client's choice can be the id of a session."""
    try:
        return str(uuid.UUID(str(value))) == value
    except ValueError:
        return False


def _checked_id(kernel_id: str) -> str:
    if is_kernel_id(kernel_id):
        return kernel_id
    raise problem(400, f"a kernel id is a UUID in lower case, not {kernel_id!r}")


def _find_pointer(kernel_id: str) -> Pointer | None:
    try:
        found = Registry.of_user().resolve(kernel_id)
    except UnknownSession:
        return None
    pointer = found.pointer
    is_reachable = (
        found.is_live and pointer is not None and pointer.link is not None and pointer.id == kernel_id
    )
    return pointer if is_reachable else None


def _forget_ended(workspace: Workspace) -> None:
    workspace.forget_all_but(pointer.id for pointer in Registry.of_user().list_pointers())


def _mtime(registry: Registry) -> int:
    try:
        return os.stat(registry.pointers).st_mtime_ns
    except FileNotFoundError:
        return 0


def keeper_knows(kernel_name: str) -> bool:
    """Whether a keeper, which looks where `jupyter kernelspec list` does, finds this specification."""
    try:
        KernelSpecManager().get_kernel_spec(kernel_name)
    except NoSuchKernel:
        return False
    return True
