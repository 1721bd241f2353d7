"""An identity provider of an administrator's choice, for tests: a header names the user."""

from __future__ import annotations

from typing import Any

from jupyter_server.auth import IdentityProvider, User


class ExampleIdentityProvider(IdentityProvider):
    """`X-User: alice` is alice; a request without it is judged by the server's token and the login cookie."""

    async def get_user(self, handler: Any) -> User | None:
        name = handler.request.headers.get("X-User")
        if name:
            return User(username=name, display_name=name.title())
        return await self._get_user(handler)
