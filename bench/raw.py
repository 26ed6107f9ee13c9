"""The raw limit that durable figures are compared with: apsw, WAL, `synchronous=FULL`, and nothing of ours.

The table is that of our journal, its unique index included, so that the same pages are written.
"""

import threading
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter

import apsw

_SCHEMA = """
CREATE TABLE journal (
    number INTEGER PRIMARY KEY, handle INTEGER NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, digest BLOB NOT NULL,
    value BLOB NOT NULL, ok INTEGER NOT NULL
);
CREATE UNIQUE INDEX journal_once ON journal (handle, kind, name);
"""
_INSERT = "INSERT INTO journal (handle, kind, name, digest, value, ok) VALUES (?, ?, ?, ?, ?, ?)"
_DIGEST = bytes(32)


class Raw:
    """A database of its own. Use it in one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.pragma("journal_mode", "wal")
        self._connection.pragma("synchronous", "full")
        self._connection.execute(_SCHEMA)
        self._names = 0

    def commit(self, rows: int = 1) -> None:
        """Run one transaction of this many rows."""
        self._names += 1
        name, run = f"s{self._names}", self._connection.execute
        run("BEGIN IMMEDIATE")
        if rows == 1:
            run(_INSERT, (0, "step", name, _DIGEST, b"1", True))
        else:
            lines = [(handle, "step", name, _DIGEST, b"1", True) for handle in range(rows)]
            self._connection.executemany(_INSERT, lines)
        run("COMMIT")

    def time(self, times: list[float]) -> None:
        """One transaction of one row, and what it took."""
        began = perf_counter()
        self.commit()
        times.append(perf_counter() - began)

    def in_thread(self, commits: int, rows: int) -> float:
        """Run transactions in a thread that does nothing else; return the seconds for a row."""

        def write() -> None:
            for _ in range(commits):
                self.commit(rows)

        writer = threading.Thread(target=write)
        began = perf_counter()
        writer.start()
        writer.join()
        return (perf_counter() - began) / (commits * rows)

    def close(self) -> None:
        self._connection.close()


def percentile(times: Iterable[float], part: float) -> float:
    """The value below which that part of the times is."""
    line = sorted(times)
    return line[min(int(part * len(line)), len(line) - 1)]
