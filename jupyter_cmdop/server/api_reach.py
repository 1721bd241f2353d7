"""From a request to a session: which one is meant, may this person know of it, and a link on which he speaks himself.

Nothing here decides what somebody may do in a session: that is the keeper's, whom the link tells who asks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from jupyter_client.kernelspec import NoSuchKernel

from jupyter_cmdop.client import places, shapes
from jupyter_cmdop.client.aio_session import AsyncSession
from jupyter_cmdop.client.census import take_census
from jupyter_cmdop.client.errors import ClientError, KeeperGone, Refused, UnknownSession
from jupyter_cmdop.client.registry import Found, Pointer, Registry
from jupyter_cmdop.client.spawn import Spawned, spawn
from jupyter_cmdop.core.refusal import Refusal

from .api_errors import ApiError
from .api_limits import ActLimit
from .api_shapes import Create
from .identity import People, Person
from .kernel_manager import SPAWNS_AT_ONCE, SessionKernelManager, keeper_knows
from .session_kernel import why_gone
from .websockets_open import OpenWebsockets
from .workspace import Workspace

T = TypeVar("T")
MAX_FEEDS = 64
"""Open feeds of one actor; each has a link to every session that it tells of."""
ATTACH_SECONDS = 60.0
"""How long somebody who attaches waits for a session that another one is just making."""
LOOK_AGAIN_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Known:
    """A live session that this person may know of."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A session that has ended and left its journal."""

    name: str
    directory: Path


