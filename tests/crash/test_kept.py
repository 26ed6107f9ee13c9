"""R7: processes that outlive the runtime. Real programs, real kills; `make soak` kills a hundred times."""

import asyncio
import json
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.crash.kept import KeptTurn, kept_turn
from tests.crash.kept_programs import CONFIG, TARGETS, ask, numbers, write_programs
from tests.e2e.driver import until
from tests.patience import PATIENCE
from tests.patience import until as becomes
from tests.soak import tries

import keephold
from keephold.errors import KeepholdError
from keephold.prompts import Answer
from keephold.tools.base import SpawnPolicy, SupportsScreen
from keephold.tools.keeper.client import Keeper
from keephold.turn.prompts import Decision, Prompt


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_programs(tmp_path)
    return tmp_path


def batches(turn: KeptTurn) -> int:
    """Return how many batches the store has accepted."""
    connection = sqlite3.connect(f"file:{turn.store}?mode=ro", uri=True)
    try:
        (found,) = connection.execute("SELECT count(*) FROM batches").fetchone()
    finally:
        connection.close()
    return int(found)


@pytest.mark.timeout(tries(240, soak=3600))
def test_R7_kept_processes_survive_kills_and_lose_and_repeat_nothing(directory: Path) -> None:
    """A build, a dev server, a REPL and an editor print numbered lines and get numbered input."""
    kills, vim = tries(3, soak=100), shutil.which("vim") is not None
    draw = random.Random(seed := random.SystemRandom().randrange(2**32))
    print("seed", seed)
    with kept_turn(directory, CONFIG) as turn:
        turn.start()
        started = [("count", "c"), ("server", "s"), ("build", "b"), ("repl", "r"), *([("vim", "v")] if vim else [])]
        turn.run(*[(tool, {"spawn": id}) for tool, id in started])
        until((directory / "port").exists)
        known = batches(turn)
        number = 0
        for _ in range(kills):
            while True:  # until a kill hits
                calls: list[tuple[str, dict[str, Any]]] = [
                    ("handle_apply", {"id": "r", "input": f"print('in', {number})\n"}),
                    *([("handle_apply", {"id": "v", "input": f"oin {number}", "keys": ["ESC"]})] if vim else []),
                ]
                turn.begin(*calls)
                ask(directory, str(number))
                done = turn.answers(draw.uniform(0, 0.8)) is not None
                if done:
                    known, number = known + 1, number + 1
                if not done or draw.random() < 0.5:
                    break
            turn.kill()
            time.sleep(draw.choice((0, 0, 0.3)))
            accepted = batches(turn)
            turn.start()
            turn.run(("handle_fetch", {"id": "r"}))  # the turn is resumed
            if accepted > known:
                number += 1
            else:  # the server has had its number, the others have not
                (directory / "port").rename(directory / "port.away")
                turn.run(*calls) if not done else None
                number += not done
                (directory / "port.away").rename(directory / "port")
            known = batches(turn)
        (directory / "stop").touch()
        ask(directory, "end")
        ends = turn.run(
            ("handle_apply", {"id": "r", "input": "exit(3)\n"}),
            *([("handle_apply", {"id": "v", "input": ":wq\r"})] if vim else []),
            ("await", {"all": [id for _, id in started], "timeout_secs": tries(60, soak=600)}),
        )
        assert not json.loads(ends[-1])["pending"], ends
        turn.close()
        turn.leaves_nothing()
        facts = turn.listed()
        assert [facts[id]["state"] for _, id in started] == ["stopped"] * len(started)
        assert {id: facts[id]["attempt"] for _, id in started} == {id: 1 for _, id in started}
        counted = numbers(turn.output("c"), "line")
        assert counted == [str(each) for each in range(len(counted))]
        inputs = [str(each) for each in range(number)]
        assert sorted(numbers(turn.output("b"), "built"), key=int) == [str(each + 1) for each in range(TARGETS)]
        assert numbers(turn.output("s"), "request") == [*inputs, "end"]
        assert numbers(turn.output("r"), "in") == inputs
        if vim:
            assert (directory / "text").read_text().splitlines() == ["", *(f"in {each}" for each in inputs)]
        assert codes(turn, "c", "s", "b", "r") == {"c": 7, "s": 0, "b": 0, "r": 3}


