"""The runtime's end: starts a keeper, starts processes in it, and takes them back from the runtime before.

Nothing here blocks the loop. `Keeper` has one connection to the keeper it starts processes in, and one to each other
keeper that it took a process back from: a runtime with another directory for sockets may have started that one.
"""

import asyncio
import contextlib
import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypedDict, Unpack

from keephold.errors import KeepholdError, ToolError
from keephold.forking import close_in_children
from keephold.handles.output import Layout
from keephold.private_file import is_ours, socket_directory
from keephold.tools import marks
from keephold.tools.child import not_started
from keephold.tools.environment import conceal, inherited
from keephold.tools.keeper import protocol
from keephold.tools.keeper.children import Hooks, KeptChild, KeptProcess, KeptPty, ProcessEnd, ended
from keephold.tools.keeper.protocol import Connection, Page
from keephold.tools.keeper.record import KeptRecord, read_record, record_file
from keephold.tools.keeper.times import read_times, times_file
from keephold.tools.session import Exit

START_SECS = 10.0
"""How long a keeper may take to start, or to answer a new connection."""
_AGAIN_SECS = 0.02


class Elsewhere(NamedTuple):
    """The process is kept on another host, where a runtime can take it back."""

    record: KeptRecord


class Returned(NamedTuple):
    """A kept process that still runs, and where its output is. `layout` is for `Output.follow_again`."""

    child: KeptProcess | KeptPty
    layout: Layout


class Terms(TypedDict):
    """How a process of either kind is started and kept."""

    env: Mapping[str, str]
    """The mark in it is replaced by the keeper's."""
    cwd: str | None
    grace: float
    keep_secs: float
    fence: int
    layout: Layout
    """From `Output.follow`."""
    hooks: Hooks


class Keeper:
    """The keepers of one runtime. `directory` is the store's spool."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.resolve()
        self._links: dict[str, KeeperLink] = {}
        self._path: str | None = None
        self._forgotten: list[Path] = []

    def start_process(self, uid: str, argv: Sequence[str], *, stdin: bool, **terms: Unpack[Terms]) -> KeptProcess:
        """Start a command on pipes; its stderr is part of its output.

        A failure to start is reported to `hooks.failed`. Raises `ToolError` for arguments that no program can have.
        """
        request = _request(uid, argv, terms)
        request.stdin = stdin
        link = self._own()
        child = KeptProcess(uid, link, terms["hooks"], terms["layout"].total, stdin=stdin)
        link.start(child, request)
        return child

    def start_pty(self, uid: str, argv: Sequence[str], *, rows: int, cols: int, **terms: Unpack[Terms]) -> KeptPty:
        """Start a program in a terminal; otherwise as `start_process`."""
        request = _request(uid, argv, terms)
        request.terminal = (rows, cols)
        link = self._own()
        child = KeptPty(uid, link, terms["hooks"], terms["layout"].total)
        link.start(child, request)
        return child

    async def take_back(self, uid: str, fence: int, hooks: Hooks) -> Returned | ProcessEnd | Elsewhere | None:
        """Take a kept process over from the runtime that had it; its connection is of no more use, if it lives.

        Returns how it ended, if it has; None if no such process was ever started. No hook is called before
        `child.begin()`. Raises `KeepholdError`: the keeper does not answer, another runtime with a higher fence has it
        (`lease_lost`), or the keeper is one of another version.
        """
        for attempt in range(3):  # it may just be ending, or just have been started
            record = read_record(self._directory, uid)
            if record is None:
                if attempt or not await self._link(self._socket()).settle():
                    return None
            elif record.exit is not None:
                return ended(record.exit)
            elif record.where == "other host":
                return Elsewhere(record)
            elif record.where == "gone":
                return await self._gone(record)
            elif (child := await self._link(record.socket).take(record, fence, hooks)) is not None:
                return Returned(child, Layout(record.head, record.ring, record.ahead, child.total))
        raise KeepholdError(f"the keeper of call {uid} does not know its process", code="crashed")

    async def _gone(self, record: KeptRecord) -> ProcessEnd:
        """Its keeper is dead: the guard has killed it, or is about to."""
        mark = marks.call_mark(record.keeper, record.uid)
        await asyncio.to_thread(marks.kill_all, lambda pid: marks.bears(pid, mark), looks=1)
        total = max((each.total for each in read_times(self._directory, record.uid)), default=0)
        return ProcessEnd(Exit(None, None), total, "its keeper was killed, or the machine was restarted")

    def forget(self, uid: str, *, output: bool) -> None:
        """Remove the files of a process whose end is stored, a moment later; `output`: that of its output, too."""
        if not self._forgotten:  # after those who wait for the end have it
            asyncio.get_running_loop().call_later(0, self._remove)
        self._forgotten += [record_file(self._directory, uid), times_file(self._directory, uid)]
        if output:
            self._forgotten.append(self._directory / uid)

    def _remove(self) -> None:
        files, self._forgotten = self._forgotten, []
        for file in files:
            with contextlib.suppress(OSError):
                file.unlink()

    async def leave(self) -> None:
        """Disconnect: the processes continue, for their `keep_secs`. No hook is called any more."""
        self._remove()
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.leave()

    # The connections

    def _own(self) -> "KeeperLink":
        link = self._link(self._socket())
        link.connect(partial(_start_keeper, self._directory, link.path))
        return link

    def _link(self, path: str) -> "KeeperLink":
        link = self._links.get(path)
        if link is None or link.lost:
            link = self._links[path] = KeeperLink(path)
        return link

    def _socket(self) -> str:
        """Return the path of our keeper's socket. Runtimes inside a tool of another runtime have their own keeper."""
        if self._path is None:
            whose = f"{self._directory}\0{marks.outer()}"  # a keeper ends with the runtimes around it
            name = f"{hashlib.sha256(os.fsencode(whose)).hexdigest()[:16]}.k"
            self._path = str(socket_directory(name) / name)
        return self._path


