"""Children that are forked without `exec`, by `multiprocessing` for instance, leave alone what belongs to their parent.

A forked child inherits every descriptor. A lock of `flock`, a listening socket and the end of a pipe last until the
last of their descriptors is closed. A child would therefore keep them after its parent was killed: the dead parent
would seem to live, and nobody could write. So such descriptors are listed here and closed in every forked child.

SQLite's connections cannot be closed there: closing one can delete the parent's WAL. They are never freed in a child.
"""

import ctypes
import os
import weakref
from typing import Protocol, TypeVar

from keephold.platforms import machine


class Closable(Protocol):
    def close(self) -> object: ...


C = TypeVar("C", bound=Closable)

_closed: "weakref.WeakSet[Closable]" = weakref.WeakSet()
_leaked: "weakref.WeakSet[object]" = weakref.WeakSet()


def close_in_children(private: C) -> C:
    """Close this socket or descriptor in every child that is forked from now on."""
    _closed.add(private)
    return private


def leak_in_children(connection: object) -> None:
    """Never free this object in a forked child, not even when the child ends."""
    _leaked.add(connection)


class Descriptor:
    """A descriptor that forked children do not keep. Closing it twice is harmless."""

    __slots__ = ("__weakref__", "_number")

    def __init__(self, number: int) -> None:
        self._number = number
        close_in_children(self)

    def fileno(self) -> int:
        return self._number

    def close(self) -> None:
        number, self._number = self._number, -1
        if number >= 0:
            os.close(number)


def _in_child() -> None:
    for private in list(_closed):
        private.close()
    for connection in list(_leaked):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


machine.after_fork(_in_child)