async def test_R7_what_a_program_asks_its_terminal_is_answered_once_also_if_nobody_was_there(directory: Path) -> None:
    tools = [keephold.terminal([sys.executable, str(directory / "query.py")], name="query", on_crash="keep")]
    store = f"sqlite:///{directory / 'store.db'}"
    async with keephold.Runtime(tools, store=store) as rt, rt.turn("c") as turn:
        await turn.run([keephold.ToolCall("1", "query", {"action": "spawn", "id": "t"})])
        await printed(rt, b"reply 0")
    (directory / "ask").touch()
    until((directory / "asked").exists)
    async with keephold.Runtime(tools, store=store) as rt:
        state = await rt.wait(all=["t"], conversation="c", timeout=PATIENCE)
        text = (await printed(rt, b"reply 2")).decode()
        assert state["completed"][0]["state"] == "stopped"
        replies = re.findall(r"reply \d b'(.*)'", text)
        assert replies == [r"\x1b[1;1R", r"\x1b[2;1R", ""], text


async def test_R7_a_user_drives_a_terminal_that_was_taken_back(directory: Path) -> None:
    tools = [keephold.terminal(["sh"], name="sh", env={"PS1": "$ "}, on_crash="keep")]
    store = f"sqlite:///{directory / 'store.db'}"
    async with keephold.Runtime(tools, store=store) as rt, rt.turn("c") as turn:
        await turn.run([keephold.ToolCall("1", "sh", {"action": "spawn", "id": "t"})])
        await printed(rt, b"$ ")
    async with keephold.Runtime(tools, store=store) as rt:
        await rt.registry.load("c", ["t"])
        handle = rt.registry.find("t", "c")
        assert handle.run is not None
        live = cast(SupportsScreen, handle.run.live)
        handle.run.drive(True)
        live.resize(30, 100)
        live.type(b"stty size; echo by a $((6 * 7))\r")
        await printed(rt, b"30 100\r\nby a 42\r\n$ ")
        handle.run.drive(False)
        assert (live.screen().rows, live.screen().cols) == (30, 100)
        reply = await rt.send("t", "exit 4\r", conversation="c")
        await rt.wait(all=["t"], conversation="c")
        assert (await rt.handle("t", conversation="c")).exit_code == 4, reply


async def printed(rt: keephold.Runtime, wanted: bytes) -> bytes:
    """Return the output of the handle `t` once it has that."""
    async with asyncio.timeout(PATIENCE):
        while True:
            uid = (await rt.handle("t", conversation="c")).uid
            output = rt.registry.printed(uid)
            if output is not None and wanted in (text := output.read(0).data):
                return text
            await asyncio.sleep(0.01)


def codes(turn: KeptTurn, *ids: str) -> dict[str, int | None]:
    return {id: turn.shown(id)["exit_code"] for id in ids}


