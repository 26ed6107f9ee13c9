"""A proxy before a server, which cuts connections where a test wants it, or swallows what is sent."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

Cut = Literal["request", "answer"]
Way = Literal["there", "back"]


class Proxy:
    """Forwards connections to a server of this machine. `cut` decides, by what a client sends, about the connection:
    "request" drops it before the server gets that, "answer" when the server has answered."""

    def __init__(self, port: int) -> None:
        self._server = port
        self.port = 0
        self.cut: Callable[[bytes], Cut | None] = lambda _: None
        self.cuts = 0
        self.silent = False
        """Whether everything that is sent is lost, and all connections stay open."""
        self.ended = 0
        """Connections that the server has ended."""
        self.lingers = False
        """Whether clients are not told that the server has ended their connections."""
        self._left: dict[Way, int] = {}
        """By direction, how many bytes may pass before all connections are cut."""
        self._open: set[asyncio.StreamWriter] = set()

    def cut_once(self, sent: bytes, how: Cut) -> None:
        """Cut the next connection on which a client sends this."""

        def decide(data: bytes) -> Cut | None:
            if sent not in data or self.cuts:
                return None
            self.cuts += 1
            return how

        self.cuts, self.cut = 0, decide

    def cut_after(self, way: Way, count: int) -> None:
        """Cut all connections when so many more bytes have passed in that direction."""
        self.cuts, self._left = 0, {way: count}

    async def _pass(self, way: Way, data: bytes, to: asyncio.StreamWriter) -> bool:
        """Hand on what was sent, as far as it may go; return whether the connection continues."""
        if self.silent:
            return True
        left = self._left.get(way)
        if left is not None and left <= len(data):
            to.write(data[:left])
            await asyncio.sleep(0)  # the other side gets the beginning
            self._left, self.cuts = {}, self.cuts + 1
            self.cut_all()
            return False
        if left is not None:
            self._left[way] = left - len(data)
        to.write(data)
        await to.drain()
        return True

    def cut_all(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = None
        try:
            back, there = await asyncio.open_connection("127.0.0.1", self._server)
            self._open |= {writer, there}
            answers = asyncio.create_task(self._answers(back, writer))
            try:
                while data := await reader.read(1 << 16):
                    how = self.cut(data)
                    if how == "request":
                        break
                    if how == "answer":
                        answers.cancel()
                        with contextlib.suppress(asyncio.CancelledError):
                            await answers
                        there.write(data)
                        await back.read(1)
                        break
                    if not await self._pass("there", data, there):
                        break
            finally:
                answers.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await answers
        except OSError:
            pass
        finally:
            for each in filter(None, (writer, there)):
                self._open.discard(each)
                each.transport.abort()

    async def _answers(self, back: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while (data := await back.read(1 << 16)) and await self._pass("back", data, writer):
                pass
        self.ended += 1
        if not self.lingers:
            writer.transport.abort()


@asynccontextmanager
async def proxy(port: int) -> AsyncIterator[Proxy]:
    """A proxy before the server of that port."""
    made = Proxy(port)
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await made.serve(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        made.cut_all()
        await asyncio.gather(*tasks, return_exceptions=True)
