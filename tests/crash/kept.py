"""A `keephold turn` that is killed and started again, while the processes of its tools are kept (R7)."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from tests.e2e.driver import until
from tests.soak import tries

from keephold.tools.keeper.record import KeptRecord, read_record

PATIENCE = float(tries(60, soak=600))
"""Seconds after which a turn that says nothing is a failure."""


class KeptTurn:
    """One conversation, and the process that has its turn at the moment, if any."""

    def __init__(self, directory: Path, config: str) -> None:
        self.directory = directory
        self.store = directory / "store.db"
        self._config = directory / "keephold.toml"
        self._config.write_text(config)
        self._stderr = directory / "stderr"
        self._buffer = b""
        self._labels = 0
        self.process: subprocess.Popen[bytes] | None = None

    # The process

    def command(self, *words: str) -> list[str]:
        """Return the command line of a keephold command on this store."""
        return [sys.executable, "-W", "error", "-m", "keephold", *words, "--store", f"sqlite:///{self.store}"]

    def start(self) -> None:
        """Start the process; it resumes the turn of the one before."""
        words = ("turn", "--config", str(self._config), "--conversation", "c", "--resume")
        self._buffer = b""
        with self._stderr.open("ab") as stderr:
            self.process = subprocess.Popen(
                self.command(*words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, cwd=self.directory
            )

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self._gone()

    def close(self) -> None:
        """End the turn in order."""
        assert self.process is not None and self.process.stdin is not None
        self.process.stdin.close()
        while self._line(PATIENCE) is not None:
            pass
        self._gone()

    def _gone(self) -> None:
        assert self.process is not None and self.process.stdin is not None and self.process.stdout is not None
        self.process.wait(PATIENCE)
        self.process.stdout.close()
        self.process.stdin.close()
        self.process = None

    # Talking

    def begin(self, *calls: tuple[str, dict[str, Any]]) -> None:
        """Send a batch and do not wait."""
        assert self.process is not None and self.process.stdin is not None
        batch = [
            {"id": str(self._labels + at), "name": name, "arguments": given} for at, (name, given) in enumerate(calls)
        ]
        self._labels += len(calls)
        self.process.stdin.write(json.dumps({"calls": batch}).encode() + b"\n")
        self.process.stdin.flush()

    def answers(self, patience: float = PATIENCE) -> list[str] | None:
        """Return the responses to the last batch; None if they have not come in that time."""
        while (line := self._line(patience)) is not None:
            responses = json.loads(line)["responses"]
            if responses[-1]["id"] == str(self._labels - 1):  # else it is the batch that was resumed
                return [each["result"] if "result" in each else each["error"] for each in responses]
        return None

    def run(self, *calls: tuple[str, dict[str, Any]]) -> list[str]:
        """Send a batch and wait for its responses."""
        self.begin(*calls)
        found = self.answers()
        assert found is not None, self._stderr.read_text()
        return found

    def one(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Send a batch of one call, whose response is an object."""
        (text,) = self.run((name, arguments))
        assert text.startswith("{"), text
        found: dict[str, Any] = json.loads(text)
        return found

    def _line(self, patience: float) -> bytes | None:
        assert self.process is not None and self.process.stdout is not None
        descriptor, end = self.process.stdout.fileno(), time.monotonic() + patience
        while b"\n" not in self._buffer:
            if not select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            data = os.read(descriptor, 1 << 16)
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    # Looking, without the process

    def listed(self) -> dict[str, dict[str, Any]]:
        """Return the handles by id, as `keephold ps` lists them."""
        return {fact["id"]: fact for fact in map(json.loads, self.printed("ps", "--all", "--json").splitlines())}

    def output(self, id: str) -> str:
        """Return all output of a handle, as `keephold logs` prints it."""
        return self.printed("logs", id)

    def shown(self, id: str) -> dict[str, Any]:
        """Return a handle as `keephold show` shows it."""
        found: dict[str, Any] = json.loads(self.printed("show", id, "--json"))
        return found

    def send(self, id: str, secret: str) -> None:
        """Answer a password prompt as the user."""
        done = subprocess.run(self.command("send", id, "--password"), input=f"{secret}\n".encode(), capture_output=True)
        assert done.returncode == 0, done.stderr.decode()

    def printed(self, *words: str) -> str:
        """Return the output of a keephold command."""
        done = subprocess.run(self.command(*words), capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def kept(self) -> list[KeptRecord]:
        """Return the records of all kept processes."""
        directory = Path(f"{self.store}-output")
        found = [read_record(directory, file.stem) for file in directory.glob("*.kept")]
        return [each for each in found if each is not None]

    def processes(self) -> list[psutil.Process]:
        """Return every process that runs in our directory, and the keeper."""
        return processes_of(self.directory, self.store)

    def leaves_nothing_kept(self) -> None:
        """No process is kept any more."""
        until(lambda: not self.kept(), lambda: f"still kept: {self.kept()}", PATIENCE)

    def leaves_nothing(self) -> None:
        """No process is left, nor a file of a keeper."""
        nothing_left(self.directory, self.store)


def processes_of(directory: Path, store: Path) -> list[psutil.Process]:
    """Return every process that runs in a directory, and the keeper of the store."""
    found = []
    for process in psutil.process_iter():
        try:
            here = process.cwd() == str(directory) or str(store) in " ".join(process.cmdline())
            if here and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def nothing_left(directory: Path, store: Path) -> None:
    """Wait until no process is left there; no file of a keeper may be."""
    until(lambda: not processes_of(directory, store), lambda: f"left: {processes_of(directory, store)}", PATIENCE)
    left = list(Path(f"{store}-output").glob("*.*"))
    assert not left, left


@contextmanager
def kept_turn(directory: Path, config: str) -> Iterator[KeptTurn]:
    """A conversation whose processes are gone afterwards, also if the test fails."""
    turn = KeptTurn(directory, config)
    try:
        yield turn
    finally:
        if turn.process is not None:
            turn.kill()
        for process in turn.processes():
            process.send_signal(signal.SIGKILL)
