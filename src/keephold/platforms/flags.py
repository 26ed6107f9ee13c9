"""Flags for `os.open` on every system. Windows lacks most of them, and opens a file as text unless told otherwise."""

import os

O_CLOEXEC: int = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
O_DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)
O_NOCTTY: int = getattr(os, "O_NOCTTY", 0)
O_NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
O_NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
