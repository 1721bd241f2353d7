"""What is known of the kernel now: shared by those who start it, talk to it and listen to it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any, Literal

from ..backends.kernel_channels import KernelChannels
from .synthesis import Voice

Phase = Literal["off", "launching", "greeting", "preparing", "ready", "ending"]


@dataclass(slots=True)
class KernelState:
    """The kernel of the incarnation in hand.

    Attributes:
        own_session: header session of the keeper's own requests.
        own_waiting: own requests whose idle has not come yet: what bears another id is not ours, whatever it says.
        sessions: header sessions of the kernel's incarnations: what bears one did not come from a client.
        info_content: content of its kernel_info_reply, kept for newcomers also while it restarts.
        may_drop: whether its publisher drops what its subscriber does not take.
        heard_at, published_at: when anything last came from it, and when on iopub.
        unheard: operations sent to the kernel of which the kernel has said nothing yet, and when that gets odd.
    """

    own_session: str = field(default_factory=lambda: f"keeper-{uuid.uuid4().hex[:12]}")
    own_waiting: set[str] = field(default_factory=set)
    phase: Phase = "off"
    incarnation: int = 0
    channels: KernelChannels | None = None
    voice: Voice = field(default_factory=lambda: Voice(""))
    sessions: set[str] = field(default_factory=set)
    info: dict[str, Any] | None = None
    info_content: bytes = b""
    execution_count: int = 0
    may_drop: bool = True
    unheard: dict[str, float] = field(default_factory=dict)
    heard_at: float = 0.0
    published_at: float = 0.0

    def open_channels(self) -> KernelChannels:
        if self.channels is None:
            raise AssertionError("the kernel has no channels now")
        return self.channels
