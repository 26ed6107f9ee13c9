"""A page of memory in which a keeper shows, for each of its processes, how far its output has come.

A runtime that finds a program waiting for input must have seen the output before (A6). The page tells it without a
round trip whether the keeper is just moving output, or holds some back, and how much there is in all.
"""

import mmap
import os
import struct

SLOTS = 4096
_NUMBER = struct.Struct("@Q")
_SLOT = 2 * _NUMBER.size  # the state, and the bytes in the spool
SETTLED, MOVING, HOLDING = 0, 1, 2
"""Nothing is on its way; output is being moved; output is held back because it may begin a secret or finds no room."""


class Page:
    """The page, as its keeper or a runtime has it mapped."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, SLOTS * _SLOT)

    @classmethod
    def new(cls) -> "Page":
        descriptor = os.memfd_create("keephold-keeper", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, SLOTS * _SLOT)
        return cls(descriptor)

    def moving(self, slot: int) -> None:
        """Output is about to be taken from the program. To be called before it is."""
        _NUMBER.pack_into(self._map, slot * _SLOT, MOVING)

    def settled(self, slot: int, total: int, state: int = SETTLED) -> None:
        """Output was moved; the spool has `total` bytes."""
        _NUMBER.pack_into(self._map, slot * _SLOT + _NUMBER.size, total)
        _NUMBER.pack_into(self._map, slot * _SLOT, state)

    def read(self, slot: int) -> tuple[int, int]:
        """Return the state, and the total at that time or later."""
        (state,) = _NUMBER.unpack_from(self._map, slot * _SLOT)
        (total,) = _NUMBER.unpack_from(self._map, slot * _SLOT + _NUMBER.size)
        return state, total

    def close(self) -> None:
        self._map.close()
        os.close(self.descriptor)