def _request(uid: str, argv: Sequence[str], terms: Terms) -> protocol.Start:
    layout, cwd = terms["layout"], terms["cwd"]
    try:
        return protocol.Start(
            uid=uid,
            fence=terms["fence"],
            argv=[os.fsencode(word) for word in argv],
            env={os.fsencode(name): os.fsencode(value) for name, value in terms["env"].items()},
            cwd=None if cwd is None else os.fsencode(cwd),
            grace=terms["grace"],
            keep_secs=terms["keep_secs"],
            head=layout.head,
            ring=layout.ring,
            ahead=layout.ahead,
            total=layout.total,
        )
    except ValueError as error:
        raise not_started(argv, cwd, error) from error


class KeeperLink:
    """A connection to one keeper, and the processes that this runtime has there."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.page: Page | None = None
        self.lost = False
        """The keeper has died, or could not be started."""
        self._failure: KeepholdError | None = None
        self._starting: Starting | None = None
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._unsent: list[protocol.Request] = []
        self._children: dict[str, KeptChild] = {}
        self._takes: dict[str, asyncio.Future[bool]] = {}
        self._welcomes: list[asyncio.Future[None]] = []

    # Requests

    def start(self, child: KeptChild, request: protocol.Start) -> None:
        self._children[child.uid] = child
        self.send(request)

    def send(self, message: protocol.Request) -> None:
        if self._connection is None or self.page is None:
            self._unsent.append(message)
        else:
            self._connection.send(message)

    def gone(self, child: KeptChild) -> None:
        """The child needs the connection no more."""
        if self._children.get(child.uid) is child:
            del self._children[child.uid]

    async def take(self, record: KeptRecord, fence: int, hooks: Hooks) -> KeptProcess | KeptPty | None:
        """Take a process back; None if the keeper does not know it."""
        if not (self._connected or await self.settle()):
            if marks.owner_alive(record.keeper) is False:
                return None  # it has just died
            raise self._failure or _not_answering(f"nothing listens at {self.path}")
        uid, child = record.uid, _child_of(record, self, hooks)
        child.hold()
        answer = self._takes[uid] = asyncio.get_running_loop().create_future()
        if (before := self._children.get(uid)) is not None:
            before.close()
        self._children[uid] = child
        self.send(protocol.Take(uid=uid, fence=fence))
        found = False
        try:
            async with asyncio.timeout(START_SECS):
                found = await answer
        except TimeoutError:
            self.send(protocol.Leave(uid=uid))  # should it answer later
            raise _not_answering("it is silent") from None
        finally:
            self._takes.pop(uid, None)
            if not found:
                self.gone(child)
        return child if found else None

    async def settle(self) -> bool:
        """Return when the keeper has handled all requests so far, of any runtime; False if there is no keeper."""
        if self._connected:
            assert self._connection is not None
            try:
                async with asyncio.timeout(START_SECS):
                    await self._greeted(self._connection)
            except TimeoutError:
                raise _not_answering("it is silent") from None
            except ConnectionError:
                return False
        elif not self.lost:
            self.connect(None)
            assert self._connecting is not None
            await asyncio.wait([self._connecting])
        return self._connected

    # The connection

    def connect(self, starting: "Starting | None") -> None:
        """Begin to connect, unless that is done; `starting` starts a keeper if there is none."""
        self._starting = starting or self._starting
        if not self._connected and self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(START_SECS):
                while not await self._try() and self._starting is not None:
                    await self._starting()
        except TimeoutError:
            self._fail(_not_started(f"it did not answer within {START_SECS:g} s"), _not_answering("it is silent"))
        except (KeepholdError, OSError) as error:
            self._fail(_not_started(str(error)), error)
        finally:
            self._connecting = None

    async def _try(self) -> bool:
        """Connect to a keeper of this user that listens, and greet it. The path may be from a file beside the store."""
        if not is_ours(self.path):
            return False
        sock = close_in_children(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        sock.setblocking(False)
        try:
            sock.connect(self.path)
        except OSError:  # no keeper, or one that is busy or just exits
            sock.close()
            return False
        self._connection = Connection(sock, self._heard, self._lost)
        with contextlib.suppress(ConnectionError):
            await self._greeted(self._connection)
        if not self._connected:
            await asyncio.sleep(_AGAIN_SECS)
            return False
        unsent, self._unsent = self._unsent, []
        for message in unsent:
            self.send(message)
        return True

    @property
    def _connected(self) -> bool:
        return self._connection is not None and self.page is not None

    async def _greeted(self, connection: Connection) -> None:
        """Greet the keeper, and return when it has answered."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._welcomes.append(answer)
        connection.send(protocol.Hello())
        await answer

    def _heard(self, frame: bytes, descriptors: list[int]) -> None:
        report = protocol.reports.decode(frame)
        if isinstance(report, protocol.Welcome):
            self._welcome(report, descriptors)
            return
        child = self._children.get(report.uid)
        answer = self._takes.get(report.uid)
        if answer is not None and not answer.done():
            match report:
                case protocol.Displaced():
                    answer.set_exception(_displaced(report.uid))
                    return
                case protocol.Unknown():
                    answer.set_result(False)
                case protocol.ProcessRunning(total=total) if child is not None:
                    child.total = total
                    answer.set_result(True)
        if child is None:
            for descriptor in descriptors:
                os.close(descriptor)
        else:
            child.handle(report, descriptors)

    def _welcome(self, report: protocol.Welcome, descriptors: list[int]) -> None:
        wrong = report.version > protocol.VERSION  # an older one is understood
        if self.page is None and not wrong:
            self.page = Page(descriptors.pop())
        for descriptor in descriptors:
            os.close(descriptor)
        answer = self._welcomes.pop(0)
        if answer.done():
            return
        if wrong:
            answer.set_exception(_other_version(report.version))
        else:
            answer.set_result(None)

    def _lost(self) -> None:
        """The connection broke: before the keeper answered, it was just exiting; later, it was killed."""
        self._connection = None
        welcomes, self._welcomes = self._welcomes, []
        for answer in welcomes:
            if not answer.done():
                answer.set_exception(ConnectionError())
        if self.page is not None:
            self._fail(_died())

    def _fail(self, error: ToolError, reason: Exception | None = None) -> None:
        self.lost = True
        self._failure = reason if isinstance(reason, KeepholdError) else error
        self._close()
        for child in list(self._children.values()):
            child.fail(error)
        for answer in self._takes.values():
            if not answer.done():
                answer.set_result(False)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self.page is not None:
            self.page.close()
            self.page = None

    async def leave(self) -> None:
        if self._connecting is not None:
            await asyncio.wait([self._connecting])
        if self._connection is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._connection.drained()
        self.lost = True
        for child in list(self._children.values()):
            child.release()
        self._close()


