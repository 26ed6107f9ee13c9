"""A real `keephold turn` process to talk to: write a line, read a line, with a bounded wait.

Whatever the process starts inherits a token in its environment. By it `survivors` finds what is left of a turn without
asking keephold: the tools, what they forked, the guard, and the process itself.
"""

import json
import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from tests.patience import PATIENCE, rest

_TOKEN = "KEEPHOLD_E2E_TOKEN"


class Answer:
    """One response of a batch: the text a model gets, and whether the call itself failed (C9)."""

    def __init__(self, response: Mapping[str, str]) -> None:
        assert set(response) in ({"id", "result"}, {"id", "error"}), response
        self.id = response["id"]
        self.is_error = "error" in response
        self.text = response["error" if self.is_error else "result"]

    @property
    def json(self) -> Any:
        """The text decoded, of a call that did not fail."""
        assert not self.is_error, self.text
        return json.loads(self.text)

    def __repr__(self) -> str:
        return f"<{'error' if self.is_error else 'result'} {self.text[:200]!r}>"


class TurnProcess:
    """One `keephold turn`. Calls are pairs of a tool's name and its arguments; they are labelled by their place."""

    def __init__(self, config: str, directory: Path) -> None:
        path = directory / "keephold.toml"
        path.write_text(config)
        self.directory = directory
        self._token = secrets.token_hex(8)
        self._complaints = directory / "stderr"
        self._buffer = bytearray()
        with self._complaints.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "keephold", "turn", "--config", str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={
                    **os.environ,
                    _TOKEN: self._token,
                    "TMPDIR": str(directory),
                    "XDG_STATE_HOME": str(directory / "state"),
                },
            )

    # Talking

    def run(self, *calls: tuple[str, Any]) -> list[Answer]:
        """Send one batch and wait for its line."""
        self.begin(*calls)
        return self.answers(len(calls))

    def one(self, name: str, arguments: Any) -> Answer:
        """Send a batch of one call."""
        return self.run((name, arguments))[0]

    def begin(self, *calls: tuple[str, Any]) -> None:
        """Send one batch and do not wait."""
        labelled = [{"id": str(i), "name": name, "arguments": given} for i, (name, given) in enumerate(calls)]
        self.send(json.dumps({"calls": labelled}).encode())

    def answers(self, count: int) -> list[Answer]:
        """The next line, which must answer a batch of so many calls: each once, in order (B1)."""
        line = self.receive()
        assert set(line) == {"responses", "notifications"}, line
        answers = [Answer(response) for response in line["responses"]]
        assert [answer.id for answer in answers] == [str(i) for i in range(count)]
        return answers

    def send(self, line: bytes) -> None:
        """Send one line as it is."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def receive(self, meanwhile: Callable[[], object] = lambda: None, patience: float = PATIENCE) -> dict[str, Any]:
        """The next line. `meanwhile` is called every few milliseconds until it is there."""
        until = time.monotonic() + patience
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while b"\n" not in self._buffer:
            assert time.monotonic() < until, f"no line within {patience} s; stderr: {self.complaints()}"
            meanwhile()
            if select.select([descriptor], [], [], 0.005)[0]:
                data = os.read(descriptor, 1 << 20)
                assert data, f"the turn ended without a line; stderr: {self.complaints()}"
                self._buffer += data
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    # Its end

    def finish(self) -> list[dict[str, Any]]:
        """End the input; the handles that the turn still had. The process exits with 0 and leaves nothing."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        handles = self.ended()
        assert self.process.wait(PATIENCE) == 0
        self.leaves_nothing()
        return handles

    def ended(self) -> list[dict[str, Any]]:
        """The next line, which must be the turn's last; the handles it names."""
        line = self.receive()
        assert line.pop("turn") == "ended", line
        assert set(line) == {"handles"}
        handles = line["handles"]
        assert isinstance(handles, list)
        return handles

    def leaves_nothing(self) -> None:
        """No process, no word on stderr, no file of its own, once it has ended."""
        until(lambda: not self.survivors(), lambda: f"left behind: {self.survivors()}")
        assert self.complaints() == ""
        left = [path for path in self.directory.glob("keephold-*") if path.name != f"keephold-{os.getuid()}"]
        assert left == []

    def close(self) -> None:
        """Kill whatever there is of it."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                stream.close()
        self.process.kill()
        self.process.wait()
        for pid in self.survivors():
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()

    # Looking at it from outside

    def complaints(self) -> str:
        """What it wrote to stderr."""
        return self._complaints.read_text(errors="replace")

    def survivors(self) -> dict[int, str]:
        """Every live process with the token, by pid, and its command line. The turn itself is one of them."""
        wanted = f"{_TOKEN}={self._token}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if wanted in (entry / "environ").read_bytes().split(b"\0"):
                        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                        found[int(entry.name)] = command.strip()
                except OSError:  # gone, or somebody else's
                    continue
        return found

    def running(self, text: str) -> list[int]:
        """Pids of its processes that have the text in their command line."""
        return [pid for pid, command in self.survivors().items() if text in command]


def told_to_end(handle: dict[str, Any], why: str, ended_by: str) -> bool:
    """Whether this is a handle that somebody ended: with the reason first, and not shown as a failure (S3)."""
    rest = {key: value for key, value in handle.items() if key not in ("id", "content")}
    return rest.pop("result", "").startswith(why) and rest == {"state": "stopped", "ended_by": ended_by}


Start = Callable[[str], TurnProcess]
"""What the fixture `start` is: it starts a turn with a configuration."""


def until(condition: Callable[[], object], what: Callable[[], str] = lambda: "", seconds: float = PATIENCE) -> None:
    """Wait until the condition holds; `what` says what is wrong if it never does."""
    limit = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if condition():
            return
        assert time.monotonic() < limit, f"did not come true in {seconds:g} s: {what()}"
        time.sleep(rest(time.monotonic() - began, 0.01))


@contextmanager
def turn(config: str, directory: Path) -> Iterator[TurnProcess]:
    """A turn with this configuration, gone at the end of the block whatever happens."""
    process = TurnProcess(config, directory)
    try:
        yield process
    finally:
        process.close()
