"""A person's terminal: a pane of a tmux that belongs to the test, with a shell in it."""

import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.e2e.driver import until
from tests.patience import PATIENCE

PROMPT = "me> "


class Pane:
    """One window of one pane. `rows` and `cols` are what its shell has."""

    def __init__(self, directory: Path, environment: Mapping[str, str], rows: int = 15, cols: int = 60) -> None:
        self._private = tempfile.TemporaryDirectory(prefix="keephold-tmux-")
        self._tmux = ["tmux", "-S", f"{self._private.name}/socket", "-f", "/dev/null"]
        shell = ["env", f"PS1={PROMPT}", "HISTFILE=", "bash", "--norc", "--noprofile"]
        self._run(
            *["new-session", "-d", "-x", str(cols), "-y", str(rows), "-c", str(directory), shlex.join(shell), ";"],
            *["set-option", "-g", "status", "off", ";", "set-option", "-g", "escape-time", "0"],
            environment=environment,
        )
        self.until(PROMPT.rstrip())
        self.resize(rows, cols)  # there is a status line until it is switched off

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run("kill-server")
        self._private.cleanup()

    def _run(self, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            [*self._tmux, *arguments], env=environment, check=True, capture_output=True, text=True, timeout=PATIENCE
        )
        return done.stdout

    @property
    def screen(self) -> str:
        """What is to be seen."""
        return self._run("capture-pane", "-p")

    @property
    def last(self) -> str:
        """The last line that is not empty."""
        return next((line for line in reversed(self.screen.splitlines()) if line.strip()), "")

    def type(self, text: str) -> None:
        """Type a line."""
        self._run("send-keys", "-l", text)
        self.press("Enter")

    def press(self, key: str) -> None:
        self._run("send-keys", key)

    def until(self, text: str) -> None:
        """Until that is to be seen."""
        until(lambda: text in self.screen, what=lambda: f"{text!r} is not in\n{self.screen}")

    def back(self) -> None:
        """Until the shell waits for the next command."""
        until(lambda: self.last.strip() == PROMPT.strip(), what=lambda: self.screen)

    def resize(self, rows: int, cols: int) -> None:
        self._run("resize-window", "-x", str(cols), "-y", str(rows))
