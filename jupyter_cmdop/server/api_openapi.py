"""The API as an OpenAPI 3.1 document, made from the route table and the marks of its handlers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from jupyter_server.base.handlers import JupyterHandler

from jupyter_cmdop import __version__

from .api_base import Verb, verb_of
from .api_errors import STATUS_OF
from .api_shapes import ApiProblem, FeedRecord

METHODS = ("get", "post", "put", "patch", "delete")
_REF = "#/components/schemas/{name}"
_PARAMETERS = {
    "name": "Name of a session, its id, or NAME@ with the beginning of its id.",
    "grant": "Id of a grant, or of an actor for all of his.",
}
_DESCRIPTION = """\
Kernels as named, durable sessions that people and agents share.

Who asks is known by the header `Authorization: token <token>`: the server's token, that of an identity provider, or a
grant, which opens the routes below its own session. A login cookie will do in a page of this server, with the header
`X-XSRFToken`. A token in a URL is refused.

An answer that is no success is an `ApiProblem`: its `code` is stable, `next` says what helps. Long answers come in
pages: ask again with the cursor of the last one. Waiting is bounded: a 202 says where to ask again.
"""


def described(routes: Iterable[tuple[str, type[JupyterHandler]]]) -> Iterator[tuple[str, str, Verb]]:
    """Each (path template, method, mark) of the table, in its order."""
    for pattern, handler in routes:
        path = "/" + re.sub(r"\(\?P<(\w+)>[^)]*\)", r"{\1}", pattern).replace("\\", "")
        for method in METHODS:
            verb = verb_of(handler, method)
            if verb is not None:
                yield path, method, verb


def document(routes: Iterable[tuple[str, type[JupyterHandler]]]) -> dict[str, Any]:
    """The whole document."""
    found = list(described(routes))
    types = [kind for _, _, verb in found for kind in (verb.body, *verb.answers.values()) if kind is not None]
    schemas, components = msgspec.json.schema_components([ApiProblem, FeedRecord, *types], ref_template=_REF)
    of_type = dict(zip(map(repr, [ApiProblem, FeedRecord, *types]), schemas, strict=True))
    paths: dict[str, Any] = {}
    for path, method, verb in found:
        paths.setdefault(path, {})[method] = _operation(path, verb, of_type)
    for component in components.values():
        if "description" in component:
            component["description"] = component["description"].partition("\n\nAttributes:")[0]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "jupyter_cmdop",
            "version": __version__,
            "description": _DESCRIPTION,
            "license": {"name": "BSD-3-Clause", "identifier": "BSD-3-Clause"},
        },
        "servers": [{"url": "/cmdop/api", "description": "Below the base URL of a Jupyter server."}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "token": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "`token <token>`",
                }
            },
        },
        "x-error-codes": dict(sorted(STATUS_OF.items())),
    }


def _operation(path: str, verb: Verb, of_type: dict[str, Any]) -> dict[str, Any]:
    responses = {
        str(status): _response(verb, status, None if kind is None else of_type[repr(kind)])
        for status, kind in verb.answers.items()
    }
    problem = {"application/json": {"schema": of_type[repr(ApiProblem)]}}
    responses["4XX"] = {"description": "The request was not right, or was refused.", "content": problem}
    responses["5XX"] = {"description": "It cannot be done here, or not now.", "content": problem}
    operation: dict[str, Any] = {
        "operationId": verb.id,
        "summary": verb.summary,
        "parameters": [*_in_path(path), *_in_query(verb)],
        "responses": responses,
    }
    if verb.is_limited:
        operation["description"] = "Limited in number for each actor: `rate_limited`, with `Retry-After`."
        operation["parameters"] += _idempotency_key(verb)
    if verb.body is not None:
        required = bool(_schema_of(verb.body).get("required"))
        content = {"application/json": {"schema": of_type[repr(verb.body)]}}
        operation["requestBody"] = {"required": required, "content": content}
    if not operation["parameters"]:
        del operation["parameters"]
    return operation


def _response(verb: Verb, status: int, schema: dict[str, Any] | None) -> dict[str, Any]:
    described = {
        101: "The websocket is open; each message has this form.",
        200: "Done.",
        201: "Made.",
        202: "It goes on; `Location` says where to ask again.",
    }
    response: dict[str, Any] = {"description": described[status]}
    if schema is not None:
        response["content"] = {"application/json": {"schema": schema}}
        response["content"] |= {kind: {"schema": {"type": "string"}} for kind in verb.files}
    return response


def _in_path(path: str) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"\{(\w+)\}", path):
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PARAMETERS[name],
            "schema": {"type": "string", "minLength": 1},
        }


def _in_query(verb: Verb) -> Iterator[dict[str, Any]]:
    if verb.query is None:
        return
    schema = _schema_of(verb.query)
    for name, value in schema["properties"].items():
        described = dict(value)
        options = [option for option in described.get("anyOf", ()) if option != {"type": "null"}]
        if options:  # a query has no null: what is not given is left out
            described = {**options[0]}
        elif described.get("default", 0) is None:
            del described["default"]
        text = described.pop("description", "") or value.get("description", "")
        yield {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            **({"description": text} if text else {}),
            "schema": described,
        }


def _idempotency_key(verb: Verb) -> list[dict[str, Any]]:
    if verb.body is None or "request_id" not in _schema_of(verb.body)["properties"]:
        return []
    return [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "The same as `request_id` in the body.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 256},
        }
    ]


def _schema_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    [_], components = msgspec.json.schema_components([kind], ref_template=_REF)
    return dict(components[kind.__name__])


def written(routes: Iterable[tuple[str, type[JupyterHandler]]]) -> str:
    """The document as the text of `openapi.json`."""
    return msgspec.json.format(msgspec.json.encode(document(routes)), indent=1).decode() + "\n"