def test_R7_what_happened_while_no_runtime_was_there_is_known_to_the_next(directory: Path) -> None:
    """Processes that end, that end by a signal, with a wire form, and those that nobody came back for."""
    with kept_turn(directory, CONFIG) as turn:
        turn.start()
        ended = [("exit", "end.sh"), ("signal", "die.sh"), ("form", "form.sh")]
        turn.run(*[("script", {"spawn": id, "file": file}) for id, file in ended], ("short", {"spawn": "short"}))
        turn.run(("script", {"spawn": "call", "file": "call.sh", "text": "x" * 70_000}))
        turn.run(("cat", {"spawn": "cat"}), ("handle_apply", {"id": "cat", "input": "before"}))
        turn.kill()
        assert turn.listed()["exit"]["kept"]["until"] is not None
        (directory / "end").touch()
        until(lambda: sum(each.exit is None for each in turn.kept()) == 1)
        assert len(turn.processes()) == 2, "the keeper and cat"
        turn.start()
        (reply,) = turn.run(("await", {"all": ["exit", "signal", "form", "short"]}))
        found = {each["id"]: each for each in json.loads(reply)["completed"]}
        assert "exit code 5" in found["exit"]["result"] and "\n1000\n" in found["exit"]["result"]
        assert "killed by SIGKILL" in found["signal"]["result"]
        assert found["form"]["result"] == "by form"
        assert "no runtime came back within 0.2 s" in found["short"]["result"]
        facts = {id: turn.shown(id) for id in found}
        assert {id: (fact["exit_code"], fact["signal"], fact["ended_by"]) for id, fact in facts.items()} == {
            "exit": (5, None, "self"),
            "signal": (None, signal.SIGKILL, "self"),
            "form": (0, None, "self"),
            "short": (None, signal.SIGTERM, "crash"),
        }
        assert facts["short"]["code"] == "crashed"
        assert turn.output("call") == "1\n", "its call is in a file that outlives the runtime"
        assert turn.listed()["cat"]["kept"] == {"host": socket.gethostname(), "since": None, "until": None}
        (reply,) = turn.run(("handle_apply", {"id": "cat", "input": "after", "eof": True}))
        (reply,) = turn.run(("await", {"all": ["cat"]}))
        turn.close()
        assert turn.output("cat") == "before\nafter\n"
        turn.leaves_nothing()


def test_R6_R7_a_runtime_that_closes_leaves_kept_processes_running(directory: Path) -> None:
    with kept_turn(directory, CONFIG) as turn:
        turn.start()
        turn.one("cat", spawn="cat")
        turn.one("handle_apply", id="cat", input="before")
        before = turn.kept()[0]
        turn.close()
        assert turn.output("cat") == "before\n", "while no runtime is there"
        assert turn.kept()[0].until is not None and turn.listed()["cat"]["state"] == "running"
        turn.start()
        reply = turn.one("handle_apply", id="cat", input="after")
        assert (reply["state"], reply["content"]) == ("running", "after\n")
        assert turn.kept()[0] == before
        assert turn.one("handle_abort", id="cat")["ended_by"] == "abort"
        turn.close()
        turn.leaves_nothing()


def test_R7_a_screen_after_the_return_is_that_of_a_terminal_that_was_never_interrupted(directory: Path) -> None:
    """Also one that was resized, scrolled and left in the middle of an editor."""
    drawn = "printf '\\033[2J\\033[5;10Hdrawn\\033[1;31m red\\033[m\\n'; seq 40; printf '\\033[?1h'\n"
    steps: list[dict[str, Any]] = [
        {"input": drawn},
        {"size": {"rows": 12, "cols": 40}},
        {"input": "seq 100 150; printf 'a long line that is wrapped at forty columns, and again'\n"},
    ]
    if shutil.which("vim"):
        steps += [{"input": "vim -u NONE -n text\n"}, {"input": "ione\rtwo\rthree", "keys": ["UP"]}]
    screens = []
    for name in ("once", "killed"):
        (directory / name).mkdir()
        with kept_turn(directory / name, CONFIG) as turn:
            turn.start()
            turn.one("sh", spawn="t")
            for step in steps:
                turn.one("handle_apply", id="t", **step)
            if name == "killed":
                turn.kill()
                turn.start()
            until(lambda: turn.one("handle_fetch", id="t")["state"] == "running")
            shown = turn.one("handle_fetch", id="t", view="screen", scrollback=30)
            screens.append((shown["screen"], shown["content"]))
            assert turn.one("handle_apply", id="t", size={"rows": 20, "cols": 60})["state"] == "running"
            turn.one("handle_abort", id="t")
            turn.close()
            turn.leaves_nothing()
    assert screens[0] == screens[1]


