from __future__ import annotations

from tests.client.fake_keeper import keeper, keepers
from tests.client.places_fixture import registry

__all__ = ["keeper", "keepers", "registry"]
