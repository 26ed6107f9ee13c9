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
import fcntl
import hashlib
import os
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from keephold.control.server_discovery import connect

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
_LOG_BYTES = 1 << 20


class Background:
    """The background server for one store, configuration, environment and conversation."""

    def __init__(self, store: Path, config: "Config", conversation: str | None) -> None:
        self._store = store
        self._config = config
        self._conversation = conversation
        self.name = _digest(config, conversation)
        self._lock = store.with_name(f"{store.name}-server-{self.name}.lock")
        self._log = store.with_name(f"{store.name}-server.log")

    def connect(self, serve: Serve) -> socket.socket | None:
        """Connect to the server; if there is none, start one, which runs `serve` with a callback for "I listen".

        Return None if it did not start: its log says why.
        """
        with self._locked():
            found = self._connected()
            if found is None and self._started(serve):
                found = self._connected()
        return found

    def _connected(self) -> socket.socket | None:
        source = self._config.source
        return connect(self._store, None if source is None else source.path, self._conversation, self.name)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._held = descriptor
            yield
        finally:
            os.close(descriptor)

    def _started(self, serve: Serve) -> bool:
        """Fork the server, twice, so that a host that ends its children with all of theirs does not find it."""
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                if os.fork() == 0:
                    os.close(told)
                    os.close(self._held)  # the lock is that of the command
                    self._run(serve, tell)
            finally:
                os._exit(0)
        os.close(tell)
        os.waitpid(child, 0)
        with os.fdopen(told, "rb") as listens:
            return bool(listens.read(1))

    def _run(self, serve: Serve, tell: int) -> NoReturn:
        """Serve in this process until it is not needed any more."""

        def listens() -> None:
            os.write(tell, b"1")
            os.close(tell)

        self._detach(tell)
        code = 1
        try:
            code = asyncio.run(serve(self, listens))
        except BaseException as error:
            print(f"the background server ended: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)

    def _detach(self, tell: int) -> None:
        """Leave everything of the client: its streams, its directory, and descriptors it may have passed."""
        source = self._config.source
        os.chdir("/" if source is None else source.path.parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        if self._log.exists() and self._log.stat().st_size > _LOG_BYTES:
            flags |= os.O_TRUNC
        log, nothing = os.open(self._log, flags, 0o600), os.open(os.devnull, os.O_RDWR)
        for new, old in ((nothing, 0), (nothing, 1), (log, 2)):
            os.dup2(new, old)
        os.closerange(3, tell)
        os.closerange(tell + 1, os.sysconf("SC_OPEN_MAX"))

    async def unneeded(self, runtime: "Runtime", listening: "Listening", secs: float) -> None:
        """Return when it has had neither a client nor a handle for that long. Clients can no longer connect then."""
        while True:
            idle = 0.0
            while idle < secs:
                pause = min(secs, 10.0)
                await asyncio.sleep(pause)
                idle = 0.0 if listening.clients or runtime.registry.live() else idle + pause
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                with contextlib.suppress(BlockingIOError):  # a client is connecting
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    await asyncio.sleep(_ACCEPT_SECS)
                    if not listening.clients:
                        listening.withdraw()
                        return
            finally:
                os.close(descriptor)


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
