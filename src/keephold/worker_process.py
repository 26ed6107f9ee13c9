"""The process of a worker (`worker.py`): `python -m keephold.worker_process ROLE SOCKET MEMORY SECONDS PARENT`.

It limits itself, imports the module ROLE, and answers one request after another with its `answer`, or leaves all of it
to its `serve`. It ends with its parent: at the end of the socket, or, if a fork of the parent holds that open, within
seconds, because it has another parent then. (PDEATHSIG follows the thread that started the process, which may end
earlier.)

It starts in a twentieth of a second because it imports almost nothing; this module must not import asyncio. A request
costs three system calls, each of which takes some microseconds on a virtual machine.
"""

import gc
import os
import signal
import socket
import struct
import sys
from functools import partial
from importlib import import_module
from time import perf_counter

import msgspec

from keephold.platforms import machine

HEADER = struct.Struct(">I")
"""The length of what follows; a reply may have `LAST` in it."""
LAST = 1 << 31
"""Set in the header of the last reply of a process that ends to give its memory back."""
OUT_OF_MEMORY = 99
"""Exit code of a process that an allocation failed in."""
_PIECE = 1 << 16
_LOOK_SECS = 2
"""How often a process without work looks for its parent."""
_LONG_SECS = 0.005
"""Requests that take so long may have left much memory behind."""


def main() -> None:
    role, number, memory, seconds, parent = sys.argv[1:]
    connection = socket.socket(fileno=int(number))
    _limit(int(memory))
    try:
        module = import_module(role)
        answer = getattr(module, "answer", None)
        getattr(module, "prepare", lambda: None)()
    except Exception as error:
        _send(connection, f"{type(error).__name__}: {error}".encode())
        return
    _send(connection, b"")
    gc.freeze()
    enough, used = int(memory) // 2, machine.memory_reader()
    receive = _Receiving(connection, int(parent))
    if answer is None:
        module.serve(receive, partial(_send, connection))
        return
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode
    while (content := receive()) is not None:
        signal.setitimer(signal.ITIMER_PROF, float(seconds))  # its signal kills; a process that waits uses up nothing
        began = perf_counter()
        try:
            reply = encode(answer(decode(content)))
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        last = False
        if perf_counter() - began > _LONG_SECS:
            last = used() > enough
        _send(connection, reply, LAST if last else 0)
        if last:
            return


def _limit(memory: int) -> None:
    import resource  # only here: `worker.py` is imported on Windows, too, which runs no worker

    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    machine.limit_memory(memory)
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):  # no core dumps, no files
        resource.setrlimit(kind, (0, 0))


def _send(connection: socket.socket, content: bytes, flags: int = 0) -> None:
    connection.sendall(HEADER.pack(len(content) | flags) + content)


class _Receiving:
    """Receives the frames of a socket; None at its end, or at that of the parent."""

    def __init__(self, connection: socket.socket, parent: int) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", _LOOK_SECS, 0))
        self._connection = connection
        self._parent = parent
        self._received = bytearray()

    def __call__(self) -> bytes | None:
        received = self._received
        while True:
            if len(received) >= HEADER.size:
                end = HEADER.size + HEADER.unpack_from(received)[0]
                if len(received) >= end:
                    content = bytes(memoryview(received)[HEADER.size : end])
                    del received[:end]
                    return content
            try:
                piece = self._connection.recv(_PIECE)
            except BlockingIOError:  # nothing came for a while
                if os.getppid() != self._parent:
                    return None
                continue
            if not piece:
                return None
            received += piece


if __name__ == "__main__":
    try:
        main()
    finally:
        os._exit(1)  # without a tidy end, which would take a while after the socket is closed
