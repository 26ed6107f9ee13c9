"""The keeper's program: `python -m keephold.tools.keeper DIRECTORY SOCKET PIPE`.

It forks at once and the parent exits, so that the keeper is nobody's child. It writes to the pipe `ready`, `another` if
another keeper has the lock, or why it cannot be the keeper.
"""

import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path

_LONGEST_LOG = 256 << 10


class _Log(logging.Handler):
    """Appends to a file that nobody needs unless something is wrong: it is made then, and does not grow without end."""

    def __init__(self, path: str) -> None:
        super().__init__(logging.WARNING)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(self._path, flags, 0o600)
            try:
                if os.fstat(file).st_size < _LONGEST_LOG:
                    os.write(file, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self.format(record)}\n".encode())
            finally:
                os.close(file)


def _ignore(_number: int, _frame: object) -> None: ...


def main() -> None:
    directory, path, number = sys.argv[1:]
    if os.fork():
        os._exit(0)
    for ignored in (signal.SIGHUP, signal.SIGINT):
        signal.signal(ignored, _ignore)  # not SIG_IGN, which the programs would inherit
    sys.modules["ssl"] = None  # type: ignore[assignment] # a third of what asyncio would import
    import asyncio
    import gc

    from keephold.tools.keeper.server import Another, bound, locked, serve

    pipe = int(number)
    lock = -1
    try:
        lock = locked(path)
        listening = bound(path)
        said = "ready"
    except Another:
        said = "another"
    except OSError as error:
        said = f"it cannot listen at {path}: {error}"
    os.write(pipe, said.encode())
    os.close(pipe)
    if said != "ready":
        return
    logging.getLogger().addHandler(_Log(f"{path}.log"))
    gc.freeze()
    try:
        asyncio.run(serve(Path(directory), path, listening))
    except Exception:
        logging.exception("the keeper has failed")
        raise
    finally:
        Path(f"{path}.lock").unlink(missing_ok=True)
        os.close(lock)


if __name__ == "__main__":
    main()
