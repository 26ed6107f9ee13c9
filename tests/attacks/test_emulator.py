"""Programs' output reaches native code only in the emulator's process (K6): its death ends at most one terminal."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from time import perf_counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.patience import until
from tests.soak import SOAK, tries
from tests.turn.calls import TALKING, call, reply

import keephold
from keephold import Runtime, Turn
from keephold.tools.terminal import emulator_worker
from keephold.tools.terminal.emulator import open_emulator
from keephold.tools.terminal.emulator_worker import EmulatorHost, WorkerEmulator, host

BASH = keephold.terminal(["sh", "-c", "printf '\\033[2J\\033[Hready'; exec cat"], name="sh", actions=TALKING)


@asynccontextmanager
async def two_terminals() -> AsyncIterator[tuple[Turn, EmulatorHost]]:
    """The terminals `a` and `b`, which have shown something."""
    async with Runtime(tools=[BASH]) as rt, rt.turn("main") as turn:
        for id in ("a", "b"):
            await reply(turn, call("sh", action="spawn", id=id))
            await reply(turn, call("sh", action="apply", id=id, input=f"this is {id}", keys=["ENTER"]))
        found = host()
        assert found is not None
        yield turn, found


async def screen(turn: Turn, id: str) -> str:
    shown = await reply(turn, call("sh", action="fetch", id=id, view="screen"))
    return str(shown.get("content", shown))


def pid(found: EmulatorHost) -> int:
    assert found._process is not None
    return found._process.pid


async def test_K6_terminals_go_on_when_the_idle_process_is_killed() -> None:
    async with two_terminals() as (turn, found):
        before, first = [await screen(turn, id) for id in ("a", "b")], pid(found)
        os.kill(first, signal.SIGKILL)
        await until(lambda: pid(found) != first)
        assert [await screen(turn, id) for id in ("a", "b")] == before
        assert "this is a" in before[0]
        await reply(turn, call("sh", action="apply", id="a", input="more", keys=["ENTER"]))
        assert "more" in await screen(turn, "a")


async def test_K6_only_the_terminal_that_kills_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that never answers stands for one that hangs in native code."""
    async with two_terminals() as (turn, found):
        before = await screen(turn, "b")
        monkeypatch.setattr(emulator_worker, "_STUCK_SECS", 0.2)
        end = EmulatorHost._end

        def patient_again(self: EmulatorHost) -> None:
            monkeypatch.setattr(emulator_worker, "_STUCK_SECS", 30.0)  # the next process may be slow
            end(self)

        monkeypatch.setattr(EmulatorHost, "_end", patient_again)
        os.kill(pid(found), signal.SIGSTOP)
        await screen(turn, "a")
        monkeypatch.undo()
        ended = (await reply(turn, call("await", all=["a"])))["completed"][0]
        assert "crashed the terminal emulator" in str(ended["result"])
        assert (await turn.handle("a")).state == "stopped"
        assert await screen(turn, "b") == before and (await turn.handle("b")).state == "running"


@pytest.mark.parametrize("piece", [r"x\033[65535b", *([r"\033[?40h\033[?3h\033[?3l"] if SOAK else [])])
async def test_K6_output_that_makes_the_emulator_work_for_its_own_sake_ends_its_program(piece: str) -> None:
    flood = keephold.terminal(["sh", "-c", f"while :; do printf '{piece * 20}'; done"], name="flood", actions=TALKING)
    async with Runtime(tools=[flood, BASH]) as rt, rt.turn("main") as turn:
        await reply(turn, call("sh", action="spawn", id="b"))
        await reply(turn, call("flood", action="spawn", id="f"))
        ended = (await reply(turn, call("await", all=["f"], timeout_secs=60)))["completed"][0]
        assert "crashed the terminal emulator" in str(ended["result"])
        assert (await turn.handle("b")).state == "running"


async def test_K6_without_the_process_screens_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(emulator_worker, "WorkerProcess", none)
    async with two_terminals() as (turn, _):
        assert "this is a" in await screen(turn, "a")


