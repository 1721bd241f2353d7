"""Measurements of this checkout beside a direct connection and beside jupyter_server: see `run.py`."""
