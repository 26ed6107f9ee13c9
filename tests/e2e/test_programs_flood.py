"""Programs that print without end, or take nothing in: memory stays bounded, and everybody else goes on (O5, C6)."""

import asyncio
import re
import string
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.e2e.terminals import Session, at_work, quick, shell
from tests.soak import tries

from keephold import terminal
from keephold.policies import OutputPolicy
from keephold.tools.child import UNREAD_LIMIT

MIB = 1 << 20
pytestmark = pytest.mark.timeout(360)

LINES = tries(11_000_000, soak=19_000_000)
"""Of eleven bytes each: nine digits, and a line end as terminals have it. That of line k is at offset 11 k."""
TOTAL = 11 * LINES
HALF = 50 * MIB
"""Of what is kept by default, 100 MiB: the first half of it, and the last."""


def numbers(start: int, stop: int) -> str:
    """What is to be read from one offset to another, both of whole lines."""
    return "".join(f"{100_000_000 + line}\n" for line in range(start // 11, stop // 11))


@asynccontextmanager
async def memory_stays_below(growth: int) -> AsyncIterator[None]:
    """Look at the memory of this process every few milliseconds: it may not grow by more than that."""
    process = psutil.Process()
    before = highest = process.memory_info().rss

    async def watch() -> None:
        nonlocal highest
        while True:
            highest = max(highest, process.memory_info().rss)
            await asyncio.sleep(0.005)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    assert highest - before < growth, f"grew by {(highest - before) / MIB:.0f} MiB"


async def test_O5_hundreds_of_megabytes_leave_memory_flat_and_their_ends_readable() -> None:
    seq = terminal(["seq", "100000000", str(100_000_000 + LINES - 1)], name="seq")
    async with at_work(seq, shell()) as assistant:
        await (await assistant.spawn("shell")).abort()  # everything is imported
        async with memory_stays_below(100 * MIB):
            session = await assistant.spawn("seq")
            await assistant.runtime.wait(all=["seq"], timeout=300, conversation="main")
        ended = await session.fetch()
        assert (ended["state"], ended["yielded_because"]) == ("stopped", "exited")
        marker, hint, tail = ended["result"].split("\n\n", 2)
        assert re.fullmatch(r"\.\.\.\d+ bytes truncated\.\.\.", marker)
        assert "read_output" in hint
        assert tail == numbers(TOTAL - 400 * 11, TOTAL), "the last 400 lines"
        info = await assistant.runtime.handle("seq", conversation="main")
        assert info is not None
        assert (info.output_bytes, info.exit_code) == (TOTAL, 0)
        await check_kept(session)


async def check_kept(session: Session) -> None:
    """Both ends can be read, and what lies between is known to be gone, to the byte."""
    gap = (HALF, TOTAL - HALF)
    for offset in (0, 11 * 1_000_000, HALF // 11 * 11 - 110, -(-gap[1] // 11) * 11, TOTAL - 110):
        piece = await session.output(offset=offset, limit=110)
        assert (piece["end"], piece["total"]) == (offset + 110, TOTAL)
        assert piece["content"] == numbers(offset, offset + 110)
    for offset in (gap[0], TOTAL // 2, gap[1] - 1):
        piece = await session.output(offset=offset, limit=110)
        assert (piece["end"], piece["missing"]) == (gap[1], gap[1] - offset)
        assert f"{gap[1] - offset} bytes" in piece["content"]
    last = await session.output(from_end=True, limit=110)
    assert last["content"] == numbers(TOTAL - 110, TOTAL)


async def test_C5_a_flood_is_read_piece_by_piece_while_it_comes() -> None:
    """Every fetch has the latest lines, and says that it leaves out others; nothing is told twice."""
    flood = terminal(["seq", "100000000", str(100_000_000 + 1_999_999)], name="seq")
    async with at_work(flood) as assistant:
        session = await assistant.spawn("seq")
        replies = [session.said]
        while session.said["state"] == "running":
            replies.append(await session.fetch())
        lines = [line for said in replies for line in told(said).splitlines() if re.fullmatch(r"\d{9}", line)]
        assert lines == sorted(set(lines))
        assert lines[-1] == "101999999"
        assert any(re.match(r"\.\.\.\d+ bytes truncated\.\.\.", told(said)) for said in replies)


def told(said: dict[str, Any]) -> str:
    return str(said.get("content", said.get("result", "")))


# Programs that take nothing in


async def fill(session: Session, size: int) -> str:
    """Type lines of that length until one is refused; all that was taken."""
    taken = ""
    for letter in string.ascii_lowercase:
        line = letter * (size - 1) + "\n"
        typed = {"action": "apply", "id": session.id, "input": line}
        (response,) = await session.assistant.batch((session.tool, typed))
        if response.is_error:
            assert response.code == "input_not_read"
            assert response.result.startswith("Nothing was written: the program has not read ")
            return taken
        taken += line
    raise AssertionError(f"it took {len(taken)} bytes that nobody has read")


async def test_C6_what_a_program_does_not_read_is_refused_in_time_and_an_abort_ends_it() -> None:
    sleep = quick(terminal(["sleep", "1000"], name="sleep"))
    async with at_work(sleep) as assistant:
        session = await assistant.spawn("sleep")
        assert UNREAD_LIMIT - 2 * 4000 < len(await fill(session, 4000)) <= UNREAD_LIMIT
        assert (await session.fetch())["state"] == "running"
        aborted = await session.abort()
        assert (aborted["state"], aborted["ended_by"], "is_error" in aborted) == ("stopped", "abort", False)


@pytest.mark.parametrize("size", [3000, 10_000])
async def test_C6_what_was_taken_before_the_refusal_is_read_whole(tmp_path: Path, size: int) -> None:
    """A program that is busy for a while finds all of it later, also lines that are longer than a terminal's."""
    script = "until [ -e done ]; do sleep 0.01; done; exec cat > taken"
    async with at_work(quick(terminal(["sh", "-c", script], name="busy", cwd=str(tmp_path)))) as assistant:
        session = await assistant.spawn("busy")
        taken = await fill(session, size)
        (tmp_path / "done").touch()
        waited = await assistant.call("await", all=["busy"])
        assert waited["needs_input"] is True, "it has read everything, and waits for more"
        await session.apply("and more\n")
        await session.apply(None)
        await session.stops()
    assert (tmp_path / "taken").read_text() == taken + "and more\n"


async def test_C6_a_program_that_does_not_read_can_be_interrupted() -> None:
    """Ctrl-C takes back what was typed before it, as on any terminal; it does not wait in line behind that."""
    sleep = quick(terminal(["sleep", "1000"], name="sleep"))
    async with at_work(sleep) as assistant:
        session = await assistant.spawn("sleep")
        await fill(session, 4000)
        await session.apply(keys=["C-c"])
        ended = await session.stops()
        assert ended["result"].startswith("The command was killed by SIGINT.")


async def test_C6_after_an_interrupt_the_shell_gets_nothing_of_what_was_typed_before_it() -> None:
    async with at_work(quick(shell())) as assistant:
        session = await assistant.spawn("shell")
        await session.reads("$ ")
        await session.apply("sleep 1000\n")
        await fill(session, 10_000)
        await session.apply(keys=["C-c"])
        await session.reads("$ ")
        await session.apply("echo $((6 * 7))\n")
        assert await session.reads("$ ") == "echo $((6 * 7))\n42\n$ "


async def test_C6_a_program_that_floods_and_never_reads_is_refused_and_ended() -> None:
    yes = quick(terminal(["yes"], name="yes", output=OutputPolicy(max_output=4 * MIB)))
    async with at_work(yes, shell()) as assistant:
        other = await assistant.spawn("shell")
        await other.reads("$ ")
        async with memory_stays_below(100 * MIB):
            session = await assistant.spawn("yes")
            assert len(await fill(session, 16_000)) <= UNREAD_LIMIT
            await other.apply("echo still $((6 * 7))\n")
            assert await other.reads("\nstill 42\n$ "), "others have their turn"
            aborted = await session.abort()
        assert (aborted["state"], aborted["ended_by"]) == ("stopped", "abort")
