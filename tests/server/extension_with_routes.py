"""Another extension of the same server, for tests: it thinks that whoever is logged in may do everything."""

from __future__ import annotations

import json
from typing import Any

from jupyter_server.base.handlers import APIHandler
from tornado import web


class RoutesHandler(APIHandler):
    """Tells every route of the application, in the order in which they are tried."""

    @web.authenticated
    def get(self) -> None:
        found = []
        for rule in self.application.default_router.rules:
            for inner in getattr(rule.target, "rules", []):
                found.append(
                    [inner.matcher.regex.pattern, f"{inner.target.__module__}.{inner.target.__name__}"]
                )
        for rule in self.application.wildcard_router.rules:
            found.append([rule.matcher.regex.pattern, f"{rule.target.__module__}.{rule.target.__name__}"])
        self.finish(json.dumps(found))

    @web.authenticated
    def post(self) -> None:
        self.finish("done")


def _load_jupyter_server_extension(serverapp: Any) -> None:
    serverapp.web_app.add_handlers(".*$", [(serverapp.base_url + "test/routes", RoutesHandler)])
