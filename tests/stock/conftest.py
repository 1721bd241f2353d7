from __future__ import annotations

from tests.support import home

__all__ = ["home"]
