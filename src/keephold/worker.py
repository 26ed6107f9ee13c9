"""A worker: a child process for work that may crash, hang or take too much memory (K6).

Native code that hostile input reaches runs there: the runtime survives its end. One `Worker` is one process at a time.
It starts with the first request, serves all later ones in their order, and is replaced when it dies. Its memory and the
processor time of a request are limited by the kernel, so a limit needs no thread here.

    worker = Worker("keephold.tools.cel", memory=512 * MIB, seconds=0.5)
    reply = await worker.request(body)      # what `keephold.tools.cel.answer(body)` returns there

The request that is being served when the process dies gets the error; those behind it are sent to the next process. A
role must therefore be able to answer any request in a new process.

Requests and replies are msgpack in frames over a socket pair. The program of the process is `worker_process.py`.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from typing import Any

import msgspec

from keephold.platforms import VARIABLE, machine
from keephold.worker_process import HEADER, LAST, OUT_OF_MEMORY

_INHERITED = ("LD_LIBRARY_PATH", "PYTHONHOME", VARIABLE)
"""Variables without which some interpreters do not start, and ours. The worker gets no others."""
_START_SECS, _STUCK_SECS = 60.0, 30.0
"""How long a process may take to start, and how long it may be silent while it owes a reply. Only a stopped or starved
one takes so long: the limit of processor time is the kernel's."""
_MAX_REPLY = 64 * 1024 * 1024
_PIECE = 64 * 1024

