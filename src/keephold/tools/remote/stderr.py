"""What a server's program prints on standard error: read, so that it never blocks; its end is kept for errors."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_KEPT = 2000


class Stderr:
    """The standard error of one program."""

    def __init__(self) -> None:
        self._tail = b""
        self._write: TextIO | None = None

    @contextmanager
    def open(self) -> Iterator[TextIO]:
        """The file to give to the program; what comes is read until the block is left."""
        loop = asyncio.get_running_loop()
        read, write = os.pipe()
        os.set_blocking(read, False)
        self._write = os.fdopen(write, "w")
        loop.add_reader(read, self._look, read)
        try:
            yield self._write
        finally:
            self.started()
            loop.remove_reader(read)
            self._look(read)  # the last words are often the only ones
            os.close(read)

    def started(self) -> None:
        """The program has its own descriptor by now."""
        if self._write is not None:
            self._write.close()
            self._write = None

    @property
    def last_words(self) -> str:
        """The last line that was printed, or nothing."""
        lines = self._tail.decode(errors="replace").split("\n")
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")

    def _look(self, read: int) -> None:
        try:
            while part := os.read(read, 65536):
                self._tail = (self._tail + part)[-_KEPT:]
        except BlockingIOError:
            return
        asyncio.get_running_loop().remove_reader(read)  # it has closed it
