"""A person who drives a terminal of a runtime, by its socket: one at a time, and handed back however they leave."""

import asyncio
import hashlib
from pathlib import Path

import msgspec
from tests.durable.lives import stored_in
from tests.durable.streams import Client, wanting
from tests.patience import PATIENCE, until
from tests.turn.calls import apply, reply, spawn

import keephold
from keephold import Runtime, Tool
from keephold.tools.base import Screen
from keephold.turn import attach_protocol as frames


def shell() -> Tool:
    """A shell without a line editor: what is typed is what it gets."""
    command = ["bash", "--norc", "--noprofile", "--noediting"]
    return keephold.terminal(command, name="shell", env={"PS1": "$ "}, rows=10, cols=40)


async def screen_of(client: Client) -> Screen:
    return msgspec.json.decode(await client.expect(frames.SCREEN), type=Screen)


async def prints(client: Client, typed: str, expected: str) -> None:
    """Type a line and wait for what it prints."""
    client.send(frames.INPUT, f"{typed}\r".encode())
    await client.until(expected.encode())


async def test_who_attaches_sees_the_screen_then_what_is_printed_in_their_own_size(tmp_path: Path) -> None:
    async with Runtime([shell()], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("shell", "s"))
        await reply(turn, apply("shell", "s", "echo $((6 * 7))\r"))
        async with wanting(rt, "s", "attach", rows=12, cols=60) as client:
            screen = await screen_of(client)
            assert (screen.rows, screen.cols) == (12, 60)
            assert "42" in screen.lines
            await prints(client, "stty size", "12 60\r\n")
            client.send(frames.RESIZE, frames.Size(15, 70))
            await prints(client, "stty size", "15 70\r\n")
        await until(lambda: rt.live()[0].driver is None)
        assert "10 40" in (await reply(turn, apply("shell", "s", "stty size\r")))["content"]


async def test_one_drives_at_a_time_and_the_others_are_told_since_when(tmp_path: Path) -> None:
    async with Runtime([shell()], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("shell", "s"))
        async with wanting(rt, "s", "attach") as driver:
            await screen_of(driver)
            (info,) = rt.live()
            assert info.driver == "person"
            (refused,) = await turn.run([apply("shell", "s", "echo me\r")])
            assert refused.code == "driven_by_person"
            async with wanting(rt, "s", "attach") as second:
                told = await second.refusal()
            assert told.code == "driven_by_person"
            assert "since 20" in told.message
            async with wanting(rt, "s", "follow", screen=True) as watcher:
                assert (await screen_of(watcher)).rows == 10
                watcher.send(frames.INPUT, b"echo not me\r")
                await prints(driver, "echo $((1 + 2)) seen", "3 seen")
                assert b"not me" not in await watcher.until(b"3 seen")
            driver.send(frames.DETACH)
            assert await driver.receive() is None
        assert rt.live()[0].driver is None
        assert "4 free" in (await reply(turn, apply("shell", "s", "echo $((2 + 2)) free\r")))["content"]


async def test_a_paste_reaches_the_program_whole_however_slowly_it_reads(tmp_path: Path) -> None:
    async with Runtime([shell()], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("shell", "s"))
        async with wanting(rt, "s", "attach") as client:
            await screen_of(client)
            await prints(client, "stty -echo; echo re''ady; sleep 0.5; head -c 300000 | md5sum", "ready")
            lines = b"".join(b"%07d\n" % number for number in range(37_500))
            client.send(frames.INPUT, lines)
            await client.until(hashlib.md5(lines).hexdigest().encode())


async def test_O5_who_falls_far_behind_is_shown_the_screen_instead_of_what_scrolled_by(tmp_path: Path) -> None:
    async with Runtime([shell()], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("shell", "s"))
        async with wanting(rt, "s", "attach") as client:
            await screen_of(client)
            client.send(frames.INPUT, b"seq 1000000; echo do''ne\r")
            output = rt.registry.find("s", "main").output
            assert output is not None
            await until(lambda: b"done" in output.before(output.total, 100))
            received, screens = 0, 0
            while True:
                frame = await client.receive()
                assert frame is not None
                received += len(frame[1])
                if frame[0] == frames.SCREEN:
                    screens += 1
                    if b"done" in frame[1]:
                        break
            assert screens >= 1
            assert received < output.total / 2


async def test_the_end_of_the_program_ends_it(tmp_path: Path) -> None:
    async with Runtime([shell()], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("shell", "s"))
        async with wanting(rt, "s", "attach") as client:
            await screen_of(client)
            client.send(frames.INPUT, b"exit 3\r")
            heard = await client.everything()
            assert (heard.end.handle.exit_code, heard.end.handle.driver) == (3, "person")
        handle = rt.registry.find("s", "main")
        await until(lambda: handle.driven_since is None)
        async with wanting(rt, "s", "attach") as client:
            assert (await client.refusal()).code == "not_running"


async def test_R6_closing_the_runtime_ends_it(tmp_path: Path) -> None:
    rt = Runtime([shell()], store=stored_in(tmp_path))
    async with rt:
        turn = await rt.turn("main").__aenter__()
        await reply(turn, spawn("shell", "s"))
        async with wanting(rt, "s", "attach") as client:
            await screen_of(client)
            async with asyncio.timeout(PATIENCE):
                await rt.close()
            assert (await client.everything()).end.handle.ended_by == "shutdown"
