"""The keeper: starts and keeps processes for the runtimes that connect to its socket.

It holds a lock as long as it lives, so there is one for a socket. Its own user alone may connect. It exits when nothing
runs and no runtime is connected. SIGTERM ends all its processes, and then itself.
"""

import asyncio
import contextlib
import os
import signal
import socket
from pathlib import Path

from keephold.errors import ToolError
from keephold.platforms import ProcessEndWatch, machine
from keephold.platforms.unix import fcntl
from keephold.tools.guard import Guard
from keephold.tools.keeper import protocol
from keephold.tools.keeper.files import Files
from keephold.tools.keeper.kept import KeeperProcess
from keephold.tools.keeper.protocol import SLOTS, Connection, Page

_UNUSED_SECS = 10.0
"""How long it waits for the runtime that started it."""
_BACKLOG = 128
_TERMINATED = "its keeper was terminated (SIGTERM)"


class Another(Exception):
    """Another keeper has the lock."""


def locked(path: str) -> int:
    """Return a descriptor that holds the lock of a socket. Raises `Another` or `OSError`."""
    while True:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(f"{path}.lock")):  # noqa: PTH116
                return lock
        except BlockingIOError:
            os.close(lock)
            raise Another from None
        except FileNotFoundError:
            pass
        os.close(lock)  # the one before removed it when it exited


def bound(path: str) -> socket.socket:
    """Return the socket, listening. Raises `OSError`."""
    Path(path).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.setblocking(False)
    listening.bind(path)
    Path(path).chmod(0o600)
    listening.listen(_BACKLOG)
    return listening


async def serve(directory: Path, path: str, listening: socket.socket) -> None:
    """Be the keeper, until nobody needs one."""
    keeper = Keeper(directory, path, listening)
    try:
        await keeper.done.wait()
    finally:
        keeper.close()


class Keeper:
    """The processes and connections of one keeper."""

    def __init__(self, directory: Path, path: str, listening: socket.socket) -> None:
        self.directory, self.path = directory, path
        self.page, self.files = Page.new(), Files()
        self.done = asyncio.Event()
        self._guard = Guard()
        self.mark = self._guard.mark
        self._kept: dict[str, KeeperProcess] = {}
        self._slots = list(range(SLOTS - 1, -1, -1))
        self.runtimes: set[RuntimeConnection] = set()
        self._ending = False
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._loop.add_reader(listening, self._accept)
        self._loop.add_signal_handler(signal.SIGTERM, self._terminate)
        self._loop.call_later(_UNUSED_SECS, self._rest)

    def _accept(self) -> bool:
        try:
            accepted, _ = self._listening.accept()
        except OSError:  # nobody, or no descriptor is available
            return False
        pid, uid = machine.peer(accepted)
        if uid not in (os.geteuid(), 0):
            accepted.close()
        else:
            self.runtimes.add(RuntimeConnection(self, accepted, pid))
        return True

    # Requests of runtimes

    def settle(self) -> None:
        """Handle all requests that were sent before."""
        for runtime in list(self.runtimes):
            runtime.catch_up()

    def start(self, runtime: "RuntimeConnection", request: protocol.Start) -> None:
        try:
            kept = self._kept[request.uid] = self._started(runtime, request)
        except ToolError as error:
            runtime.send(protocol.Failed(uid=request.uid, message=error.message, code=error.code))
            return
        kept.introduce()

    def _started(self, runtime: "RuntimeConnection", request: protocol.Start) -> KeeperProcess:
        if request.uid in self._kept:
            raise ToolError("The command was not started: the call has a process already.", code="command_not_started")
        if self._ending:
            raise ToolError("The command was not started: its keeper is being ended.", code="command_not_started")
        if not self._slots:
            raise ToolError(f"A keeper has at most {SLOTS} processes; end some.", code="limit_exceeded")
        self._guard.ensure()
        slot = self._slots.pop()
        try:
            return KeeperProcess(self, slot, request, runtime)
        except ToolError:
            self._slots.append(slot)
            raise

    def take(self, runtime: "RuntimeConnection", request: protocol.Take) -> None:
        kept = self._kept.get(request.uid)
        if kept is None:
            runtime.send(protocol.Unknown(uid=request.uid))
        elif request.fence < kept.fence or (request.fence == kept.fence and kept.peer not in (None, runtime)):
            runtime.send(protocol.Displaced(uid=request.uid))
        else:
            kept.attach(runtime, request.fence)

    def of(self, runtime: "RuntimeConnection", uid: str) -> KeeperProcess | None:
        """Return a process that this runtime has; tell the runtime if another one has it."""
        kept = self._kept.get(uid)
        if kept is not None and kept.peer is not runtime:
            runtime.send(protocol.Displaced(uid=uid))
            return None
        return kept

    # Ends

    def ended(self, kept: KeeperProcess) -> None:
        """Forget a process: nothing of it is left, and its end is recorded."""
        del self._kept[kept.uid]
        self._slots.append(kept.slot)
        self._rest()

    def left(self, runtime: "RuntimeConnection") -> None:
        """A runtime is gone."""
        self.runtimes.discard(runtime)
        for kept in list(self._kept.values()):
            if kept.peer is runtime:
                kept.detach()
        self._rest()

    def _terminate(self) -> None:
        self._ending = True
        for kept in list(self._kept.values()):
            kept.end_because(_TERMINATED)
        self._rest()

    def _rest(self) -> None:
        """Exit if nobody needs a keeper; one who connects at this moment does."""
        if self._kept or (self.runtimes and not self._ending):
            return
        Path(self.path).unlink(missing_ok=True)
        if not self._ending and self._accept():
            self._loop.remove_reader(self._listening)
            while self._accept():
                pass
            self._listening.close()
            self._listening = bound(self.path)
            self._loop.add_reader(self._listening, self._accept)
        else:
            self.done.set()

    def close(self) -> None:
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for runtime in list(self.runtimes):
            runtime.close()
        self._guard.close()
        self.page.close()


