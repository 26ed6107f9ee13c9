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

from tests.patience import PATIENCE

_ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+)/(?:\?token=| \(token: )([^\s)]+)")


class Served(NamedTuple):
    """Where a server is, its token, and its process."""

    url: str
    token: str
    process: "subprocess.Popen[bytes]"


@contextmanager
def served(
    directory: Path, config: str = "", store: str = "work.db", *, terminal: bool = False, **environment: str
) -> Iterator[Served]:
    """A server on the store of a directory, with the tools of that configuration. The token is that of the file that it
    names; with `terminal`, it is as it is printed there."""
    (directory / "served.toml").write_text(config)
    ours, theirs = os.openpty() if terminal else os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "keephold", "serve", "--config", "served.toml", "--port", "0"],
        cwd=directory,
        env={**os.environ, "KEEPHOLD_STORE": f"sqlite:///{store}", **environment},
        stderr=theirs,
    )
    os.close(theirs)
    with os.fdopen(ours) as said:
        try:
            told = said.readline()
            found = _ADDRESS.search(told)
            assert found is not None, told + said.read()
            made = found[2] if not found[2].startswith("/") else Path(found[2]).read_text().strip()
            yield Served(found[1], made, process)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()
                process.wait()