class Api:
    """What the handlers of the HTTP API share."""

    def __init__(
        self,
        manager: SessionKernelManager,
        people: People,
        workspace: Workspace,
        websockets: OpenWebsockets,
        *,
        root: str,
        acts_per_minute: int,
        patience_seconds: float,
    ) -> None:
        self.people = people
        self.websockets = websockets
        self.manager = manager
        self.limit = ActLimit(acts_per_minute)
        self.patience_seconds = patience_seconds
        self._feeds: Counter[str] = Counter()
        self.workspace = workspace
        self._root = root
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="cmdop api")
        # Making a session takes seconds: whoever only looks does not wait behind it.
        self._makers = ThreadPoolExecutor(SPAWNS_AT_ONCE, thread_name_prefix="cmdop api make")

    def feed_opened(self, actor: str) -> None:
        """Count a feed.

        Raises:
            Refused: this actor has as many as one may have.
        """
        if self._feeds[actor] >= MAX_FEEDS:
            message = f"{actor} has {MAX_FEEDS} feeds open, which is the limit"
            raise Refused(Refusal("queue_full", message, next=("close one of them",)))
        self._feeds[actor] += 1

    def feed_closed(self, actor: str) -> None:
        self._feeds[actor] -= 1
        if not self._feeds[actor]:
            del self._feeds[actor]

    def close(self) -> None:
        for threads in (self._threads, self._makers):
            threads.shutdown(wait=False, cancel_futures=True)

    async def in_thread(self, function: Callable[..., T], *args: object) -> T:
        """Run what reads files or starts processes beside the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    # --- which sessions somebody may know of

    async def sessions(self, person: Person) -> tuple[shapes.LsItem, ...]:
        def look() -> tuple[shapes.LsItem, ...]:
            found = take_census(Registry.of_user())
            return tuple([item for item in found if self.workspace.may_know(person, item.id, item.workspace)])

        return await self.in_thread(look)

    def pointers(self, person: Person) -> list[Pointer]:
        """The sessions that he may know of; reads files."""
        found = Registry.of_user().list_pointers()
        return [
            pointer for pointer in found if self.workspace.may_know(person, pointer.id, pointer.workspace)
        ]

    def find(self, name: str, person: Person) -> Known:
        """Resolve a name, an id or NAME@PREFIX; reads files.

        Raises:
            UnknownSession: there is none that lives, or none that he may know of.
        """
        found = _resolve(name)
        if found is None or not self._may_know(person, found):
            raise UnknownSession(name, reason=f"no session is called {name!r}")
        if not found.is_live:
            raise UnknownSession(name, reason=f"{found.name} is not there any more: {found.liveness.reason}")
        return Known(found.id, found.name)

    def find_ended(self, name: str, person: Person) -> Ended | None:
        """The session of this name, if it has ended and he may know of it; reads files."""
        found = _resolve(name)
        if found is None or found.is_live or not self._may_know(person, found):
            return None
        directory = places.sessions_dir() / found.id
        return Ended(found.name, directory) if directory.is_dir() else None

    def _may_know(self, person: Person, found: Found) -> bool:
        known = found.pointer or found.record
        return self.workspace.may_know(person, found.id, None if known is None else known.workspace)

    # --- speaking for somebody

    @asynccontextmanager
    async def open(self, name: str, person: Person, *, client: str) -> AsyncIterator[AsyncSession]:
        """A link on which everything is done in this person's name.

        Raises:
            UnknownSession: as `find`, or it ended while something was asked.
            Refused: his grant has ended, also while something was asked.
        """
        known = await self.in_thread(self.find, name, person)
        try:
            async with await AsyncSession.open(
                known.id, identity=person.identity(), client=client
            ) as session:
                if session.actor != person.actor.id:
                    raise Refused(
                        Refusal("unsupported", f"the keeper of {known.name} is too old to be told who asks")
                    )
                yield session
        except KeeperGone as gone:
            raise await self._why(known, person) or gone from gone

    async def _why(self, known: Known, person: Person) -> ClientError | None:
        """Why a link ended: the session is over, or the grant is."""
        ended = await self.in_thread(why_gone, known.id)
        if ended is not None:
            return UnknownSession(known.name, reason=f"{known.name} has ended ({ended[0]}): {ended[1]}")
        if person.grant is None:
            return None
        try:
            async with await AsyncSession.open(known.id, identity=person.identity()):
                return None
        except ClientError as error:
            return error if isinstance(error, Refused) else None

    # --- making one

    async def create(self, wanted: Create, person: Person) -> tuple[shapes.NewSession, bool]:
        """Make a session, or find the one that is there when that will do; whether it was made.

        Raises:
            ApiError, ClientError: neither.
        """
        if person.role == "observer":
            raise Refused(Refusal("forbidden", f"{person.actor.id} may only observe on this server"))
        if wanted.kind != "kernel":
            raise Refused(Refusal("unsupported", "this version has sessions with kernels only"))
        if wanted.policy is not None and person.role != "owner":
            raise Refused(
                Refusal("forbidden", "only the owner chooses the policy", next=("leave policy out",))
            )
        kernel = wanted.kernel or self.manager.default_kernel_name
        await self._check_kernel(kernel)
        cwd = await self.in_thread(self._directory, wanted.cwd)
        deadline = asyncio.get_running_loop().time() + ATTACH_SECONDS
        loop = asyncio.get_running_loop()
        while True:
            try:
                spawned = await loop.run_in_executor(self._makers, self._spawn, wanted, kernel, cwd, person)
            except Refused as refused:
                if not wanted.attach or refused.refusal.code != "name_taken":
                    raise
                found = await self._attach(wanted.name, person, deadline, refused)
                if found is not None:
                    return found, False
                continue  # whoever was making it has failed
            await self.manager.take_up(spawned.id)
            return _made(spawned), True

    async def _check_kernel(self, kernel: str) -> None:
        """Both the server, whose administrator may allow some only, and the keeper must know it."""
        specs = self.manager.kernel_spec_manager
        try:
            if specs is not None:
                await self.in_thread(specs.get_kernel_spec, kernel)
            is_known = await self.in_thread(keeper_knows, kernel)
        except NoSuchKernel:
            is_known = False
        except ValueError:  # what is no name of a specification at all
            is_known = False
        if not is_known:
            raise ApiError("unknown_kernel", f"there is no kernel specification {kernel!r} here")

    def _directory(self, below: str) -> str:
        """A directory below the server's root; a symbolic link that leads out of it does not count.

        Raises:
            ApiError: it is none.
        """
        root = Path(self._root).resolve()
        try:
            path = (root / below.strip("/")).resolve()
            if path.is_dir() and path.is_relative_to(root):
                return str(path)
        except (OSError, ValueError, RuntimeError):
            pass  # a null byte, a name that is too long, a loop of links: no directory
        raise ApiError("bad_request", f"cwd: the server's root has no directory {below!r}")

    def _spawn(self, wanted: Create, kernel: str, cwd: str, person: Person) -> Spawned:
        return spawn(
            wanted.name,
            spec=kernel,
            policy=wanted.policy,
            cwd=cwd,
            workspace=self.workspace.path,
            opened_by=person.actor.id,
        )

    async def _attach(
        self, name: str, person: Person, deadline: float, taken: Refused
    ) -> shapes.NewSession | None:
        """The session of this name, as soon as it answers; None when it has come to nothing."""
        while True:
            found = await self.in_thread(_resolve, name)
            if found is None or not found.is_live:
                return None
            if not await self.in_thread(self._may_know, person, found):
                raise taken
            pointer = found.pointer
            if pointer is not None and pointer.link is not None and found.liveness.state == "alive":
                return shapes.NewSession(
                    name=found.name,
                    id=found.id,
                    created=False,
                    kernel_id=found.id,
                    spec=pointer.spec,
                )
            if asyncio.get_running_loop().time() > deadline:
                raise ApiError("unavailable", f"{found.name} is being made, and does not answer yet")
            await asyncio.sleep(LOOK_AGAIN_SECONDS)


def _resolve(name: str) -> Found | None:
    try:
        return Registry.of_user().resolve(name)
    except UnknownSession:
        return None


def session_id_of(name: str) -> str | None:
    """The id of the session that a path names; None when nothing bears the name. Reads files."""
    found = _resolve(name)
    return None if found is None else found.id


def _made(spawned: Spawned) -> shapes.NewSession:
    return shapes.NewSession(
        name=spawned.name, id=spawned.id, created=True, kernel_id=spawned.id, spec=spawned.spec
    )
