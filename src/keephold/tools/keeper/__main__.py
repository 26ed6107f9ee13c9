"""The keeper's program: `python -m keephold.tools.keeper DIRECTORY SOCKET PIPE`.

It forks at once and the parent exits, so that the keeper is nobody's child. It writes to the pipe `ready`, `another` if
another keeper has the lock, or why it cannot be the keeper.
"""

import os
import signal
import sys
from pathlib import Path


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
    gc.freeze()
    try:
        asyncio.run(serve(Path(directory), path, listening))
    finally:
        Path(f"{path}.lock").unlink(missing_ok=True)
        os.close(lock)


if __name__ == "__main__":
    main()
