"""Two locked files at which the writers of all processes queue.

SQLite has no queue for its write lock: whoever waits for it sleeps and tries again, and a busy process, which is awake
when its own transaction ends, takes it every time. So a writer takes the gate, then the turn, leaves the gate, writes,
and leaves the turn. Whoever is next stands in the gate, and the busy one has to line up behind it.
"""

import fcntl
import os
import time
from pathlib import Path

from keephold.errors import KeepholdError

PATIENCE = 5.0
"""Seconds that a writer waits for the others."""


class Turnstile:
    """One writer's place in the queue. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: list[int] = []
        try:
            for end in ("-gate", "-turn"):
                self._files.append(os.open(f"{path}{end}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except BaseException:
            self.close()
            raise
        self._gate, self._turn = self._files

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, *_: object) -> None:
        self.leave()

    def enter(self) -> None:
        """Wait for our turn, as long as `PATIENCE`."""
        if self.enter_now():
            return
        gate, until = self._gate, time.monotonic() + PATIENCE
        self._wait(gate, until)
        try:
            self._wait(self._turn, until)
        finally:
            fcntl.flock(gate, fcntl.LOCK_UN)

    def enter_now(self) -> bool:
        """Take our turn if nobody is before us; whether that was so."""
        gate = self._gate
        try:
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        finally:
            fcntl.flock(gate, fcntl.LOCK_UN)

    def leave(self) -> None:
        """Let the next one in."""
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def _wait(self, lock: int, until: float) -> None:
        """Not with a blocking `flock`: nothing would end that if the other process is stopped in the middle."""
        pause = 0.00005
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    raise KeepholdError(
                        f"another process has been writing to `{self._path}` for {PATIENCE:g} s; wait, or end it",
                        code="store_unavailable",
                    ) from None
            time.sleep(pause)
            pause = min(pause * 1.5, 0.001)

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())