Starting = Callable[[], Awaitable[None]]


async def _start_keeper(directory: Path, path: str) -> None:
    """Start a keeper and return when it listens, or another one does. Raises `OSError` or `ToolError`."""
    conceal()  # before it can look
    read, write = os.pipe()
    try:
        program = subprocess.Popen(  # noqa: ASYNC220 (as any command is started; asyncio's would watch its end)
            [sys.executable, "-P", "-s", "-m", "keephold.tools.keeper", str(directory), path, str(write)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=inherited(),  # without our own mark: the keeper outlives us
            cwd="/",  # otherwise our directory's file system would stay busy
            start_new_session=True,
            pass_fds=(write,),
        )
    except OSError:
        os.close(read)
        raise
    finally:
        os.close(write)
    try:
        said = await _read(read)
    finally:
        os.close(read)
        program.wait()  # it has forked the keeper, and exited at once
    if said == b"another":
        await asyncio.sleep(_AGAIN_SECS)  # which may be just exiting
    elif said != b"ready":
        raise ToolError(said.decode(errors="replace") or "it ended at once", code="command_not_started")


async def _read(descriptor: int) -> bytes:
    """Return what is written to a pipe until it is closed."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    os.set_blocking(descriptor, False)
    loop.add_reader(descriptor, readable.set)
    said = b""
    try:
        while True:
            await readable.wait()
            readable.clear()
            with contextlib.suppress(BlockingIOError):
                piece = os.read(descriptor, 4096)
                if not piece:
                    return said
                said += piece
    finally:
        loop.remove_reader(descriptor)


def _child_of(record: KeptRecord, link: KeeperLink, hooks: Hooks) -> KeptProcess | KeptPty:
    if record.terminal is None:
        return KeptProcess(record.uid, link, hooks, 0, stdin=record.stdin)
    return KeptPty(record.uid, link, hooks, 0)


def _not_started(reason: str) -> ToolError:
    return ToolError(
        f"The keeper process could not be started ({reason}), and without it no command is kept: make sure that "
        f"{sys.executable} can be run and that the limits on processes and open files leave room.",
        code="command_not_started",
    )


def _died() -> ToolError:
    return ToolError(
        "The keeper process of this store was killed, and the command with it. Its output up to then is kept.",
        code="crashed",
    )


def _not_answering(reason: str) -> KeepholdError:
    return KeepholdError(
        f"The keeper of the process lives but does not answer ({reason}); it may be stopped. Try again.",
        code="owner_not_answering",
    )


def _displaced(uid: str) -> KeepholdError:
    return KeepholdError(f"another runtime has taken call {uid} back", code="lease_lost")


def _other_version(version: int) -> KeepholdError:
    return KeepholdError(
        f"The keeper of this store speaks version {version} of its protocol, and this keephold version "
        f"{protocol.VERSION}. Use the version of keephold that started it, or end its processes first.",
        code="store_unusable",
    )