owing: dict[int, bool] = {}
"""By the descriptors of all workers: whether that worker owes a reply. Virtual time (`testing/clock.py`) needs it."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class WorkerDied(Exception):
    """The process died of this request. The message says why, as the rest of a sentence: "it needed more than …"."""


class WorkerTooSlow(WorkerDied):
    """The request took longer than its limit."""


class WorkerProcess:
    """A started worker process, and our end of its socket."""

    def __init__(self, role: str, memory: int, seconds: float, descriptors: tuple[int, ...] = ()) -> None:
        """The process gets these descriptors, too. Raises `OSError` if it cannot be started."""
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.socket.setblocking(False)
            numbers = (theirs.fileno(), memory, seconds, os.getpid())
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-s", "-m", "keephold.worker_process", role, *map(str, numbers)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",  # otherwise our directory's file system would stay busy
                    env=_environment(),
                    start_new_session=True,  # Ctrl-C at the terminal is for us
                    pass_fds=(theirs.fileno(), *descriptors),
                )
            except BaseException:
                self.socket.close()
                raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> int:
        """Kill it, close the socket, and return how it ended."""
        self.socket.close()
        self._process.kill()
        return self._process.wait()  # does not take long: a process closes its descriptors at its very end


class WorkerUnavailable(Exception):
    """No process could be started, or the worker is closed. The message says which."""


class RequestTooLarge(Exception):
    """The request has more bytes than the worker takes."""


class _Request:
    __slots__ = ("frame", "reply")

    def __init__(self, frame: bytes, reply: "asyncio.Future[Any]") -> None:
        self.frame = frame
        self.reply = reply


class Worker:
    """Requests to a process that runs `answer` of the module `role`. Use it on one loop.

    The process is limited to `memory` bytes of address space and, for each request, to `seconds` of processor time. A
    request has at most `most` bytes.
    """

    def __init__(self, role: str, *, memory: int, seconds: float, most: int = 16 * 1024 * 1024) -> None:
        self._role = role
        self._memory = memory
        self._seconds = seconds
        self._most = most
        self._process: WorkerProcess | None = None
        self._socket: socket.socket
        self._loop: asyncio.AbstractEventLoop
        self._requests: deque[_Request] = deque()
        """Those without a reply; the process serves the first."""
        self._unsent = bytearray()
        self._received = bytearray()
        self._ready = False
        """Whether the process has said that it has started."""
        self._heard = 0.0
        self._watchdog: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Return the pid of the process, None while there is none."""
        return None if self._process is None else self._process.pid

    async def request(self, body: Any) -> Any:
        """Return the reply to a request, both as JSON has values.

        Raises `WorkerDied` or `WorkerTooSlow` if the process dies of it, `WorkerUnavailable` and `RequestTooLarge`. A
        body that cannot be encoded raises what msgpack raises: `TypeError`, `ValueError`, `RecursionError`, …
        """
        content = _encode(body)
        if len(content) > self._most:
            raise RequestTooLarge(f"the request has {len(content):,} bytes, more than {self._most:,}")
        if self._closed:
            raise WorkerUnavailable("the worker is closed")
        if machine.no_programs:
            raise WorkerUnavailable(machine.no_programs)
        self._loop = asyncio.get_running_loop()
        asked = _Request(HEADER.pack(len(content)) + content, self._loop.create_future())
        self._requests.append(asked)
        if len(self._requests) == 1:
            self._begin()
        else:
            self._send(asked.frame)
        return await asked.reply

    def close(self) -> None:
        """Kill the process. Requests under way get `WorkerUnavailable`."""
        self._closed = True
        self._end()
        self._fail_all("the worker was closed")
        if self._watchdog is not None:
            self._watchdog.cancel()

    # The process

    def _begin(self) -> None:
        """Send all requests to the process, or to a new one if it has died while it owed nothing."""
        try:
            if self._process is None:
                self._start()
            self._heard = self._loop.time()
            if self._watchdog is None:
                self._watchdog = self._loop.call_later(_STUCK_SECS, self._look)
            first, *more = (each.frame for each in self._requests)
            owing[self._socket.fileno()] = True
            if not self._send(first) and self._ready:
                self._end()
                self._start()
                self._send(first)
            for frame in more:
                self._send(frame)
        except OSError as error:
            self._end()
            self._fail_all(
                f"the worker process could not be started ({error.strerror or error}): make sure that {sys.executable} "
                "can be run and that the limits on processes and open files leave room"
            )

    def _start(self) -> None:
        self._process = WorkerProcess(self._role, self._memory, self._seconds)
        ours = self._socket = self._process.socket
        self._ready = False
        owing[ours.fileno()] = True
        self._loop.add_reader(ours.fileno(), self._readable)

    def _end(self) -> int | None:
        """Kill the process, if there is one, and return how it ended."""
        process, self._process = self._process, None
        if process is None:
            return None
        number = self._socket.fileno()
        self._loop.remove_reader(number)
        self._loop.remove_writer(number)
        del owing[number]
        self._unsent.clear()
        self._received.clear()
        return process.end()

    # Frames

    def _send(self, frame: bytes) -> bool:
        """Send a frame, now or when there is room; return False if the process has died, which `_readable` sees."""
        if self._unsent:
            self._unsent += frame
            return True
        try:
            sent = self._socket.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        if sent < len(frame):
            self._unsent += memoryview(frame)[sent:]
            self._loop.add_writer(self._socket.fileno(), self._writable)
        return True

    def _writable(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._unsent)
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())

    def _readable(self) -> None:
        try:
            piece = self._socket.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._died()
            return
        self._heard = self._loop.time()
        received = self._received
        received += piece
        while len(received) >= HEADER.size:
            (size,) = HEADER.unpack_from(received)
            end = HEADER.size + (size & ~LAST)
            if end > _MAX_REPLY or (self._ready and not self._requests):  # native code in there was taken over
                self._died()
                return
            if len(received) < end:
                return
            content = bytes(memoryview(received)[HEADER.size : end])
            del received[:end]
            if not self._ready:
                self._ready = not content
                if content:
                    self._end()
                    self._fail_all(f"the worker process did not start: {content.decode(errors='replace')}")
                    return
                continue
            try:
                result = _decode(content)
            except Exception:  # taken over, too
                self._died()
                return
            reply = self._requests.popleft().reply
            if not reply.done():  # otherwise nobody waits for it any more
                reply.set_result(result)
            if size & LAST:  # it ends, to give its memory back
                self._end()
                self._send_again()
                return
        if not self._requests:
            owing[self._socket.fileno()] = False

    # Deaths

    def _died(self, *, stuck: bool = False) -> None:
        ready, ended = self._ready, self._end()
        if not ready:
            self._fail_all(f"the worker process did not start ({_ending(ended)})")
        elif self._requests:
            culprit = self._requests.popleft().reply
            if not culprit.done():
                culprit.set_exception(self._cause(ended, stuck))
            self._send_again()

    def _send_again(self) -> None:
        self._requests = deque(each for each in self._requests if not each.reply.done())
        if self._requests:
            self._begin()

    def _cause(self, ended: int | None, stuck: bool) -> WorkerDied:
        if stuck:
            return WorkerTooSlow(f"it took more than {_STUCK_SECS:g} s")
        if ended == -signal.SIGPROF:
            return WorkerTooSlow(f"it took more than {self._seconds:g} s of processor time")
        memory = f"it needed more than {self._memory // (1024 * 1024)} MiB of memory"
        return WorkerDied(memory if ended == OUT_OF_MEMORY else f"{memory}, or crashed its process ({_ending(ended)})")

    def _fail_all(self, why: str) -> None:
        while self._requests:
            reply = self._requests.popleft().reply
            if not reply.done():
                reply.set_exception(WorkerUnavailable(why))

    def _look(self) -> None:
        """Kill a process that is silent for too long. The timer runs on after a reply: most replies never set one."""
        self._watchdog = None
        if not self._requests:
            return
        left = self._heard + (_STUCK_SECS if self._ready else _START_SECS) - self._loop.time()
        if left <= 0:
            self._died(stuck=True)
        else:
            self._watchdog = self._loop.call_later(left, self._look)


def _environment() -> dict[str, str]:
    """Return the environment of a worker: it finds the modules that we find. A relative path would mean another
    directory there."""
    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return env | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if os.path.isabs(path))}  # noqa: PTH117


def _ending(code: int | None) -> str:
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
