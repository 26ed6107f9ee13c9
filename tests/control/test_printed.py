"""What a handle has printed, piece by piece, by a pattern, or as it comes: the same from whoever has it (C5, O5)."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.control.places import PLACES, controlled, heard, text_of, uid_of
from tests.patience import until
from tests.turn.calls import TALKING, spawn

import keephold
from keephold import Call, KeepholdError, Runtime
from keephold.control import output
from keephold.control.control import Control
from keephold.control.stored_output import talking
from keephold.durable.keys import make_key, masked, new_secret
from keephold.handles import timeline
from keephold.policies import OutputPolicy
from keephold.testing import VirtualClock
from keephold.turn import attach_protocol as frames

Places = pytest.mark.parametrize("place", PLACES)
Ended = pytest.mark.parametrize("ended", [False, True])


@keephold.tool(actions=TALKING)
async def says(call: Call) -> str:
    """Prints what it is told, as it is, until that is null."""
    while (said := await call.input()) is not None:
        call.emit(bytes.fromhex(said["hex"]))
    return "the result"


@keephold.tool(actions=TALKING)
async def gushes(call: Call, size: int) -> str:
    """Prints numbered lines of 64 bytes."""
    for start in range(0, size, 1 << 20):
        call.emit(b"".join(b"%062d\r\n" % (start // 64 + at) for at in range((1 << 20) // 64)))
        await asyncio.sleep(0)
    await call.input()
    return "the result"


async def say(control: Control, uid: str, data: bytes) -> None:
    await control.apply(uid, {"hex": data.hex()})


async def size(control: Control, uid: str, least: int) -> bool:
    return int((await control.output(uid))["total"]) >= least


@Places
@Ended
async def test_C5_output_is_read_by_ranges_and_is_what_was_printed(place: str, ended: bool, tmp_path: Path) -> None:
    async with controlled(place, tmp_path, [says]) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("says", "s")])
        uid = await uid_of(rt, "s")
        assert await control.output(uid) == {
            "uid": uid, "offset": 0, "next": 0, "total": 0, "missing": 0, "text": ""
        }  # fmt: skip
        await say(control, uid, "grüße\n".encode())
        await say(control, uid, b"\x1b[31mred\x1b[0m \x07bell\n<b>\xff</b>\n")
        if ended:
            await control.abort(uid)
        whole = await control.output(uid)
        assert whole["text"] == "grüße\nred bell\n<b>�</b>\n" and whole["next"] == whole["total"] == 36
        pieces, place_ = "", 0
        while place_ < 8:
            piece = await control.output(uid, offset=place_, limit=5)
            assert piece["offset"] == place_ < piece["next"] <= place_ + 5
            pieces, place_ = pieces + piece["text"], piece["next"]
        assert pieces.startswith("grüße"), "no character is cut in two"
        assert (await control.output(uid, from_end=9))["text"] == "<b>�</b>\n"
        assert (await control.output(uid, from_end=10_000))["text"] == whole["text"]
        beyond = await control.output(uid, offset=1000)
        assert (beyond["offset"], beyond["next"], beyond["text"]) == (36, 36, "")


@Places
@Ended
async def test_O5_what_is_not_kept_is_told_and_offsets_stay(place: str, ended: bool, tmp_path: Path) -> None:
    small = replace(says, output=OutputPolicy(max_output=1000))
    async with controlled(place, tmp_path, [small]) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("says", "s")])
        uid = await uid_of(rt, "s")
        await say(control, uid, b"".join(b"line %04d\n" % number for number in range(500)))
        if ended:
            await control.abort(uid)
        first = await control.output(uid)
        assert (first["next"], first["total"], first["missing"]) == (500, 5000, 0)
        gap = await control.output(uid, offset=500)
        assert (gap["next"], gap["missing"], gap["text"]) == (4500, 4000, "")
        within = await control.output(uid, offset=2000)
        assert (within["next"], within["missing"]) == (4500, 2500)
        last = await control.output(uid, offset=4500)
        assert last["text"].splitlines() == [f"line {number:04}" for number in range(450, 500)]
        found = await control.output(uid, pattern="line 0499")
        assert found["matches"] == [{"offset": 4990, "line": "line 0499"}] and found["missing"] == 4000
        assert [each["offset"] for each in (await control.output(uid, pattern="line 0049"))["matches"]] == [490]
        assert (await control.output(uid, pattern="line 0049", offset=4600))["matches"] == []
        if ended:
            told = await heard(control, uid)
            assert [each for each in told if each["type"] == "gap"] == [
                {"type": "gap", "missing": 4000, "offset": 4500}
            ]
            assert text_of(told) == first["text"] + last["text"]


@Places
async def test_O4_a_pattern_is_found_across_pieces_and_searched_on(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keephold.tools.builtin.read_output._SEARCH_STEP", 10)
    async with controlled(place, tmp_path, [says]) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("says", "s")])
        uid = await uid_of(rt, "s")
        await say(control, uid, b"nothing\n" * 5 + b"a needle\n" + b"nothing\n" * 5 + b"\x1b[1mneedle\x1b[0m <i>\n")
        found = await control.output(uid, pattern="needle")
        assert [each["line"] for each in found["matches"]] == ["a needle", "needle <i>"] and found["next"] == found[
            "total"
        ]
        first = await control.output(uid, pattern="needle", limit=8)
        assert [each["line"] for each in first["matches"]] == ["a needle"]
        second = await control.output(uid, pattern="needle", offset=first["next"])
        assert [each["line"] for each in second["matches"]] == ["needle <i>"]
        assert found["matches"][0]["offset"] == 42
        assert (await control.output(uid, pattern="no such"))["matches"] == []


@pytest.mark.parametrize("place", PLACES[1:])
async def test_O5_a_hundred_megabytes_are_read_without_being_held(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = 24 << 20
    monkeypatch.setattr(output, "_COPY", 4 << 20)
    async with controlled(place, tmp_path, [gushes]) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("gushes", "g", size=whole)])
        uid = await uid_of(rt, "g")
        await until(lambda: size(control, uid, whole))
        asked: list[int] = []
        if place == "elsewhere":  # how much of it comes over
            real = output._Elsewhere._part
            monkeypatch.setattr(
                output._Elsewhere,
                "_part",
                lambda self, at: asked.append(at) or real(self, at),  # type: ignore[func-returns-value]
            )
        last = await control.output(uid, from_end=64)
        assert last["text"] == f"{whole // 64 - 1:062}\n" and last["total"] == whole
        middle = await control.output(uid, offset=64 * 100_000, limit=128)
        assert middle["text"] == f"{100_000:062}\n{100_001:062}\n"
        assert len(asked) <= 4, "a piece is asked for, not everything"
        found = await control.output(uid, pattern=f"{whole // 64 - 5:062}")
        assert [each["offset"] for each in found["matches"]] == [whole - 5 * 64]
        await control.abort(uid)


@Places
async def test_C5_following_tells_everything_as_it_comes_to_the_end(place: str, tmp_path: Path) -> None:
    async with controlled(place, tmp_path, [says]) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("says", "s")])
        uid = await uid_of(rt, "s")
        await say(control, uid, b"before\n")
        following = [asyncio.create_task(heard(control, uid)), asyncio.create_task(heard(control, uid, 3))]
        for part in (b"\xc3", b"\xbc\n", b"\x1b[", b"31mred\x1b[0m\n", b"end"):
            await say(control, uid, part)
        await control.abort(uid)
        whole, part_of = [await task for task in following]
        assert text_of(whole) == "before\nü\nred\nend" and text_of(part_of) == "ore\nü\nred\nend"
        assert whole[0]["type"] == "state" and whole[0]["handle"]["state"] == "running"
        assert whole[-1]["type"] == "end" and whole[-1]["handle"]["ended_by"] == "abort"
        assert all("outcome" not in each.get("handle", {}) for each in whole)
        offsets = [each["offset"] for each in whole if each["type"] == "output"]
        assert offsets == sorted(offsets) and offsets[-1] == (await control.output(uid))["total"]
        again = await heard(control, uid)  # of one that has stopped
        assert text_of(again) == text_of(whole) and again[-1]["type"] == "end"
        assert text_of(await heard(control, uid, offsets[-1])) == "" == text_of(await heard(control, uid, 10_000))


@Places
async def test_C5_who_follows_on_from_any_offset_that_was_told_misses_nothing(place: str, tmp_path: Path) -> None:
    """What is held back because it may be half of something is not behind who comes back."""
    async with controlled(place, tmp_path, [says]) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("says", "s")])
        uid = await uid_of(rt, "s")
        seen: list[dict[str, Any]] = []

        async def follow() -> None:
            async for told in control.follow(uid):
                seen.append(told)

        following = asyncio.create_task(follow())
        for part in (b"one \xe2\x82", b"\xac two\x1b", b"[1m three\r", b"\nfour"):
            before = len(text_of(seen))
            await say(control, uid, part)
            await until(lambda before=before: _longer(seen, before))  # type: ignore[misc]
        following.cancel()
        await asyncio.wait([following])
        await control.abort(uid)
        texts = [each for each in seen if each["type"] == "output"]
        for number, told in enumerate(texts, 1):
            rest = text_of(await heard(control, uid, told["offset"]))
            assert text_of(texts[:number]) + rest == "one € two three\nfour", told


@Places
async def test_K5_who_follows_on_from_within_a_key_gets_none_of_it(place: str, tmp_path: Path) -> None:
    key = make_key("main", "0" * 32, "completion", *new_secret())
    async with controlled(place, tmp_path, [says]) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("says", "s")])
        uid = await uid_of(rt, "s")
        await say(control, uid, f"use {key} now\n".encode())
        following = [asyncio.create_task(heard(control, uid, offset)) for offset in range(0, len(key) + 4, 7)]
        await control.abort(uid)
        for each in following:
            told = text_of(await each)
            assert told.endswith(" now\n") and key[-20:] not in told and masked(key) in told
            assert text_of(await heard(control, uid, len(key) + 4)) == " now\n"


async def _longer(seen: list[dict[str, Any]], before: int) -> bool:
    return len(text_of(seen)) > before


@Places
async def test_K4_a_terminal_is_read_as_lines_that_were_seen(place: str, tmp_path: Path) -> None:
    shell = keephold.terminal(
        ["bash", "--norc", "--noprofile", "--noediting"], name="shell", env={"PS1": "$ "}, rows=10, cols=40
    )
    async with controlled(place, tmp_path, [shell]) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("shell", "s")])
        uid = await uid_of(rt, "s")
        await control.apply(uid, "printf 'loading 1%%\\rloading 2%%\\n\\033[31mred\\033[0m\\n'\r")
        read = await until(lambda: _has(control, uid, "red\n"))
        assert "loading 2%" in read["text"].splitlines() and "red" in read["text"].splitlines()
        assert "\x1b" not in read["text"] and "\r" not in read["text"]
        (match,) = [
            each for each in (await control.output(uid, pattern="loading 2"))["matches"] if "printf" not in each["line"]
        ]
        assert match["line"] == "loading 2%"
        await control.abort(uid)
        told = text_of(await heard(control, uid))
        assert "loading 2%\n" in told and "loading 1%" not in told.replace("printf 'loading 1%%", "")
        fact = await control.runtime_view.handle(uid)
        assert fact["terminal"] and fact["output_bytes"] == (await control.output(uid))["total"]


@Places
async def test_C5_a_terminal_is_followed_from_the_byte_that_is_wanted(place: str, tmp_path: Path) -> None:
    shell = keephold.terminal(["sh", "-c", "stty -onlcr; printf 'hello world\\nsecond\\n'; cat"], name="shell")
    async with controlled(place, tmp_path, [shell]) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("shell", "s")])
        uid = await uid_of(rt, "s")
        await until(lambda: _has(control, uid, "second\n"))
        following = [asyncio.create_task(heard(control, uid, offset)) for offset in (0, 6, 12)]
        await control.abort(uid)
        texts = [text_of(await each) for each in following]
        assert texts == ["hello world\nsecond\n", "world\nsecond\n", "second\n"]


async def _has(control: Control, uid: str, text: str) -> Any:
    found = await control.output(uid)
    return found if text in found["text"] else None


@Places
async def test_following_is_let_go_of_at_any_time(place: str, tmp_path: Path) -> None:
    async with controlled(place, tmp_path, [says]) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("says", "s")])
        uid = await uid_of(rt, "s")
        told = control.follow(uid)
        assert (await anext(told))["type"] == "state"
        await told.aclose()
        handle = rt.registry.loaded(uid)
        assert handle is not None
        if place == "memory":
            assert not handle.watchers
        with pytest.raises(KeepholdError, match="not found"):
            await anext(control.follow("unknown"))


@pytest.mark.parametrize("place", PLACES[1:])
async def test_R6_who_follows_when_the_runtime_closes_is_told_so(place: str, tmp_path: Path) -> None:
    from tests.durable.lives import approval

    keys: list[Any] = []
    async with controlled(place, tmp_path, [approval(keys)]) as (control, rt):
        async with rt.turn("main") as turn:
            await turn.run([spawn("approve", "a")])
        uid = await uid_of(rt, "a")
        following = asyncio.create_task(heard(control, uid))
        await asyncio.sleep(0)
        await rt.close()
        try:
            told = await following
            assert told[-1]["type"] == "end", "it is parked: nobody runs it, so there is nothing to wait for"
        except KeepholdError as error:
            assert error.code in ("runtime_closed", "owner_not_answering")


async def _everything(control: Control, uid: str) -> list[dict[str, Any]]:
    return [told async for told in control.follow(uid)]


async def test_a_queued_handle_is_followed_without_timers(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output and state changes wake who follows; nothing polls while the handle is queued."""

    @keephold.tool(actions=TALKING, scheduling="serial")
    async def reads(call: Call) -> str:
        call.emit("ready\n")
        return str(await call.input())

    async with Runtime([reads], clock=clock) as rt, rt.turn("main") as turn:
        await turn.run([spawn("reads", "first"), spawn("reads", "second")])
        control = Control(rt)
        loop, timers = asyncio.get_running_loop(), list[float]()
        call_at = loop.call_at

        def counted(when: float, *args: Any, **more: Any) -> asyncio.TimerHandle:
            timers.append(when)
            return call_at(when, *args, **more)

        uid = await uid_of(rt, "second")
        following = asyncio.create_task(_everything(control, uid))
        await asyncio.sleep(0)
        monkeypatch.setattr(loop, "call_at", counted)
        await asyncio.sleep(60)
        assert len(timers) == 1  # the test's own
        monkeypatch.undo()
        await turn.send("first", "go")
        await turn.send("second", "done")
        told = await following
        assert text_of(told) == "ready\n" and told[-1]["handle"]["state"] == "stopped"


