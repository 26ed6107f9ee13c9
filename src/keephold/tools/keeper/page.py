"""A page of memory in which a keeper shows, for each of its processes, how far its output and its input have come.

A runtime that finds a program waiting for input must have seen the output before, and the program must have got all
input (A6). The page tells it without a round trip whether the keeper is just moving output, or holds some back, how
much there is in all, and which input was handed over.
"""

import mmap
import os
import struct

from keephold.platforms import machine

SLOTS = 4096
_NUMBER = struct.Struct("@Q")
_INPUT = struct.Struct("@QQ")
_SLOT = 4 * _NUMBER.size  # generation and state; bytes in the spool; the last input, and its bytes not handed over
_TOTAL, _HANDED = _NUMBER.size, 2 * _NUMBER.size
SETTLED, MOVING, HOLDING, GONE = 0, 1, 2, 3
"""Nothing is on its way; output is being moved; output is held back because it may begin a secret or finds no room; the
slot belongs to another process by now."""


class Page:
    """The page, as its keeper or a runtime has it mapped."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, SLOTS * _SLOT)

    @classmethod
    def new(cls) -> "Page":
        return cls(machine.shared_memory("keephold-keeper", SLOTS * _SLOT))

    def begin(self, slot: int, total: int) -> int:
        """Give the slot to another process, and return its generation."""
        (before,) = _NUMBER.unpack_from(self._map, slot * _SLOT)
        generation: int = (before >> 2) + 1
        self.moving(slot, generation)  # before its total could be taken for that of the process before
        self.handed(slot, 0, 0)
        self.settled(slot, generation, total)
        return generation

    def moving(self, slot: int, generation: int) -> None:
        """Output is about to be taken from the program. To be called before it is."""
        _NUMBER.pack_into(self._map, slot * _SLOT, generation << 2 | MOVING)

    def settled(self, slot: int, generation: int, total: int, state: int = SETTLED) -> None:
        """Output was moved; the spool has `total` bytes."""
        _NUMBER.pack_into(self._map, slot * _SLOT + _TOTAL, total)
        _NUMBER.pack_into(self._map, slot * _SLOT, generation << 2 | state)

    def handed(self, slot: int, number: int, unsent: int) -> None:
        """The input with this number was handed over, except for the last `unsent` bytes."""
        _NUMBER.pack_into(self._map, slot * _SLOT + _HANDED + _NUMBER.size, unsent)
        _NUMBER.pack_into(self._map, slot * _SLOT + _HANDED, number)

    def output(self, slot: int, generation: int) -> tuple[int, int]:
        """Return the state, and the total at that time or later."""
        (state,) = _NUMBER.unpack_from(self._map, slot * _SLOT)
        (total,) = _NUMBER.unpack_from(self._map, slot * _SLOT + _TOTAL)
        (after,) = _NUMBER.unpack_from(self._map, slot * _SLOT)
        return (state & 3, total) if state >> 2 == after >> 2 == generation else (GONE, 0)

    def input(self, slot: int) -> tuple[int, int]:
        """Return the number of the last input that was taken, and the bytes that are not handed over."""
        number, unsent = _INPUT.unpack_from(self._map, slot * _SLOT + _HANDED)
        return number, unsent

    def close(self) -> None:
        self._map.close()
        os.close(self.descriptor)
