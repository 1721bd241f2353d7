"""The pure rules of a session: who may input, in which order, under which generation (no I/O, no clock)."""
