"""Waiting for a line, or for readiness, where another process runs the handle, and after a crash (A9, M3, R1)."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.durable.lives import power_cut, stored_in
from tests.durable.test_two_processes import program
from tests.patience import PATIENCE, until
from tests.turn.calls import STATEFUL, TALKING, abort, call, fetch, reply, spawn

import keephold
from keephold import Call, KeepholdError, Runtime
from keephold.control.control import Control
from keephold.store.base import Done, Failed, Notified, Op, Readied
from keephold.turn import relayed_streams


def printer() -> tuple[keephold.Tool, Callable[[str], None]]:
    """A tool that prints what it is told to, until that is `bye`, and how it is told. It reads no input, for which a
    wait would end."""
    lines = asyncio.Queue[str]()

    @keephold.tool(actions=STATEFUL, on_turn_end="keep", ready="^up$")
    async def echo(call: Call) -> str:
        call.emit("hello\n")
        while (line := await lines.get()) != "bye":
            call.emit(f"{line}\n")
        return "over"

    return echo, lines.put_nowait


async def kept(rt: Runtime) -> None:
    async with rt.turn("main") as turn:
        await turn.run([spawn("echo", "e")])


async def test_A9_a_line_that_another_process_prints_ends_the_wait(store: str) -> None:
    echo, say = printer()
    async with Runtime([echo], store=store) as one, Runtime([echo], store=store) as two:
        await kept(one)
        before = await two.wait(output={"e": "hel+o"}, timeout=0, conversation="main")
        assert before["pending"] == [{"id": "e", "state": "running", "matched": "hello"}]
        waiting = asyncio.ensure_future(two.wait(output={"e": "^now$"}, conversation="main"))
        await until(lambda: bool(one.streams._clients))
        say("later")
        assert not waiting.done()
        say("now")
        assert (await waiting)["pending"] == [{"id": "e", "state": "running", "matched": "now"}]
        await until(lambda: not one.streams._clients)
        waiting = asyncio.ensure_future(two.wait(output={"e": "never"}, conversation="main"))
        await until(lambda: bool(one.streams._clients))
        say("bye")
        assert [entry["id"] for entry in (await waiting)["completed"]] == ["e"]


async def test_A9_a_wait_elsewhere_that_times_out_leaves_no_connection(store: str) -> None:
    echo, say = printer()
    async with Runtime([echo], store=store) as one, Runtime([echo], store=store) as two:
        await kept(one)
        assert (await two.wait(output={"e": "never"}, timeout=0.01, conversation="main"))["timed_out"]
        await until(lambda: not one.streams._clients)
        say("bye")


async def test_A9_R6_a_wait_follows_a_kept_process_to_the_runtime_that_takes_it_over(tmp_path: Path) -> None:
    store, flag = stored_in(tmp_path), tmp_path / "flag"
    script = f"until [ -e {flag} ]; do sleep 0.02; done; echo up; exec sleep 600"
    dev = keephold.command(["sh", "-c", script], name="dev", actions=("spawn", "fetch", "abort"), on_crash="keep")
    async with Runtime([dev], store=store) as one, Runtime([dev], store=store) as two:
        async with one.turn("main") as turn:
            await turn.run([spawn("dev", "d")])
        waiting = asyncio.ensure_future(one.wait(output={"d": "^up$"}, conversation="main"))
        (handle,) = one.registry.live("main")
        await until(lambda: bool(handle.watchers))
        if not await one._release_waiting():  # it stays here until its keeper has started it
            await until(lambda: handle.run is not None and handle.run.can_be_taken_over)
            assert await one._release_waiting()
        await two.recovery.sweep()
        flag.touch()
        await until(waiting.done)
        assert waiting.result()["pending"] == [{"id": "d", "state": "running", "matched": "up"}]
        async with two.turn("main") as turn:
            await turn.run([abort("dev", "d")])


async def test_A9_that_a_handle_is_ready_is_known_to_every_process(store: str) -> None:
    echo, say = printer()
    async with Runtime([echo], store=store) as one, Runtime([echo], store=store) as two:
        await kept(one)
        waiting = asyncio.ensure_future(two.wait(ready=["e"], conversation="main"))
        say("up")
        assert (await waiting)["pending"] == [{"id": "e", "state": "running", "ready": True}]
        assert (await two.handle("e", conversation="main")).ready
        async with two.turn("main") as turn:
            assert (await reply(turn, fetch("echo", "e")))["ready"] is True
        say("bye")
        await two.wait(all=["e"], timeout=60, conversation="main")
        assert not (await two.handle("e", conversation="main")).ready


def cut(monkeypatch: pytest.MonkeyPatch, rt: Runtime, how: str) -> None:
    """Let a runtime reach no socket of others, as if they were on another machine."""
    nowhere = None if how == "unknown" else "/nowhere/at/all"
    monkeypatch.setattr(rt.registry.store, "stream", lambda _: nowhere)


@pytest.mark.parametrize("how", ["unknown", "unreachable"])
async def test_A9_without_a_socket_the_owner_sends_its_output_through_the_store(
    store: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    echo, say = printer()
    async with Runtime([echo], store=store) as one, Runtime([echo], store=store) as two:
        await kept(one)
        cut(monkeypatch, two, how)
        before = await two.wait(output={"e": "hel+o"}, timeout=0, conversation="main")
        assert before["pending"] == [{"id": "e", "state": "running", "matched": "hello"}]
        waiting = asyncio.ensure_future(two.wait(output={"e": "^now$"}, timeout=PATIENCE, conversation="main"))
        await until(lambda: bool(one.streams._sessions._open))
        say("." * 300_000)
        say("now")
        assert (await waiting)["pending"] == [{"id": "e", "state": "running", "matched": "now"}]
        waiting = asyncio.ensure_future(two.wait(output={"e": "never"}, timeout=PATIENCE, conversation="main"))
        say("bye")
        assert [entry["id"] for entry in (await waiting)["completed"]] == ["e"]


async def test_C5_without_a_socket_output_is_read_and_followed_through_the_store(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the dashboard, the API and `keephold logs -f` of a server do. A session ends with its last frame."""
    monkeypatch.setattr(relayed_streams, "_KEPT_SECS", 10 * PATIENCE)
    echo, say = printer()
    async with Runtime([echo], store=store) as one, Runtime([echo], store=store) as two:
        await kept(one)
        cut(monkeypatch, two, "unreachable")
        uid, there = (await two.handle("e", conversation="main")).uid, Control(two)
        piece = await there.output(uid)
        assert (piece["text"], piece["total"]) == ("hello\n", 6)
        printed, seen = "", list[str]()
        async with aclosing(there.follow(uid)) as following:
            async for told in following:
                if told["type"] == "output":
                    printed += told["text"]
                    if printed == "hello\n":
                        say("more")
                    elif printed == "hello\nmore\n":
                        say("bye")
                else:
                    seen.append(told["handle"]["state"])
        assert printed == "hello\nmore\n" and seen == ["running", "stopped", "stopped"]
        await until(lambda: not one.streams._sessions._open)


