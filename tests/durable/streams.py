"""A client of a runtime's streams, for the tests of them: what it wants, and what it is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple

import msgspec
from tests.patience import PATIENCE

from keephold import Runtime
from keephold.store.sqlite.store import SqliteStore
from keephold.turn import attach_protocol as frames


class Heard(NamedTuple):
    """What a client got until it was told how the handle is at last."""

    data: bytes
    gaps: list[frames.Gap]
    states: list[str]
    end: frames.HandleStatus

    @property
    def size(self) -> int:
        """How many bytes it was told of, there or gone."""
        return len(self.data) + sum(gap.missing for gap in self.gaps)


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._socket = frames.Socket(reader, writer)

    async def receive(self) -> tuple[str, bytes] | None:
        async with asyncio.timeout(PATIENCE):
            return await self._socket.receive()

    async def expect(self, kind: str) -> bytes:
        """The payload of the next frame of that kind; state and output in between are passed over."""
        while (received := await self.receive()) is not None:
            if received[0] == kind:
                return received[1]
            assert received[0] in (frames.STATE, frames.OUTPUT), received
        raise AssertionError(f"the end, and no frame {kind!r}")

    async def until(self, text: bytes) -> bytes:
        """What is printed up to that text."""
        data = b""
        while text not in data:
            data += await self.expect(frames.OUTPUT)
        return data

    async def refusal(self) -> frames.Refused:
        return msgspec.json.decode(await self.expect(frames.ERROR), type=frames.Refused)

    async def everything(self) -> Heard:
        """All there is until the last frame."""
        data, gaps, states = bytearray(), [], []
        while (received := await self.receive()) is not None:
            kind, payload = received
            if kind == frames.OUTPUT:
                data += payload
            elif kind == frames.GAP:
                gaps.append(msgspec.json.decode(payload, type=frames.Gap))
            elif kind == frames.STATE:
                states.append(msgspec.json.decode(payload, type=frames.HandleStatus).handle.state)
            else:
                assert kind == frames.END, received
                return Heard(bytes(data), gaps, states, msgspec.json.decode(payload, type=frames.HandleStatus))
        raise AssertionError("the end, and nobody was told how the handle is")

    def send(self, kind: frames.Kind, payload: bytes | msgspec.Struct = b"") -> None:
        self._socket.post(kind, payload)

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def leave(self) -> None:
        """As a process that dies does."""
        self._writer.transport.abort()


def path_of(rt: Runtime) -> str:
    """Where a runtime listens."""
    store = rt.registry.store
    assert isinstance(store, SqliteStore)
    path = store.stream(store.owner)
    assert path is not None
    return path


@asynccontextmanager
async def connected(rt: Runtime) -> AsyncIterator[Client]:
    """A connection over which nothing was said yet."""
    client = Client(*await asyncio.open_unix_connection(path_of(rt)))
    try:
        yield client
    finally:
        client.leave()


@asynccontextmanager
async def wanting(
    rt: Runtime, id: str, want: Literal["read", "follow", "attach", "cast", "send"], **more: Any
) -> AsyncIterator[Client]:
    """A client that wants something of a handle of conversation `main`."""
    info = await rt.handle(id, conversation="main")
    async with connected(rt) as client:
        given = frames.Given(more.pop("input", msgspec.UNSET), more.pop("keys", ()))
        client.send(frames.WANT, frames.Want(uid=info.uid, want=want, **more))
        if want == "send":
            client.send(frames.INPUT, given)
        yield client
