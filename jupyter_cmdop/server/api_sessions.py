"""Routes about sessions as such: list, make, look at, rename, restart, close, and who has a grant."""

from __future__ import annotations

import msgspec
from jupyter_server.utils import url_path_join

from jupyter_cmdop.client import shapes
from jupyter_cmdop.client.calls import Call, invite
from jupyter_cmdop.client.errors import ClientError
from jupyter_cmdop.core.refusal import Refusal

from .api_base import ApiHandler, OfOneSession, Verb, verb
from .api_errors import refused
from .api_shapes import CloseQuery, Create, MakeGrant, Nothing, Rename, SessionList
from .session_kernel import RESTART_SECONDS


class SessionsHandler(ApiHandler):
    @verb(Verb("list_sessions", "The live sessions that you may know of", {200: SessionList}))
    async def get(self) -> None:
        await self.answer(SessionList(sessions=await self.api.sessions(self.person)))

    @verb(
        Verb(
            "create_session",
            "Make a session, or find the one of this name with `attach`",
            {201: shapes.NewSession, 200: shapes.NewSession},
            body=Create,
            action="write",
        )
    )
    async def post(self, body: Create) -> None:
        made, is_new = await self.api.create(body, self.person)
        self.set_header("Location", url_path_join(self.base_url, "cmdop", "api", "sessions", made.id))
        await self.answer(made, status=201 if is_new else 200)


class SessionHandler(OfOneSession, ApiHandler):
    @verb(
        Verb(
            "read_session",
            "How a session is: who is there, who drives, what runs and waits",
            {200: shapes.Status},
        )
    )
    async def get(self, name: str) -> None:
        async with self.api.open(name, self.person, client=self.client) as session:
            status = await session.status()
        if self.person.role != "owner" and status.journal is not None:
            # Where it lies on the disk of the server concerns only whose disk it is.
            status = msgspec.structs.replace(
                status, journal=msgspec.structs.replace(status.journal, path=None), cwd=None, workspace=None
            )
        await self.answer(status)

    @verb(
        Verb("rename_session", "Give it another name", {200: shapes.Renamed}, body=Rename, action="write"),
    )
    async def patch(self, name: str, body: Rename) -> None:
        async with self.api.open(name, self.person, client=self.client) as session:
            await self.answer(await session.rename(body.name))

    @verb(
        Verb("close_session", "End it for everybody", {200: shapes.Closed}, query=CloseQuery, action="write"),
    )
    async def delete(self, name: str, query: CloseQuery) -> None:
        async with self.api.open(name, self.person, client=self.client) as session:
            try:
                closed = await session.close(force=query.force)
            except ClientError as error:
                self.api.manager.tell_done(session.id, "shutdown", error)
                raise
            self.api.manager.tell_done(session.id, "shutdown")
        await self.answer(closed)


class RestartHandler(OfOneSession, ApiHandler):
    @verb(
        Verb(
            "restart",
            "Begin a new incarnation of its backend",
            {200: shapes.Restarted},
            body=Nothing,
            action="write",
        )
    )
    async def post(self, name: str, body: Nothing) -> None:
        async with self.api.open(name, self.person, client=self.client) as session:
            call = Call("restart", {}, shapes.Restarted)
            try:
                result = await session.connection.request(
                    call.verb, call.args, timeout_seconds=RESTART_SECONDS
                )
            except ClientError as error:
                self.api.manager.tell_done(session.id, "restart", error)
                raise
            self.api.manager.tell_done(session.id, "restart")
        await self.answer(call.read(result))


class GrantsHandler(OfOneSession, ApiHandler):
    @verb(Verb("list_grants", "Who was invited", {200: shapes.Grants}))
    async def get(self, name: str) -> None:
        async with self.api.open(name, self.person, client=self.client) as session:
            found = await session.grants()
        await self.answer(shapes.Grants(grants=tuple([self._shown(grant) for grant in found])))

    def _shown(self, grant: shapes.GrantItem) -> shapes.GrantItem:
        return grant if self.person.role == "owner" else msgspec.structs.replace(grant, connection_file=None)

    @verb(
        Verb(
            "make_grant",
            "Invite somebody; the token is in this one answer",
            {201: shapes.Invite},
            body=MakeGrant,
            action="write",
        )
    )
    async def post(self, name: str, body: MakeGrant) -> None:
        if body.transport == "tcp" and self.person.role != "owner":
            raise refused(Refusal("forbidden", "only the owner opens a port").to_dict())
        call = invite(
            body.actor,
            kind=body.kind,
            role=body.role,
            expires_seconds=body.expires_seconds,
            transport=body.transport,
        )
        async with self.api.open(name, self.person, client=self.client) as session:
            made = call.read(await session.connection.request(call.verb, call.args))
        await self.answer(made, status=201)


class GrantHandler(OfOneSession, ApiHandler):
    @verb(
        Verb(
            "revoke",
            "Take a grant back, or all of an actor; what was opened with it closes",
            {200: shapes.Revoked},
            action="write",
        )
    )
    async def delete(self, name: str, grant: str) -> None:
        async with self.api.open(name, self.person, client=self.client) as session:
            await self.answer(await session.revoke(grant))