async def test_R7_a_password_prompt_is_asked_again_and_the_password_stays_hidden(directory: Path) -> None:
    asked, secret = asyncio.Event(), "hunter2hunter2"

    async def prompter(prompt: Prompt) -> Decision:
        asked.set()
        return await answered

    command = [sys.executable, str(directory / "secret.py")]
    patient = SpawnPolicy(settle_max_ms=60_000)  # keeper and program have to start before the prompt can be seen
    tools = [replace(keephold.terminal(command, name="secret", on_crash="keep"), spawn=patient)]
    store = f"sqlite:///{directory / 'store.db'}"
    for turns in ("begin", "answer", "end"):
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        async with keephold.Runtime(tools, store=store, prompter=prompter) as rt:
            if turns == "begin":
                async with rt.turn("c") as turn:
                    await turn.run([keephold.ToolCall("1", "secret", {"action": "spawn", "id": "t"})])
                    await asyncio.wait_for(asked.wait(), PATIENCE)
                    asked.clear()
            elif turns == "answer":
                await asyncio.wait_for(asked.wait(), PATIENCE)
                assert (await rt.handle("t", conversation="c")).state == "waiting"
                answered.set_result(Answer(secret))
                await printed(rt, b"more? ")
            else:
                reply = await rt.send("t", "no\r", conversation="c")
                state = await rt.wait(all=["t"], conversation="c")
                assert state["completed"][0]["state"] == "stopped", reply
                text = (await printed(rt, b"more? ")).decode()
                assert "hello ********" in text and secret not in text


def test_B9_R7_input_with_which_a_process_ended_is_answered_by_its_end(directory: Path) -> None:
    """The batch that sent it is resumed when the process has ended, and does not send it to nobody."""
    with kept_turn(directory, CONFIG) as turn:
        turn.start()
        turn.begin(("quit", {"spawn": "q"}), ("handle_apply", {"id": "q", "input": "now"}))
        until((directory / "got").exists)
        turn.kill()
        (directory / "go").touch()
        until(lambda: turn.kept()[0].exit is not None)
        turn.start()
        found = turn.answers()  # of the batch that is resumed
        assert found is not None and [json.loads(each)["state"] for each in found] == ["stopped", "stopped"]
        assert turn.shown("q")["exit_code"] == 9
        turn.close()
        turn.leaves_nothing()


def test_R7_a_process_that_is_taken_back_has_its_slot_its_lane_and_its_resources(directory: Path) -> None:
    with kept_turn(directory, CONFIG) as turn:
        turn.start()
        turn.run(("single", {"spawn": "first"}), ("single", {"spawn": "second"}))
        until(turn.kept)
        turn.kill()
        turn.start()
        assert turn.one("handle_apply", id="first", input="here")["content"] == "here\n"
        assert turn.listed()["second"]["state"] == "pending"
        turn.one("handle_abort", id="first")
        until(lambda: turn.listed()["second"]["state"] == "running")
        assert turn.one("handle_apply", id="second", input="here")["content"] == "here\n"
        turn.one("handle_abort", id="second")
        turn.close()
        turn.leaves_nothing()


def test_R7_a_kept_process_can_be_aborted_where_its_tool_is_not(directory: Path) -> None:
    """Also one whose handle has stopped without it is ended, by the next runtime."""
    with kept_turn(directory, CONFIG) as turn:
        turn.start()
        turn.run(("cat", {"spawn": "a"}), ("cat", {"spawn": "b"}), ("handle_apply", {"id": "a", "input": "before"}))
        until(lambda: len(turn.kept()) == 2)
        turn.kill()
        followed = subprocess.run(turn.command("logs", "-f", "b"), capture_output=True)
        assert b"start one that has its tool `cat`" in followed.stderr  # it ended, and the handle has not stopped
        turn.printed("abort", "a")
        fact = turn.shown("a")
        assert (fact["state"], fact["ended_by"], turn.output("a")) == ("stopped", "abort", "before\n")
        assert len(turn.kept()) == 1
        connection = sqlite3.connect(turn.store)
        with connection:
            connection.execute("DELETE FROM handles WHERE id = 'b'")
        connection.close()
        turn.start()
        turn.leaves_nothing_kept()
        turn.close()
        turn.leaves_nothing()


