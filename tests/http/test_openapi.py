"""The OpenAPI file: it is a good one, it is that of the route table, and the handlers keep to it."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from openapi_spec_validator import validate
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from jupyter_cmdop.server import api_openapi, api_routes
from tests.http.rest import Api
from tests.server.jupyter import Server

DOCUMENT: dict[str, Any] = json.loads(api_routes.OPENAPI_FILE.read_text(encoding="utf-8"))
EXAMPLES = int(os.environ.get("CMDOP_SCHEMA_EXAMPLES", "6"))
# A generated cell could do anything, a restart takes a second, and a websocket is no plain request: those have tests
# of their own.
LEFT_OUT = {"run", "send", "restart", "feed", "feed_of_session"}
# That no answer is a fault of ours is asserted by its code: a 501 is a good answer here.
KEPT = (
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
)


def test_file_is_valid_openapi() -> None:
    validate(DOCUMENT)
    assert DOCUMENT["openapi"] == "3.1.0"


def test_file_is_that_of_the_table() -> None:
    """A route, a body or an answer has changed: run `make docs`."""
    assert api_routes.OPENAPI_FILE.read_text(encoding="utf-8") == api_openapi.written(api_routes.ROUTES)


def test_file_is_served(server: Server) -> None:
    assert Api(server).get("openapi.json").data == DOCUMENT


def test_every_code_is_listed() -> None:
    from jupyter_cmdop.core.refusal import HTTP_STATUS
    from jupyter_cmdop.server.api_errors import HTTP_CODES

    assert not set(HTTP_STATUS) & set(HTTP_CODES)
    assert DOCUMENT["x-error-codes"] == {**HTTP_STATUS, **HTTP_CODES}


def operations() -> list[tuple[str, str, str, GenerationMode]]:
    """Each operation, once with right requests, and once with wrong ones where it takes anything that can be wrong."""
    found = []
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            if operation["operationId"] in LEFT_OUT:
                continue
            takes = "requestBody" in operation or any(
                parameter["in"] != "path" for parameter in operation.get("parameters", ())
            )
            modes = list(GenerationMode) if takes else [GenerationMode.POSITIVE]
            found += [(operation["operationId"], method, path, mode) for mode in modes]
    return found


@pytest.fixture(scope="module")
def session_name(module_server: Server) -> str:
    return Api(module_server).make()


@pytest.mark.parametrize(
    ("operation_id", "method", "path", "mode"),
    operations(),
    ids=[f"{o[0]}-{o[3].value}" for o in operations()],
)
def test_handlers_keep_to_the_file(
    module_server: Server, session_name: str, operation_id: str, method: str, path: str, mode: GenerationMode
) -> None:
    """Generated requests, right and wrong ones: each answer has a documented status, type and shape."""
    load_all_checks()
    checks = [check for check in CHECKS.get_all() if check.__name__ in KEPT]
    assert len(checks) == len(KEPT)
    named = {"name": session_name, "grant": "nobody"}
    # Credentials have a table of their own (test_routes); here each request has the right one.
    document = {key: value for key, value in DOCUMENT.items() if key != "security"}
    operation = schemathesis.openapi.from_dict(document)[path][method.upper()]
    requests_session = requests.Session()
    requests_session.trust_env = False

    @given(
        case=operation.as_strategy(mode, path_parameters={k: named[k] for k in named if f"{{{k}}}" in path})
    )
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        if mode is GenerationMode.POSITIVE:
            tame(operation_id, case, session_name)
        response = case.call(
            base_url=f"{module_server.url}/cmdop/api",
            session=requests_session,
            headers={"Authorization": f"token {module_server.token}"},
        )
        case.validate_response(response, checks=checks)
        if response.status_code >= 400:
            problem = response.json()
            assert DOCUMENT["x-error-codes"][problem["code"]] == response.status_code
            assert problem["code"] != "internal", module_server.text()[-3000:]

    with requests_session:
        ask()


def tame(operation_id: str, case: Any, session_name: str) -> None:
    """What a good request would bring about, where that would end the session or keep the test waiting."""
    if operation_id == "wait":
        case.query = {**(case.query or {}), "wait_seconds": 0}
    elif operation_id == "create_session":
        case.body["kernel"] = "no-such-kernel"
    elif operation_id == "rename_session":
        case.body["name"] = session_name
    elif operation_id == "set_policy":
        case.body["policy"] = "open"
    elif operation_id == "make_grant":
        case.body = {**(case.body if isinstance(case.body, dict) else {}), "transport": "ipc"}
    elif operation_id == "close_session":
        case.path_parameters["name"] = "no-such-session"
