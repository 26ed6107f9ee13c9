"""`keephold serve` as a process of its own, in a directory of its own, and who talks to it over HTTP."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psutil
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.trusting import write_trusted

ROOT = Path(__file__).parents[2]
TOKEN = "token-of-the-tests-0123456789abcdef"


def environment(directory: Path) -> dict[str, str]:
    """That of a user who has set nothing and has a state directory of their own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("KEEPHOLD_")}
    mine = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "XDG_STATE_HOME": str(directory / "state")}
    return {**kept, **mine}


class Served:
    """A server on a port that stays the same over restarts, with a store in its directory. All it says is in a file."""

    def __init__(
        self,
        directory: Path,
        config: str | None,
        *words: str,
        env: Mapping[str, str] | None = None,
        talkative: bool = False,
    ) -> None:
        self.directory = directory
        self.store = directory / "store.db"
        self.said = directory / "said"
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.mcp = f"{self.base}/mcp"
        self._words = words
        self._talkative = talkative
        self._env = {"KEEPHOLD_TOKEN": TOKEN} if env is None else env
        self._before: list[subprocess.Popen[bytes]] = []
        if config is not None:
            write_trusted(directory / "keephold.toml", config, directory / "state")
        self.process = self._start()

    @property
    def entry(self) -> str:
        """What a browser opens first."""
        return f"{self.base}/?token={TOKEN}"

    @property
    def host(self) -> str:
        """The dashboard's own name and port, where sessions are."""
        kept = json.loads(self.store.with_name("store.db-sessions").read_bytes())
        return f"{kept['name']}.localhost:{self.port}"

    @property
    def dashboard(self) -> str:
        """Where a browser is that has opened the entry."""
        return f"http://{self.host}"

    def made_token(self) -> str:
        """The token that it has made, from the private file that it names."""
        found = re.search(r"keephold at \S+ \(token: (\S+)\)", self.said.read_text())
        assert found is not None and stat.S_IMODE(Path(found[1]).stat().st_mode) == 0o600, self.said.read_text()
        return Path(found[1]).read_text().strip()

    def path(self, name: str) -> str:
        return str(self.directory / name)

    def open(self, gate: str) -> None:
        """Let whoever waits at it through."""
        (self.directory / gate).touch()

    def client(self, **options: object) -> httpx2.AsyncClient:
        """A client of the API that has the token."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return httpx2.AsyncClient(base_url=self.base, headers=headers, timeout=PATIENCE, **options)  # type: ignore[arg-type]

    def restart(self) -> None:
        """Start it again where it was, on its store and port."""
        self.process = self._start()

    def replace(self, *words: str) -> "subprocess.Popen[bytes]":
        """Start another one that takes its place; the process of the one before, which may end later."""
        before = self.process
        self.process = self._start("--replace", *words)
        self._before.append(before)
        return before

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it in good order; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.stop()
        for before in self._before:
            if before.poll() is None:
                before.terminate()
            before.wait(PATIENCE)

    def memory(self) -> int:
        """Its resident memory, in bytes."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def descriptors(self) -> int:
        """How many file descriptors it has open."""
        return int(psutil.Process(self.process.pid).num_fds())

    def _start(self, *words: str) -> "subprocess.Popen[bytes]":
        with self.said.open("ab") as said:
            before = said.tell()
            process = subprocess.Popen(
                serve(self.store, "--port", str(self.port), *self._words, *words, talkative=self._talkative),
                cwd=self.directory,
                env={**environment(self.directory), **self._env},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and process.poll() is None:
            if b"keephold at http" in self.said.read_bytes()[before:]:
                return process
            time.sleep(0.01)
        process.kill()
        process.wait()
        raise AssertionError(f"the server did not start: {self.said.read_text()}")


TALKATIVE = "import logging, keephold.cli; logging.basicConfig(level=logging.DEBUG); keephold.cli.main()"


def serve(store: Path, *words: str, talkative: bool = False) -> list[str]:
    """The command. -W error: a coroutine that nobody awaited is a defect. `talkative`: it logs whatever can be."""
    program = ["-c", TALKATIVE] if talkative else ["-m", "keephold"]
    return [sys.executable, "-W", "error", *program, "serve", "--store", f"sqlite:///{store}", *words]


@contextmanager
def served(
    directory: Path, config: str | None = "", *words: str, env: Mapping[str, str] | None = None, talkative: bool = False
) -> Iterator[Served]:
    """A server with that configuration; when it has ended, it must not have said anything it should not."""
    server = Served(directory, config, *words, env=env, talkative=talkative)
    try:
        yield server
    finally:
        server.close()
    said = server.said.read_text()
    assert "Traceback" not in said and "never awaited" not in said, said
