"""Named, durable Jupyter sessions that people and agents share as equals."""

from ._version import __version__

__all__ = ["__version__"]