class RuntimeConnection:
    def __init__(self, keeper: Keeper, accepted: socket.socket, pid: int) -> None:
        self._keeper = keeper
        self._loop = asyncio.get_running_loop()
        self._connection = Connection(accepted, self._heard, self._lost)
        self.send = self._connection.send
        self._end: ProcessEndWatch | None = None
        # A child that the runtime forked may hold the socket open when the runtime is dead.
        with contextlib.suppress(OSError):
            self._end = machine.end_of(pid)
            self._loop.add_reader(self._end, self._died)

    def _died(self) -> None:
        self.catch_up()
        self._lost()

    def _lost(self) -> None:
        if self in self._keeper.runtimes:
            self.close()
            self._keeper.left(self)

    def close(self) -> None:
        self._connection.close()
        if self._end is not None:
            self._loop.remove_reader(self._end)
            self._end.close()
            self._end = None

    def catch_up(self) -> None:
        while self._connection.receive():
            pass

    def _heard(self, frame: bytes, descriptors: list[int]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)
        request = protocol.requests.decode(frame)
        keeper = self._keeper
        match request:
            case protocol.Hello():
                keeper.settle()
                page = [os.dup(keeper.page.descriptor)]
                self.send(protocol.Welcome(version=protocol.VERSION, mark=keeper.mark), page)
            case protocol.Start():
                keeper.start(self, request)
            case protocol.Take():
                keeper.take(self, request)
            case _:
                kept = keeper.of(self, request.uid)
                if kept is not None:
                    _perform(kept, request)


def _perform(kept: KeeperProcess, request: protocol.Request) -> None:
    match request:
        case protocol.Write():
            kept.write(request)
        case protocol.CloseStdin():
            kept.close_stdin(request.number)
        case protocol.Resize():
            kept.resize(request.rows, request.cols)
        case protocol.EndProcess():
            kept.end(request.grace)
        case protocol.Hide():
            kept.hide(request.secret)
        case protocol.Leave():
            kept.detach()
        case protocol.Seen():
            kept.seen(request.total)