async def test_M3_an_owner_that_dies_ends_a_stream_through_the_store(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with program(tmp_path, "kept", "session", store=store) as running, Runtime(store=store) as rt:
        cut(monkeypatch, rt, "unreachable")
        uid = (await rt.handle("session", conversation="main")).uid
        with pytest.raises(KeepholdError, match="is gone"):
            async with aclosing(Control(rt).follow(uid)) as following:
                async for told in following:
                    if told["type"] == "output":
                        await running.kill()


@keephold.tool(actions=TALKING, on_crash="replay", ready="^up$")
async def again(call: Call) -> str:
    """Be up in the second attempt."""
    call.emit(f"attempt {call.attempt}\n")
    await call.durable().run_json("begin", None, _begin)
    if call.attempt > 1:
        call.emit("up\n")
    await asyncio.sleep(600)
    return "over"


async def _begin(_: object) -> None:
    return None


async def test_B9_an_await_of_a_line_works_again_after_a_crash(tmp_path: Path) -> None:
    store = stored_in(tmp_path)
    one = Runtime([again], store=store)
    await one.open()
    turn = await one.turn("main").__aenter__()
    await turn.run([spawn("again", "a")])
    asked = asyncio.ensure_future(turn.run([call("await", output={"a": "^up$"}, ready=["a"])]))
    await until(lambda: any(handle.watchers for handle in one.registry.live("main")))
    copy = power_cut(store)
    async with Runtime([again], store=copy) as two, two.turn("main", resume=True) as resumed:
        (response,) = await resumed.resume()
        assert '"matched":"up"' in response.result and '"ready":true' in response.result
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    turn.cancel()
    await turn.__aexit__(None, None, None)
    await one.close()


async def test_N1_ready_is_written_with_its_notification(store: str) -> None:
    """In one commit: a crash can lose both, but never one of them."""
    commits: list[Sequence[Op]] = []

    def seen(ops: Sequence[Op], done: Done, failed: Failed) -> tuple[Sequence[Op], Done, Failed]:
        commits.append(ops)
        return ops, done, failed

    echo, say = printer()
    async with Runtime([echo], store=store) as rt:
        rt.registry.observe_commits(seen)
        await kept(rt)
        say("up")
        await rt.wait(ready=["e"], conversation="main")
        say("bye")
    (together,) = [ops for ops in commits if any(isinstance(op, Readied) for op in ops)]
    assert [type(op) for op in together] == [Readied, Notified]
