"""The servers that the benchmarks of `keephold serve` call, each a process: ours, and an empty one that also commits.

The empty one is a Starlette application whose only handler reads the body, has a row written by a raw SQLite group
commit, and answers. It is served by uvicorn as ours is. Its writer is a thread that writes in one transaction all
requests that came while the last one was written.
"""

import asyncio
import os
import queue
import re
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psutil
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from bench.raw import Raw

TOKEN = "token-of-the-benchmarks-0123456789"


class Server:
    """A process that serves, and where."""

    def __init__(self, process: "subprocess.Popen[str]", port: int) -> None:
        self.process = process
        self.port = port

    @property
    def resident(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    @property
    def descriptors(self) -> int:
        return int(psutil.Process(self.process.pid).num_fds())

    @property
    def threads(self) -> int:
        return int(psutil.Process(self.process.pid).num_threads())


@contextmanager
def ours(path: Path) -> Iterator[Server]:
    """`keephold serve` on that store, with no tools of its own."""
    config = path.with_suffix(".toml")
    config.touch()
    words = ["--store", f"sqlite:///{path}", "--config", str(config), "--port", "0"]
    with _started([sys.executable, "-m", "keephold", "serve", *words]) as server:
        yield server


@contextmanager
def empty(path: Path) -> Iterator[Server]:
    """The one to be compared with, that writes into that file."""
    with _started([sys.executable, "-m", "bench.serve_servers", str(path)]) as server:
        yield server


@contextmanager
def _started(command: list[str]) -> Iterator[Server]:
    environment = {**os.environ, "KEEPHOLD_TOKEN": TOKEN}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        said = ""
        try:
            while (found := re.search(r"https?://[^\s/:]+:(\d+)", said)) is None:
                line = process.stdout.readline()
                assert line, f"the server did not start: {said}"
                said += line
            yield Server(process, int(found[1]))
        finally:
            process.terminate()


class Grouped:
    """Rows that are written in groups by a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None]
        self._waiting = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    async def commit(self) -> None:
        """Until a row of ours is on the disk."""
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        self._waiting.put((loop, written))
        await written

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join()

    def _write(self) -> None:
        raw = Raw(self._path)
        while (first := self._waiting.get()) is not None:
            group = [first]
            while not self._waiting.empty() and (more := self._waiting.get()) is not None:
                group.append(more)
            raw.commit(len(group))
            group[0][0].call_soon_threadsafe(_tell, [written for _, written in group])
        raw.close()


def _tell(group: list["asyncio.Future[None]"]) -> None:
    for written in group:
        if not written.done():
            written.set_result(None)


def empty_app(path: Path) -> Starlette:
    """The application that only commits."""
    rows = Grouped(path)

    async def complete(request: Request) -> JSONResponse:
        await request.body()
        await rows.commit()
        return JSONResponse({"status": "accepted"})

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        rows.close()

    return Starlette(routes=[Route("/complete/{key}", complete, methods=["POST"])], lifespan=lifespan)


async def _serve(path: Path) -> None:
    # Named TCP, or asyncio leaves Nagle's algorithm on, and every reply takes 40 ms.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen(2048)
        print(f"http://127.0.0.1:{bound.getsockname()[1]}", flush=True)
        config = uvicorn.Config(
            empty_app(path),
            access_log=False,
            log_level="warning",
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=75,
            ws="none",
        )
        await uvicorn.Server(config).serve([bound])


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
