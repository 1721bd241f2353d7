"""The command line: `jupyter cmdop`, a thin shell over `client`."""