async def test_K6_nothing_is_left_when_the_last_user_leaves() -> None:
    async with Runtime(tools=[BASH]):
        found = host()
        assert found is not None
        first = pid(found)
    assert found._process is None
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """One loop, and therefore one process, for all examples."""

    async def held() -> EmulatorHost | None:
        if (found := host()) is not None:
            found.hold()
        return found

    loop = asyncio.new_event_loop()
    found = loop.run_until_complete(held())
    yield loop
    assert found is not None
    found.release()
    loop.close()


_PIECES = [
    *(b"\x1b[", b"\x1b]", b"\x1bP", b";", b"999999999", b"m", b"H", b"J", b"r", b"\x1b[?1049h", b"\x1b[6n", b"\x1b[c"),
    *(b"\xf0\x9f\x98\x80", b"\n" * 50, b"\x1bc", b"x" * 300),
]
HOSTILE = st.one_of(st.binary(max_size=200), st.lists(st.sampled_from(_PIECES), max_size=40).map(b"".join))


@settings(max_examples=tries(60, soak=20_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(pieces=st.lists(HOSTILE, max_size=8), rows=st.integers(1, 40), cols=st.integers(1, 120))
def test_K6_the_process_shows_what_an_emulator_here_would(
    loop: asyncio.AbstractEventLoop, pieces: list[bytes], rows: int, cols: int
) -> None:
    """Screens, lines above, colours, modes and replies are the same; feeding in between does not matter."""

    async def both() -> None:
        there_said, here_said = bytearray(), bytearray()
        there = open_emulator(rows, cols, there_said.extend)
        here = open_emulator(rows, cols, here_said.extend, kind="ghostty")
        assert isinstance(there, WorkerEmulator)
        for piece in pieces:
            there.feed(piece)
            here.feed(piece)
        assert there.screen() == here.screen()
        assert there.scrollback(100) == here.scrollback(100)
        assert there.painted() == here.painted()  # type: ignore[attr-defined]
        assert (there.alternate, there.application_keys) == (here.alternate, here.application_keys)
        assert there_said == here_said
        there.close()
        here.close()

    loop.run_until_complete(both())


def test_K6_hostile_output_ends_at_most_its_own_terminal(loop: asyncio.AbstractEventLoop) -> None:
    """A soak feeds 200 MB. A terminal that is lost is replaced, as by the next spawn; another one stays as it was."""
    dice = random.Random(15)
    size, lost, slowest = tries(1 << 20, soak=200 << 20), 0, 0.0

    async def feed() -> None:
        nonlocal size, lost, slowest
        beside, hostile = (open_emulator(24, 80, lambda _: None, kept=bytes) for _ in range(2))
        assert isinstance(hostile, WorkerEmulator)
        beside.feed(b"still here")
        hostile.screen()  # the process has started
        while size > 0:
            piece = b"".join(
                dice.choice(_PIECES) if dice.random() < 0.5 else dice.randbytes(dice.randrange(60)) for _ in range(400)
            )
            while hostile.behind:  # noqa: ASYNC110 (a terminal is not read meanwhile)
                await asyncio.sleep(0.001)
            began = perf_counter()
            hostile.feed(piece)
            if dice.random() < 0.05:
                hostile.resize(dice.randrange(1, 60), dice.randrange(1, 200))
            if dice.random() < 0.1:
                hostile.screen()
            slowest = max(slowest, perf_counter() - began)
            size -= len(piece)
            if hostile.instead is not None:
                lost += 1
                hostile.close()
                hostile = open_emulator(24, 80, lambda _: None)
                assert isinstance(hostile, WorkerEmulator)
        assert isinstance(beside, WorkerEmulator) and beside.instead is None
        hostile.close()
        beside.close()

    loop.run_until_complete(feed())
    print(f"{lost} terminals lost; the slowest call took {slowest * 1000:.0f} ms")