async def timed(control: Control, uid: str) -> list[tuple[float | None, bytes]]:
    """The pieces of the output, each with the time that was told before it."""
    store = control.runtime.registry.store
    record, at = await store.handle(uid), None
    assert record is not None
    pieces: list[tuple[float | None, bytes]] = []
    want = frames.Want(uid=uid, want="read", times=True)
    async with talking(store, record, want, control.runtime.relay) as talk:
        async for _, payload in frames.all_frames(talk):
            if isinstance(payload, frames.PrintedAt):
                at = payload.at
            elif isinstance(payload, bytes):
                pieces.append((at, payload))
    return pieces


@pytest.mark.parametrize("place", ["sqlite", "elsewhere"])
@Ended
async def test_C5_it_is_known_when_each_piece_was_printed(
    place: str, ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with controlled(place, tmp_path, [says]) as (control, rt), rt.turn("main") as turn:
        await turn.run([spawn("says", "s")])
        uid, now = await uid_of(rt, "s"), rt.registry.clock.now()
        monkeypatch.setattr(timeline, "_FRESH_SECS", 0.0)
        monkeypatch.setattr(rt.registry.clock, "now", lambda: now)
        await say(control, uid, b"one\n")
        monkeypatch.setattr(rt.registry.clock, "now", lambda: now + 60)
        await say(control, uid, b"two\n")
        if ended:
            await control.abort(uid)
        (first, one), (second, two) = await timed(control, uid)
        assert (one, two) == (b"one\n", b"two\n")
        assert [first, second] == pytest.approx([now, now + 60], abs=0.001)


async def test_C5_output_of_virtual_time_has_times_of_it(clock: VirtualClock) -> None:
    async with Runtime([says], clock=clock) as rt, rt.turn("main") as turn:
        await turn.run([spawn("says", "s")])
        control, uid, began = Control(rt), await uid_of(rt, "s"), clock.now()
        await say(control, uid, b"one\n")
        await clock.advance(60)
        await say(control, uid, b"two\n")
        output = rt.registry.find("s", "main").output
        assert output is not None and output.timeline is not None
        (one, _), (two, _) = output.timeline.when(0) or (0, 0), output.timeline.when(4) or (0, 0)
        assert one < began + 60 <= two


async def test_C5_it_is_known_in_postgresql_when_it_was_printed(postgres: str) -> None:
    async with Runtime([says], store=postgres) as rt, rt.turn("main") as turn:
        await turn.run([spawn("says", "s")])
        control, uid, began = Control(rt), await uid_of(rt, "s"), time.time()
        await say(control, uid, b"one\n")
        await control.abort(uid)
        ((at, one),) = await timed(control, uid)
        assert one == b"one\n" and at is not None and began - 0.001 <= at <= time.time()
