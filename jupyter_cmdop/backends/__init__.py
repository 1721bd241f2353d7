"""What executes inside a session: processes, and the channels to them."""
