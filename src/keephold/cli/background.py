"""The background server of `keephold mcp` (M3): what a client spawned keeps running after the client has left.

Hosts start a process for each session, and some for each call. Such a process would end what it spawned, so it only
forwards bytes. The server behind it is one process for each store, configuration and environment. The first client
starts it, and it ends some minutes after its last client has left and its last handle has stopped.

It is a fork of the command, made before anything that does not survive a fork is opened. So a first start costs no
second interpreter, and the configuration that was read, and found to be trusted, is the one that is served.

A lock beside the note of the server orders starts, connections and the end: two clients never start two servers, and a
server that ends takes no client with it.
"""

import asyncio
import contextlib
import hashlib
import os
import select
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from keephold.control.server_discovery import connect, note_of, open_own
from keephold.platforms import machine

if TYPE_CHECKING:
    from keephold.config import Config
    from keephold.mcp.socket import Listening
    from keephold.runtime import Runtime

_OF_A_SESSION = {
    "_", "COLUMNS", "INVOCATION_ID", "JOURNAL_STREAM", "LINES", "OLDPWD", "PWD", "SHLVL", "SSH_CLIENT",
    "SSH_CONNECTION", "SSH_TTY", "TERM_SESSION_ID", "TMUX", "TMUX_PANE", "WINDOWID", "XDG_SESSION_ID",
}  # fmt: skip
"""Variables that differ between the terminals of one user. A tool does not depend on them."""
Serve = Callable[["Background", Callable[[], None]], Coroutine[Any, Any, int]]
_ACCEPT_SECS = 0.2
"""How long the end of a server waits for a client that has connected just before."""
_START_SECS = 60.0
"""How long a client waits for a server to start before it serves itself."""
_LOOK_SECS = 10.0
_LOG_BYTES = 1 << 20
_NEWER = 3
"""How many newer servers end an unused one early. A host that passes another value of some variable at every start, as
that of a trace, would else leave a server for each of its calls."""


class Background:
    """The background server for one store, configuration, environment and conversation."""

    def __init__(self, store: Path, config: "Config", conversation: str | None) -> None:
        self._store = store
        self._config = config
        self._conversation = conversation
        self.name = _digest(config, conversation)
        self._lock = store.with_name(f"{store.name}-server-{self.name}.lock")
        self._log = store.with_name(f"{store.name}-server.log")
        self._logged: int | None = None

    def connect(self, serve: Serve) -> socket.socket | None:
        """Connect to the server; if there is none, start one, which runs `serve` with a callback for "I listen".

        Return None if it did not start: its log says why. Raise `OSError` if it cannot be started.
        """
        self._store.parent.mkdir(parents=True, exist_ok=True)
        with self._locked():
            found = self._connected()
            if found is None and self._started(serve):
                found = self._connected()
        return found

    def _connected(self) -> socket.socket | None:
        source = self._config.source
        return connect(self._store, None if source is None else source.path, self._conversation, self.name)

    @contextmanager
    def _locked(self, *, wait: bool = True) -> Iterator[None]:
        while True:
            self._held = open_own(self._lock, os.O_RDWR | os.O_CREAT)
            try:
                machine.lock(self._held, wait=wait)
                if self._lock.exists() and os.path.samestat(os.fstat(self._held), self._lock.lstat()):
                    yield
                    return
            finally:  # a server that ended has removed the file
                os.close(self._held)

    def _started(self, serve: Serve) -> bool:
        """Fork the server, twice, so that a host that ends its children with all of theirs does not find it."""
        log = open_own(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        told, tell = os.pipe()
        with os.fdopen(log, "wb"), os.fdopen(told, "rb") as listens, os.fdopen(tell, "wb") as end:
            child = os.fork()
            if child == 0:
                try:
                    os.setsid()
                    if os.fork() == 0:
                        self._run(serve, log, tell)
                finally:
                    os._exit(0)
            end.close()
            os.waitpid(child, 0)
            ready, _, _ = select.select([listens], [], [], _START_SECS)
            return bool(ready and listens.read(1))

    def _run(self, serve: Serve, log: int, tell: int) -> NoReturn:
        """Serve in this process until it is not needed any more."""

        def listens() -> None:
            os.write(tell, b"1")
            os.close(tell)

        self._detach(log, tell)
        code = 1
        try:
            code = asyncio.run(serve(self, listens))
        except BaseException as error:
            print(f"the background server ended: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)

    def _detach(self, log: int, tell: int) -> None:
        """Leave everything of the client: its streams, its directory, its lock, and descriptors it may have passed."""
        source = self._config.source
        os.chdir("/" if source is None else source.path.parent)
        nothing = os.open(os.devnull, os.O_RDWR)
        for new, old in ((nothing, 0), (nothing, 1), (log, 2)):
            os.dup2(new, old)
        os.closerange(3, tell)
        os.closerange(tell + 1, os.sysconf("SC_OPEN_MAX"))
        self._logged = 2
        self._trim()

    async def unneeded(self, runtime: "Runtime", listening: "Listening", secs: float) -> None:
        """Return when it has had neither a client nor a handle for that long. Clients can no longer connect then."""
        while True:
            idle = 0.0
            while idle < secs and not (idle and self._is_old()):
                pause = min(secs, _LOOK_SECS)
                await asyncio.sleep(pause)
                self._trim()
                idle = 0.0 if listening.clients or runtime.registry.live() else idle + pause
            with contextlib.suppress(BlockingIOError), self._locked(wait=False):
                await asyncio.sleep(_ACCEPT_SECS)
                if not listening.clients:
                    listening.withdraw()
                    self._lock.unlink(missing_ok=True)
                    return

    def _trim(self) -> None:
        """Empty a log that has grown too long. All servers that write to it append."""
        if self._logged is not None and os.fstat(self._logged).st_size > _LOG_BYTES:
            os.ftruncate(self._logged, 0)

    def _is_old(self) -> bool:
        """Return whether several servers were started on the store after this one."""
        own, beside = note_of(self._store, self.name), f"{self._store.name}-server-"
        with contextlib.suppress(OSError), os.scandir(self._store.parent) as entries:
            begun = own.stat().st_mtime_ns
            notes = (each for each in entries if each.name.startswith(beside) and not each.name.endswith(".lock"))
            return sum(each.stat(follow_symlinks=False).st_mtime_ns > begun for each in notes) >= _NEWER
        return False


def _digest(config: "Config", conversation: str | None) -> str:
    """Return a name for all that decides how tools run."""
    known, source = hashlib.sha256(), config.source
    parts = [version("keephold"), sys.executable, conversation or ""]
    parts += [f"{name}={value}" for name, value in sorted(os.environ.items()) if name not in _OF_A_SESSION]
    if source is not None:
        parts += [str(source.path.resolve()), repr(source.data), *_code(config)]
    for part in parts:
        known.update(os.fsencode(part) + b"\0")
    return known.hexdigest()[:16]


def _code(config: "Config") -> Iterator[str]:
    """Yield the state of the project's modules that have Python tools: a changed tool needs a new process."""
    functions = (tool.function for tool in config.conversation.tools.values() if tool.function is not None)
    for top in sorted({function.partition(":")[0].partition(".")[0] for function in functions}):
        for path in (config.root / f"{top}.py", *sorted((config.root / top).rglob("*.py"))):
            with contextlib.suppress(OSError):
                yield f"{path} {path.stat().st_mtime_ns}"
