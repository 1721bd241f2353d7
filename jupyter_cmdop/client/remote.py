"""A Jupyter server somewhere else: its address, the credential for it, and what its refusals mean.

The credential comes from a file that only its owner may read, and travels in the Authorization header. It is never in a
URL, in arguments or in a message: those end up in histories and logs.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from jupyter_cmdop._version import __version__
from jupyter_cmdop.core.refusal import Refusal

from .errors import (
    BadAnswer,
    ClientError,
    GrantFileError,
    Refused,
    RequestFailed,
    ServerProblem,
    UnknownSession,
    refusal_from,
)
from .identity import read_private_file

if TYPE_CHECKING:
    from . import shapes

ANSWER_SECONDS = 30.0
ANSWER_BYTES = 64 * 1024 * 1024
_SHOWN_CHARACTERS = 300
_BUSY = frozenset({408, 424, 425, 429, 500, 502, 503, 504})
"""Statuses of proxies, of a Hub, and of a server that is starting or ending: the same may succeed in a moment."""


@dataclass(frozen=True, slots=True)
class Credential:
    """What opens a server, or one session of it.

    Attributes:
        session: id of the only session that it opens; None for a server's own token.
        url: where it is good, when its file says so.
    """

    token: str = field(repr=False)
    session: str | None = None
    actor: str | None = None
    url: str | None = None


def read_credential(path: Path) -> Credential:
    """Read a file that `invite` wrote, or one that holds nothing but a server's token.

    Raises:
        GrantFileError: it cannot be read, others may read it, or nothing of the kind is in it.
    """
    raw = read_private_file(path)
    try:
        text = raw.decode().strip()
        if not text.startswith("{"):
            return Credential(_checked_token(text))
        data = json.loads(text)
        grant = data["cmdop"]
        url = data.get("url")
        return Credential(
            _checked_token(str(grant["token"])),
            session=str(grant["session"]),
            actor=str(grant["actor"]),
            url=url if isinstance(url, str) else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise GrantFileError(
            f"{path} holds no credential: neither a grant that `jupyter cmdop invite` wrote, nor a token alone",
            next=("jupyter cmdop invite NAME --as ID --grant-file-out FILE",),
        ) from error


def _checked_token(token: str) -> str:
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("no token")
    return token


def checked_url(url: str) -> str:
    """The server's base URL, ending in one slash.

    Raises:
        RequestFailed: it is no such URL, or holds a secret.
    """
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise RequestFailed("bad_url", f"this is no URL: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        message = "the URL of a server begins with http:// or https://"
        raise RequestFailed("bad_url", message, next=("--url https://HOST/BASE/",))
    if parts.query or parts.fragment or parts.username is not None or parts.password is not None:
        raise RequestFailed(
            "bad_url",
            "a credential does not belong into a URL, where histories and logs keep it",
            next=("put the token alone into a file (chmod 600), and give --grant-file FILE",),
        )
    path = parts.path.rstrip("/")
    for page in ("/lab", "/tree"):  # what a browser shows, and people copy
        path = path.removesuffix(page)
    return f"{parts.scheme}://{parts.netloc}{path}/"


@dataclass(frozen=True, slots=True)
class Server:
    """A Jupyter server with this extension."""

    url: str
    credential: Credential | None = None
    ca_file: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        if self.credential is None:
            return {}
        return {"Authorization": f"token {self.credential.token}"}

    @property
    def user_agent(self) -> str:
        return f"jupyter_cmdop/{__version__}"

    def address(self, *path: str, websocket: bool = False) -> str:
        base = f"ws{self.url.removeprefix('http')}" if websocket else self.url
        return base + "/".join(quote(part, safe="@") for part in path)

    def tls(self) -> ssl.SSLContext | None:
        """How to verify the server; None without TLS.

        Raises:
            RequestFailed: `ca_file` is no file of certificates.
        """
        if not self.url.startswith("https:"):
            return None
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ValueError) as error:
            raise RequestFailed("bad_ca_file", f"{self.ca_file} holds no certificate: {error}") from error

    # --- plain requests

    def sessions(self) -> list[shapes.LsItem]:
        """The sessions that this credential may know of."""
        from . import shapes

        found = self.ask("GET", "cmdop", "api", "sessions")
        return list(shapes.read_as(tuple[shapes.LsItem, ...], found.get("sessions", ())))

    def create(self, name: str, **options: Any) -> shapes.NewSession:
        """Make a session; options that are None are the server's to choose."""
        from . import shapes

        body = {"name": name, **{key: value for key, value in options.items() if value is not None}}
        return shapes.read_as(shapes.NewSession, self.ask("POST", "cmdop", "api", "sessions", body=body))

    def ask(self, method: str, *path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One request, answered with a JSON object.

        Raises:
            Refused, UnknownSession, ServerProblem, RequestFailed, BadAnswer: as their names say.
        """
        import urllib.error
        import urllib.request

        headers = {**self.headers, "User-Agent": self.user_agent, "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(  # noqa: S310 (checked_url lets http and https through)
            self.address(*path), data=data, method=method, headers=headers
        )
        opener = urllib.request.build_opener(_no_redirect(), urllib.request.HTTPSHandler(context=self.tls()))
        try:
            with opener.open(asked, timeout=ANSWER_SECONDS) as answer:
                raw = answer.read(ANSWER_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                raise self.explain(error.code, error.read(ANSWER_BYTES), dict(error.headers)) from error
        except urllib.error.URLError as error:
            reason = error.reason
            raise self.unreachable(reason if isinstance(reason, Exception) else error) from error
        except OSError as error:
            raise self.unreachable(error) from error
        try:
            found = json.loads(raw)
        except ValueError as error:
            raise BadAnswer(f"{self.url} answers with something else than JSON") from error
        if not isinstance(found, dict):
            raise BadAnswer(f"{self.url} answers with something else than an object")
        return found

    # --- what goes wrong

    def explain(self, status: int, body: bytes, headers: Mapping[str, str], name: str = "") -> ClientError:
        """What an answer that is no success means."""
        problem = _problem(body)
        refusal = problem.get("refusal")
        message = str(problem.get("message") or "")[:_SHOWN_CHARACTERS]
        following = problem.get("next")
        helps = tuple(str(item) for item in following) if isinstance(following, list) else ()
        if isinstance(refusal, dict):
            return Refused(refusal_from(refusal))
        if status in (401, 403, 407):
            return self._not_let_in(status, message)
        if status == 404 and problem.get("code") == UnknownSession.code:
            return UnknownSession(name, reason=message, next=(f"jupyter cmdop --url {self.url} ls",))
        if status in _BUSY:
            said = f": {message}" if message else ""
            return ServerProblem(
                f"the server at {self.url} cannot answer now (HTTP {status}{said})",
                may_pass=True,
                next=helps or ("try again in a moment", "look whether the server behind the proxy runs"),
            )
        if status in (400, 409, 413, 422) and message:
            return RequestFailed(str(problem.get("code") or "bad_request"), message, next=helps)
        return self._no_server(status, headers)

    def _not_let_in(self, status: int, message: str) -> ClientError:
        if self.credential is None:
            message = f"the server at {self.url} wants a credential"
            helps: tuple[str, ...] = ("--grant-file FILE", "CMDOP_GRANT_FILE=FILE")
        elif self.credential.session is not None:
            message = message or f"the server at {self.url} does not take this grant (HTTP {status})"
            helps = ("ask for a new invitation",)
        else:
            message = f"the server at {self.url} does not take this token (HTTP {status})"
            helps = ("jupyter server list, on that machine, shows the token that it wants",)
        return Refused(Refusal(code="forbidden", message=message, next=helps))

    def _no_server(self, status: int, headers: Mapping[str, str]) -> ServerProblem:
        if 300 <= status < 400:
            place = urlsplit(next((v for k, v in headers.items() if k.lower() == "location"), ""))
            # Its query may hold what is nobody's business.
            target = f"{place.scheme}://{place.netloc}{place.path}" if place.netloc else place.path
            return ServerProblem(
                f"{self.url} sends its visitors to {target or 'another address'}: that is a login page, or the "
                "server's right address",
                next=(
                    "--url with the server's right address",
                    "on a JupyterHub: --url https://HUB/user/NAME/",
                ),
            )
        what = "a page" if 200 <= status < 300 else f"HTTP {status}"
        return ServerProblem(
            f"{self.url} answers with {what}: no Jupyter server with jupyter_cmdop is at this address",
            next=(
                "--url with the address that `jupyter server list` shows there, without /lab",
                "jupyter server extension list, on that machine",
                "a proxy must pass websockets on (Upgrade and Connection headers)",
            ),
        )

    def unreachable(self, error: Exception) -> ServerProblem:
        """What a connection that did not come to be means."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return ServerProblem(
                f"the certificate of {self.url} cannot be verified: {error.verify_message}",
                next=("--ca-file FILE, with the certificate of whoever signed it",),
            )
        if isinstance(error, ssl.SSLError):
            return ServerProblem(
                f"{self.url} does not speak TLS as it should ({error.reason or error})",
                next=("--url http://…, if it does not speak TLS at all",),
            )
        if isinstance(error, TimeoutError):
            why = "does not answer in time"
        else:
            why = f"cannot be reached ({getattr(error, 'strerror', None) or error})"
        return ServerProblem(
            f"the server at {self.url} {why}",
            may_pass=True,
            next=("look whether it runs, and whether a firewall is in between",),
        )


def _problem(body: bytes) -> dict[str, Any]:
    """What an answer of ours says; of anybody else's page nothing is shown."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(data, dict):
        return {}
    found = data.get("error", data)
    if not isinstance(found, dict):
        return {}
    if isinstance(data.get("refusal"), dict):
        found = {**found, "refusal": data["refusal"]}
    return found


def _no_redirect() -> Any:
    """Nobody else gets the credential, whatever the server says."""
    import urllib.request

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *args: Any) -> None:
            return None

    return Stay()
