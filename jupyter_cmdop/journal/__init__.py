"""The record of a session: append-only, hash-chained entries, their storage, and everything that reads them."""
