"""The wire on whatever standard input and output may be: pipes, sockets, terminals, regular files."""

import asyncio
import json
import os
import pty
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.acp.wires import Heard, bare

from keephold.acp.wire import ConnectionLost, Peer

LARGE = {"text": "x" * 1_000_000}


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


async def test_a_full_pipe_blocks_nobody_and_nothing_is_mixed_up() -> None:
    with pipe() as (read, write), pipe() as (silent, _):
        peer = Peer(silent, write)
        for number in range(20):
            peer.notify("n", {"number": number, **LARGE})
        assert peer.backlog > 19_000_000
        assert os.get_blocking(write), "whoever else has this pipe would be surprised"
        heard = Heard()
        draining = asyncio.create_task(peer.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        reader = Peer(read, write, on_notification=heard.notification)
        reader.start()
        await draining
        assert peer.backlog <= 256 * 1024
        await peer.flush()
        await heard.until(20)
        assert [(params["number"], params["text"]) for _, _, params, _ in heard.messages] == [
            (number, LARGE["text"]) for number in range(20)
        ]
        await reader.close()
        await peer.close()


async def test_who_does_not_read_is_given_up_before_memory_is() -> None:
    async with bare(most=3_000_000) as (peer, _):
        call = peer.request("m", {})
        for _ in range(4):
            peer.notify("n", LARGE)
        with pytest.raises(ConnectionLost, match="unread"):
            await call
        assert peer.backlog == 0
        await peer.drain()


async def test_regular_files_are_read_to_their_end_and_written(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"".join(b'{"jsonrpc":"2.0","id":%d,"method":"m"}\n' % n for n in range(20_000)))
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("w+b") as target:
        peer = Peer(source.fileno(), target.fileno())
        peer.start()
        assert "closed" in await peer.ended()
        await peer.flush()
        target.seek(0)
        assert [json.loads(line)["id"] for line in target] == list(range(20_000))
        await peer.close()


async def test_a_terminal_is_read_and_written_and_left_as_it_was() -> None:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    heard = Heard()
    peer = Peer(theirs, theirs, on_notification=heard.notification)
    peer.start()
    os.write(ours, b'{"jsonrpc":"2.0","method":"typed"}\n')
    await heard.until(1)
    peer.notify("n", LARGE)
    assert peer.backlog and os.get_blocking(theirs)
    seen = b""
    os.set_blocking(ours, False)
    while not seen.endswith(b"\n"):
        await asyncio.sleep(0)
        try:
            seen += os.read(ours, 65536)
        except BlockingIOError:
            continue
    assert json.loads(seen)["params"] == LARGE
    await peer.close()
    os.close(ours)
    os.close(theirs)


async def test_the_other_end_of_a_terminal_goes() -> None:
    ours, theirs = pty.openpty()
    peer = Peer(theirs, theirs)
    peer.start()
    os.close(ours)
    assert "closed" in await peer.ended()
    await peer.close()
    os.close(theirs)
