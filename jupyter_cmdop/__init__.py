"""Named, durable Jupyter sessions that people and agents share as equals."""

from ._version import __version__

__all__ = ["__version__"]


def _jupyter_server_extension_points() -> list[dict[str, object]]:
    """What `jupyter server extension enable jupyter_cmdop` finds; only a Jupyter server pays for the import."""
    import importlib
    import sys

    if sys.platform == "win32":
        return [{"module": "jupyter_cmdop.server.windows"}]
    # By name: the package's root imports no part of it, as every part may import the root.
    extension = importlib.import_module("jupyter_cmdop.server.extension")
    return [{"module": extension.__name__, "app": extension.CmdopApp}]
