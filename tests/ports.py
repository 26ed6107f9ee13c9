"""Ports for servers that are started after their port is known, or again on the port that they had.

The kernel finds a free port for `bind` with port 0, but it may give the same port to another test's server before ours
has started. The ports here are below those that the kernel gives. All tests of a user on this machine get them in turn.
"""

import errno
import fcntl
import os
import socket
import tempfile
from pathlib import Path

FIRST, COUNT = 20_000, 10_000
_LAST_GIVEN = Path(tempfile.gettempdir()) / f"keephold-test-port-{os.getuid()}"


def free_port() -> int:
    """Return a port that is free on both loopback addresses."""
    with _LAST_GIVEN.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        number = int(file.read() or os.getpid())
        while True:
            number += 1
            port = FIRST + number % COUNT
            if _is_free(socket.AF_INET, "127.0.0.1", port) and _is_free(socket.AF_INET6, "::1", port):
                file.truncate(0)
                file.write(str(number))
                return port


def _is_free(family: socket.AddressFamily, address: str, port: int) -> bool:
    try:
        with socket.socket(family) as probe:
            probe.bind((address, port))
    except OSError as error:
        return error.errno != errno.EADDRINUSE  # a machine may have no IPv6
    return True
