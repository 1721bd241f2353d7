"""The Jupyter server extension: kernels started through the server are sessions, each with a keeper of its own.

The server is a client of keepers and nothing more: it authenticates people, answers the stock routes from what keepers
say, and hands accepted websockets over. Whatever happens to it, sessions go on.
"""
