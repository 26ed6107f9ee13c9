"""A real `keephold serve` on a store, for commands that ask it instead of the store."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.e2e.driver import PATIENCE

_ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+)/\?token=(\S+)")


class Served(NamedTuple):
    """Where a server is, its token, and its process."""

    url: str
    token: str
    process: "subprocess.Popen[str]"


@contextmanager
def served(directory: Path, config: str = "", store: str = "work.db", **environment: str) -> Iterator[Served]:
    """A server on the store of a directory, with the tools of that configuration. The token is as it is printed."""
    (directory / "served.toml").write_text(config)
    process = subprocess.Popen(
        [sys.executable, "-m", "keephold", "serve", "--config", "served.toml", "--port", "0"],
        cwd=directory,
        env={**os.environ, "KEEPHOLD_STORE": f"sqlite:///{store}", **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        told = process.stderr.readline()
        found = _ADDRESS.search(told)
        assert found is not None, told + process.stderr.read()
        yield Served(found[1], found[2], process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait()
            process.stderr.close()