def test_R7_a_process_on_another_host_is_left_alone(directory: Path) -> None:
    with kept_turn(directory, CONFIG) as turn:
        turn.start()
        turn.one("cat", spawn="cat")
        turn.kill()
        (file,) = Path(f"{turn.store}-output").glob("*.kept")
        with file.open("a") as record:
            record.write(json.dumps({"host": "elsewhere"}) + "\n")
        turn.start()
        turn.run(("await", {"all": ["cat"], "timeout_secs": 0}))
        fact = turn.listed()["cat"]
        assert (fact["state"], fact["owner"], fact["kept"]["host"]) == ("running", "gone", "elsewhere")
        assert "kept on elsewhere" in turn.printed("ps")
        with file.open("a") as record:
            record.write(json.dumps({"host": socket.gethostname()}) + "\n")
        until(lambda: turn.listed()["cat"]["owner"] == "alive")
        assert turn.one("handle_apply", id="cat", input="here")["content"] == "here\n"
        turn.one("handle_abort", id="cat")
        turn.close()
        turn.leaves_nothing()


def test_R7_a_wait_for_a_kept_call_without_a_runtime_says_that_it_is_kept(directory: Path) -> None:
    with kept_turn(directory, CONFIG) as turn:
        turn.start()
        turn.one("cat", spawn="cat")
        turn.kill()
        waited = subprocess.run(turn.command("wait", "cat", "--timeout", "0"), capture_output=True, text=True)
        assert waited.stderr.startswith(
            f"cat: it is kept on {socket.gethostname()}, and no runtime has taken it back yet\n"
        )
        turn.start()
        assert turn.one("handle_abort", id="cat")["state"] == "stopped"
        turn.close()
        turn.leaves_nothing()


def test_R7_C7_a_call_that_is_aborted_elsewhere_ends_on_its_own_host(directory: Path) -> None:
    with kept_turn(directory, CONFIG) as turn:
        turn.start()
        turn.one("cat", spawn="cat")
        turn.kill()
        (file,) = Path(f"{turn.store}-output").glob("*.kept")
        with file.open("a") as record:
            record.write(json.dumps({"host": "elsewhere"}) + "\n")
        turn.printed("abort", "cat")
        assert turn.listed()["cat"]["state"] == "stopped"
        with file.open("r+") as record:  # it must be there
            record.seek(0, os.SEEK_END)
            record.write(json.dumps({"host": socket.gethostname()}) + "\n")
        turn.start()
        turn.leaves_nothing_kept()
        turn.run(("await", {"all": ["cat"]}))
        turn.close()
        turn.leaves_nothing()


async def test_R7_E6_a_call_that_another_runtime_has_is_left_to_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def taken(*_: Any) -> None:
        raise KeepholdError("another runtime has it", code="lease_lost")

    tools = [keephold.command(["cat"], name="cat", stdin=True, actions=("spawn", "apply", "abort"), on_crash="keep")]
    store = f"sqlite:///{directory / 'store.db'}"
    async with keephold.Runtime(tools, store=store) as rt, rt.turn("c") as turn:
        await turn.run([keephold.ToolCall("1", "cat", {"action": "spawn", "id": "t"})])
    with monkeypatch.context() as patched:
        patched.setattr(Keeper, "take_back", taken)
        async with keephold.Runtime(tools, store=store) as rt:
            await rt.registry.load("c", ["t"])
            handle = rt.registry.find("t", "c")
            await becomes(lambda: handle.run is None)
    async with keephold.Runtime(tools, store=store) as rt, rt.turn("c") as turn:
        await turn.run([keephold.ToolCall("1", "cat", {"action": "abort", "id": "t"})])


@pytest.mark.parametrize("alone", [False, True])
def test_R7_if_the_keeper_dies_its_processes_end_and_the_handle_says_so(directory: Path, alone: bool) -> None:
    with kept_turn(directory, CONFIG) as turn:
        turn.start()
        turn.one("short" if alone else "cat", spawn="t")
        until(turn.kept)
        keeper = int(turn.kept()[0].keeper.split("-")[1])
        if alone:
            turn.kill()
        os.kill(keeper, signal.SIGKILL)
        if alone:
            turn.start()
        (reply,) = turn.run(("await", {"all": ["t"]}))
        fact = turn.shown("t")
        assert (fact["state"], fact["ended_by"], fact["code"]) == ("stopped", "crash", "crashed"), reply
        turn.close()
        turn.leaves_nothing()
