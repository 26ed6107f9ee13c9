"""Start Python programs of ours as forks of one process that has imported everything.

A program that imports keephold spends half a second to a second and a half of a core on imports alone, and the tests
start more than a thousand of them. While `installed()` is in force, `subprocess.Popen` starts such a program as a fork
of a process that has already imported what it needs (`server.py`). Everything else is the program's own: it is a child
of the process that called `Popen`, with its own arguments, environment (also in /proc), directory, descriptors,
session, limits, standard streams, warnings and end.

Programs that a shell starts are reached by `launchers`: a directory for the front of its PATH.

Three things differ from a real start: modules are imported already, so the time to start is not that of users, and they
are not taken apart at the end. Tests whose subject is one of these mark themselves `cold`: all their programs start as
usual. So do programs with interpreter options or an environment that `planned` does not know, and all programs on a
kernel that does not allow it.
"""

import ctypes
import inspect
import marshal
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.warm.program import Program, planned

_SERVER, _LAUNCHER = (Path(__file__).with_name(name) for name in ("server.py", "launcher.py"))
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_ARGUMENTS = (
    "self", "args", "executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo", "creationflags",
    "shell", *_PIPES, "restore_signals", "gid", "gids", "uid", "umask", "start_new_session", "process_group",
)  # fmt: skip


class _Server:
    """The process that is forked, and the socket to it. One for each process that runs tests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._able = False
        self.address = b""
        self.environment = dict(os.environ)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def descriptor(self) -> int | None:
        return self._socket.fileno() if self._socket else None

    def start(self, program: Program, descriptors: list[int]) -> int | None:
        """Return the pid of a fork, a child of this process, that has become the program; None where that cannot be."""
        with self._lock:
            connection = self._socket or self._open()
            if not self._able:
                return None
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # adopts what the server's fork has forked
            try:
                socket.send_fds(connection, [marshal.dumps(tuple(program))], descriptors)
                answer = connection.recv(64)
            finally:
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert answer, "the process that is forked for programs has ended"
        return int(answer)

    def opened(self) -> bool:
        """Whether programs can be started warm."""
        with self._lock:
            self._socket or self._open()
        return self._able

    def _open(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            for which in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, which, 1 << 20)
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
            door.bind("")  # the kernel finds a name that no file has
            door.listen()
            self.address = door.getsockname()
            self._process = subprocess.Popen(
                [sys.executable, str(_SERVER), str(theirs.fileno()), str(door.fileno())],
                cwd="/",
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), door.fileno()],
            )
        self._socket = ours
        self._able = ours.recv(64) == b"ready"
        return ours

    def close(self) -> None:
        if self._socket and self._process:
            self._socket.close()
            self._process.wait()
            self._socket = self._process = None


_server: _Server | None = None
_cold = False


def pid() -> int | None:
    """The pid of the process that is forked, once there is one: no test has left it behind."""
    return _server.pid if _server else None


def descriptor() -> int | None:
    """The descriptor of the socket to it."""
    return _server.descriptor if _server else None


@contextmanager
def installed() -> Iterator[None]:
    """Start programs of ours warm in this block, if this Python and this kernel can."""
    global _server
    original = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    if tuple(inspect.signature(original).parameters) != _ARGUMENTS or not sys.platform.startswith("linux"):
        yield
        return
    _server = server = _Server()

    def execute_child(self: Any, *given: Any) -> None:
        named = dict(zip(_ARGUMENTS[1:], given, strict=True))
        if _cold or not _warm(self, named, server):
            original(self, *given)

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]
    try:
        yield
    finally:
        subprocess.Popen._execute_child = original  # type: ignore[attr-defined]
        server.close()
        _server = None


@contextmanager
def cold() -> Iterator[None]:
    """Start all programs as usual in this block."""
    global _cold
    _cold = True
    try:
        yield
    finally:
        _cold = False


def launchers(directory: Path) -> Path:
    """Write `keephold` and `python` into a directory: a shell that finds them on its PATH starts them warm."""
    if _server and not _cold and _server.opened():
        directory.mkdir(exist_ok=True)
        for name, real in (("keephold", Path(sys.executable).with_name("keephold")), ("python", Path(sys.executable))):
            (directory / name).write_text(
                f"#!{sys.executable} -IS\nimport sys\nsys.path.insert(0, {str(_LAUNCHER.parent)!r})\n"
                f"from launcher import main\nmain({_server.address!r}, {str(real)!r}, sys.argv[1:])\n"
            )
            (directory / name).chmod(0o755)
    return directory


# What is started warm


def _warm(popen: Any, given: Mapping[str, Any], server: _Server) -> bool:
    usual = (
        given["executable"] is None and given["preexec_fn"] is None and given["close_fds"] and not given["shell"]
        and given["restore_signals"] and given["umask"] < 0
        and given["gid"] is None and given["gids"] is None and given["uid"] is None
    )  # fmt: skip
    if not usual:
        return False
    cwd = os.path.abspath(os.fsdecode(given["cwd"] or os.getcwd()))  # noqa: PTH100, PTH109
    env = dict(os.environb) if given["env"] is None else _bytes(given["env"])
    if isinstance(given["args"], (str, bytes)) or not Path(cwd).is_dir():
        return False
    try:
        argv = [os.fsdecode(word) for word in given["args"]]
    except TypeError:
        return False
    program = planned(argv, cwd, env, server.environment)
    if program is None:
        return False
    descriptors = [given[end] if given[end] >= 0 else at for at, end in enumerate(("p2cread", "c2pwrite", "errwrite"))]
    passed = [fd for fd in given["pass_fds"] if fd > 2]
    program = program._replace(
        targets=[0, 1, 2, *passed],
        new_session=given["start_new_session"],
        group=given["process_group"],
        ignored=[int(number) for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN],
        limits=[(number, resource.getrlimit(number)) for number in _LIMITS],
    )
    pid = server.start(program, [*descriptors, *passed])
    if pid is None:
        return False
    popen.pid = pid
    popen._child_created = True
    popen._close_pipe_fds(*(given[end] for end in _PIPES))
    return True


_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


def _bytes(env: Mapping[Any, Any]) -> dict[bytes, bytes]:
    return {os.fsencode(key): os.fsencode(value) for key, value in env.items()}
