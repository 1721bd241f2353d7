"""What every test relies on."""

from __future__ import annotations

import signal

# A shell without job control starts its background jobs with SIGINT ignored, and what is ignored stays so in every
# process below: Ctrl-C could not be tested there.
signal.signal(signal.SIGINT, signal.default_int_handler)
