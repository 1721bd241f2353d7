"""One session as the Jupyter server sees it: what its keeper last said, and a link on which it says it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from jupyter_client.asynchronous.client import AsyncKernelClient

from jupyter_cmdop.client import calls
from jupyter_cmdop.client.aio import AsyncConnection
from jupyter_cmdop.client.errors import ClientError, KeeperGone, Refused, RequestFailed, UnknownSession
from jupyter_cmdop.client.registry import Found, Registry
from jupyter_cmdop.clocks import LastMoment
from jupyter_cmdop.core.refusal import Refusal

from .events import JOURNAL_TYPES, Action
from .identity import Person
from .inside import InsideClients
from .metrics import Measured

log = logging.getLogger(__name__)

CLIENT = "jupyter server"
POLL_SECONDS = 5.0
"""How often a keeper that does not know `activity` (an older one) is asked for its status."""
AGAIN_SECONDS = 0.5
"""After which a keeper that lives but has lost our link is asked again."""
SILENT_SECONDS = 2.0
"""After which a keeper that has said nothing is asked whether it is there."""
ANSWER_SECONDS = 2.0
"""After which one that does not answer that is called unresponsive."""
COUNTED_SECONDS = 1.0
"""After which a keeper has told of a websocket that it was given, if it is still there."""
JOURNAL_AGAIN_SECONDS = 60.0
"""After which a journal that could not be read is followed again."""
RESTART_SECONDS = 120.0

RestartEvent = Literal["restart", "dead"]


class SessionKernel:
    """Stands in a kernel manager's mapping where a stock server has the manager of a child process.

    Attributes:
        kernel_name: name of the kernel specification.
        connections: how many kernel-protocol clients and websockets the session has.
        reason: why it is not simply alive, as in the stock model.
    """

    def __init__(
        self,
        kernel_id: str,
        *,
        name: str,
        kernel_name: str,
        link: str,
        workspace: str | None,
        changed: Callable[[SessionKernel], None],
        noticed: Callable[[SessionKernel, str, str], None],
        gone: Callable[[SessionKernel, str, str], None],
        recorded: Callable[[SessionKernel, Mapping[str, Any]], None],
        acted: Callable[[SessionKernel, Action, ClientError | None], None],
        person: Callable[[], Person],
    ) -> None:
        self.kernel_id = kernel_id
        self.name = name
        self.kernel_name = kernel_name
        self.link = link
        self.workspace = workspace
        self.execution_state = "starting"
        self._active = LastMoment()
        self.connections = 0
        self._told_connections = 0
        self.incarnation = 0
        self.reason = ""
        self._changed = changed
        self._noticed = noticed
        self._is_unresponsive = False
        self._heard_at = time.monotonic()
        self._last_said: Mapping[str, Any] = {}
        self._gone = gone
        self._recorded = recorded
        self._acted = acted
        self._cwd: str | None = None
        self._handing_over = 0
        self._person = person
        self.inside = InsideClients(lambda: self.name, link, person)
        self._restart_callbacks: dict[RestartEvent, list[Callable[[], Any]]] = {"restart": [], "dead": []}
        self._callbacks: set[asyncio.Task[Any]] = set()
        self._measured = Measured()
        self._seq: int | None = None
        self._heard = asyncio.Event()
        self._connection: AsyncConnection | None = None
        self._task: asyncio.Task[None] | None = None

    # --- what others read

    def model(self) -> dict[str, Any]:
        """The stock model of a kernel; `cmdop` is an addition that stock clients do not look at."""
        model = {
            "id": self.kernel_id,
            "name": self.kernel_name,
            "last_activity": self.last_activity.isoformat().replace("+00:00", "Z"),
            "execution_state": self.execution_state,
            "connections": self.connections,
            "cmdop": {"session": self.name, "incarnation": self.incarnation},
        }
        if self.reason:
            model["reason"] = self.reason
        return model

    @property
    def last_activity(self) -> datetime:
        """By the wall clock as it goes now: one that was set ahead has not made the session idle."""
        return self._active.moment

    @property
    def has_kernel(self) -> bool:
        return True

    async def is_alive(self) -> bool:
        return self.execution_state != "dead"

    # --- as a kernel manager, for other extensions of the server

    @property
    def client_factory(self) -> type[AsyncKernelClient]:
        return AsyncKernelClient

    client_class = "jupyter_client.asynchronous.AsyncKernelClient"

    @property
    def connection_file(self) -> str:
        return self.inside.held().connection_file

    def get_connection_info(self, session: bool = False) -> dict[str, Any]:
        """A connection of its own for whoever asks; the kernel's is nobody's."""
        info = self.inside.connection_info()
        if session:
            made = self.inside.client().session
            info = {name: value for name, value in info.items() if name not in ("key", "signature_scheme")}
            info["session"] = made
        return info

    def client(self, **kwargs: Any) -> AsyncKernelClient:
        return self.inside.client(**kwargs)

    async def interrupt_kernel(self) -> None:
        await self.interrupt(self._person())

    async def restart_kernel(self, now: bool = False, newports: bool = False, **kwargs: Any) -> None:
        await self.restart(self._person())

    async def shutdown_kernel(self, now: bool = False, restart: bool = False) -> None:
        await (self.restart if restart else self.close)(self._person())

    def add_restart_callback(self, callback: Callable[[], Any], event: RestartEvent = "restart") -> None:
        self._restart_callbacks[event].append(callback)

    def remove_restart_callback(self, callback: Callable[[], Any], event: RestartEvent = "restart") -> None:
        if callback in self._restart_callbacks[event]:
            self._restart_callbacks[event].remove(callback)

    def _tell(self, event: RestartEvent) -> None:
        for callback in list(self._restart_callbacks[event]):
            try:
                made = callback()
            except Exception:  # an extension's fault is not ours to end with
                log.exception("an extension failed when told that the kernel of %s is %s", self.name, event)
                continue
            if inspect.isawaitable(made):
                task: asyncio.Task[Any] = asyncio.ensure_future(made)
                self._callbacks.add(task)
                task.add_done_callback(self._callbacks.discard)

    async def resolve_path(self, path: str) -> str | None:
        """The file that `path` is for the kernel; a relative one starts where the kernel was started."""
        return await asyncio.to_thread(_resolve, self._cwd, path)

    @contextmanager
    def handing_over(self) -> Iterator[None]:
        """Count a websocket from now on: its client has its answer, and may ask, before the keeper's word is here.

        The keeper's word is that of changes only: of a websocket that is closed at once it need not say anything.
        """
        self._handing_over += 1
        self.connections += 1
        try:
            yield
        except BaseException:
            self.connections -= 1
            raise
        finally:
            self._handing_over -= 1
            asyncio.get_running_loop().call_later(COUNTED_SECONDS, self._count_as_told)

    def _count_as_told(self) -> None:
        if not self._handing_over and self.connections != self._told_connections:
            self.connections = self._told_connections
            self._changed(self)

    # --- watching

    def watch(self) -> None:
        """Follow what the keeper says until it ends or `stop`."""
        if self._task is None:
            self._task = asyncio.create_task(self._follow(), name=f"cmdop watch {self.name}")

    async def heard(self, timeout_seconds: float) -> bool:
        """Wait until the keeper has said something; False when it has not in this time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._heard.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Stop following; the session goes on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self.inside.close()

    async def ask(self, verb: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask on the server's own link, as the owner.

        Raises:
            ClientError: there is no link now, or the keeper's answer.
        """
        if self._connection is None:
            raise KeeperGone(f"{self.name} does not answer at the moment")
        return await self._connection.request(verb, args, timeout_seconds=5.0)

    async def _follow(self) -> None:
        try:
            await self._follow_links()
        finally:
            self._measured.gone()

    async def _follow_links(self) -> None:
        while True:
            try:
                async with await AsyncConnection.connect(self.link, client=CLIENT) as connection:
                    self._connection = connection
                    self._cwd = connection.welcome.session.get("cwd")
                    async with (
                        self._beside(self._follow_journal(connection), "journal"),
                        self._beside(self._watch_keeper(connection), "keeper"),
                    ):
                        await self._listen(connection)
            except (ClientError, OSError) as error:
                log.debug("the link of %s (%s) ended: %s", self.name, self.kernel_id, error)
            finally:
                self._connection = None
            end = await asyncio.to_thread(why_gone, self.kernel_id)
            if end is not None:
                self.execution_state, self.reason = "dead", end[1]
                self._heard.set()
                self._gone(self, *end)
                self._tell("dead")
                self.inside.close()
                return
            await asyncio.sleep(AGAIN_SECONDS)

    async def _listen(self, connection: AsyncConnection) -> None:
        try:
            async with await connection.stream("activity", {}) as stream:
                async for item in stream:
                    self._take(item.data)
        except RequestFailed as error:
            if error.code != "unknown_verb":
                raise
            await self._poll(connection)

    @asynccontextmanager
    async def _beside(self, work: Coroutine[Any, Any, None], what: str) -> AsyncIterator[None]:
        """Do `work` beside whatever else happens on a link, and no longer than that."""
        task = asyncio.create_task(work, name=f"cmdop {what} {self.name}")
        try:
            yield
        finally:
            task.cancel()
            [failure] = await asyncio.gather(task, return_exceptions=True)
            if isinstance(failure, Exception):
                log.error("the %s of %s was not followed to the end", what, self.name, exc_info=failure)

    async def _watch_keeper(self, connection: AsyncConnection) -> None:
        """Notice a keeper that is there and does not answer, as long as this link lasts."""
        self._heard_at = time.monotonic()
        while connection.failure is None:
            quiet = time.monotonic() - self._heard_at
            if quiet < SILENT_SECONDS:
                await asyncio.sleep(SILENT_SECONDS - quiet)
                continue
            # One question, however long the silence: its answer is the first word.
            asked = asyncio.create_task(connection.request("ping", {}, timeout_seconds=None))
            try:
                answered, _ = await asyncio.wait({asked}, timeout=ANSWER_SECONDS)
                if not answered:
                    self._judge(f"its keeper has not answered for {SILENT_SECONDS + ANSWER_SECONDS:.0f} s")
                await asked
            except RequestFailed:
                pass  # an older keeper does not know the question, and has answered it
            except ClientError:
                return  # the link has ended, of which `activity` tells
            finally:
                asked.cancel()
            self._heard_at = time.monotonic()
            if self._is_unresponsive and self._last_said:
                self._take(self._last_said)

    def _judge(self, unresponsive: str) -> None:
        """Show what the session's state has become, and tell of a change."""
        if unresponsive:
            self.execution_state, self.reason = "unresponsive", unresponsive
        if bool(unresponsive) != self._is_unresponsive:
            self._is_unresponsive = bool(unresponsive)
            self._noticed(self, "unresponsive" if unresponsive else "responsive", unresponsive)

    async def _poll(self, connection: AsyncConnection) -> None:
        while True:
            self._take(await connection.request("status", {}))
            await asyncio.sleep(POLL_SECONDS)

    async def _follow_journal(self, connection: AsyncConnection) -> None:
        """Read on from where the journal ended when the session was taken up, page by page, as fast as we are."""
        if self._seq is None:
            self._seq = _head(connection.welcome.session)
        if self._seq is None:
            log.warning("the keeper of %s does not say where its journal ends: it is not followed", self.name)
            return
        while connection.failure is None:
            wanted = calls.log(after=self._seq, types=(*JOURNAL_TYPES, "revoked"), follow=True)
            try:
                async with await connection.stream(wanted.verb, wanted.args) as stream:
                    async for item in stream:
                        self._hand_on(item.data.get("entry"))
                        await asyncio.sleep(0)  # others have their turn, however many entries are there
            except RequestFailed as error:
                log.warning("the journal of %s cannot be followed at the moment: %s", self.name, error)
            except ClientError:
                return  # the link has ended, of which `activity` tells
            await asyncio.sleep(JOURNAL_AGAIN_SECONDS)

    def _hand_on(self, entry: object) -> None:
        if not isinstance(entry, Mapping):
            return
        seq = entry.get("seq")
        if isinstance(seq, int):
            self._seq = seq
        if entry.get("type") == "revoked":
            self.inside.revoked(str(entry.get("grant")))
        else:
            self._recorded(self, entry)

    def _take(self, said: Mapping[str, Any]) -> None:
        self._heard_at, self._last_said = time.monotonic(), said
        self.name = str(said.get("name") or self.name)
        self.execution_state = str(said.get("execution_state") or self.execution_state)
        told = self._told_connections = int(said.get("connections") or 0)
        self.connections = max(told, self.connections) if self._handing_over else told
        earlier, self.incarnation = self.incarnation, int(said.get("incarnation") or 0)
        if 0 < earlier < self.incarnation:
            self._tell("restart")
        self.reason = str(said.get("reason") or "")
        active = _moment(said.get("last_activity"))
        if active is not None:
            self._active.note_past(active.timestamp())
        state = said.get("state")
        self._judge(self.reason or "its kernel does not answer" if state == "unresponsive" else "")
        self._measured.heard(said)
        self._heard.set()
        self._changed(self)

    # --- acting for somebody

    @asynccontextmanager
    async def acting(self, person: Person, *, client: str = CLIENT) -> AsyncIterator[AsyncConnection]:
        """A link on which everything is done in this person's name.

        Raises:
            Refused: he may not, or the keeper is too old to be told who asks.
        """
        async with await AsyncConnection.connect(
            self.link, identity=person.identity(), client=client
        ) as connection:
            if connection.welcome.actor.get("id") != person.actor.id:
                raise Refused(
                    Refusal("unsupported", f"the keeper of {self.name} is too old to be told who asks")
                )
            yield connection

    @asynccontextmanager
    async def _telling(self, action: Action) -> AsyncIterator[None]:
        try:
            yield
        except ClientError as error:
            self._acted(self, action, error)
            raise
        self._acted(self, action, None)

    async def interrupt(self, person: Person) -> None:
        async with self._telling("interrupt"), self.acting(person) as link:
            await link.request("interrupt", {"operation": None})

    async def restart(self, person: Person) -> None:
        """Return when the new incarnation can be used; several who ask at once get one restart."""
        async with self._telling("restart"), self.acting(person) as link:
            result = await link.request("restart", {}, timeout_seconds=RESTART_SECONDS)
            earlier, self.incarnation = (
                self.incarnation,
                int(result.get("incarnation") or self.incarnation),
            )
        if 0 < earlier < self.incarnation:
            self._tell("restart")

    async def close(self, person: Person, *, client: str = CLIENT) -> None:
        """End the session for everybody. One that has ended already is as well."""
        async with self._telling("shutdown"):
            try:
                async with self.acting(person, client=client) as link:
                    await link.request("close", {"force": True})
            except KeeperGone:
                if await asyncio.to_thread(why_gone, self.kernel_id) is None:
                    raise


def why_gone(kernel_id: str) -> tuple[str, str] | None:
    """Say how a session ended, (`closed` or `lost`, why); None while its keeper lives."""
    registry = Registry.of_user()
    try:
        registry.sweep()
        found: Found = registry.resolve(kernel_id)
    except UnknownSession:
        return "closed", "it was closed"
    except ClientError as error:
        log.warning("the registry cannot be read: %s", error)
        return None
    if found.is_live:
        return None
    is_closed = found.record is not None and found.record.state == "closed"
    return ("closed" if is_closed else "lost"), found.liveness.reason


def _resolve(directory: str | None, path: str) -> str | None:
    try:
        found = Path(path).expanduser()
        if not found.is_absolute():
            if directory is None:
                return None
            found = (Path(directory) / found).resolve()
        return found.as_posix() if found.exists() else None
    except (OSError, RuntimeError, ValueError):  # no such user's home, a loop of links, a null byte
        return None


def _head(status: Mapping[str, Any]) -> int | None:
    """The number of the journal's last entry, as a keeper's hello has it."""
    journal = status.get("journal")
    seq = journal.get("seq") if isinstance(journal, Mapping) else None
    return seq if isinstance(seq, int) else None


def _moment(text: object) -> datetime | None:
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
