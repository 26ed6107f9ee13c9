"""`await` and terminals: it returns when a program is known to wait for input, and when it has ended (A2, A6)."""

import asyncio
import json
from pathlib import Path

from tests.e2e.terminals import Said, at_work, patient, python, quick, shell
from tests.patience import PATIENCE

from keephold import Tool, terminal

GREETS = "printf 'Name? '; read name; echo \"hello $name\""
WORKS = "echo working; until [ -e done ]; do sleep 0.01; done; echo finished"


def script(text: str, name: str, directory: Path | None = None) -> Tool:
    return terminal(["sh", "-c", text], name=name, cwd=None if directory is None else str(directory))


def needs_input(*ids: str) -> Said:
    pending = [{"id": id, "state": "running", "waiting_for_input": True} for id in ids]
    return {"completed": [], "pending": pending, "needs_input": True}


async def test_A6_an_await_returns_when_the_program_reads_and_when_it_ends() -> None:
    async with at_work(patient(script(GREETS, "greet"))) as assistant:
        spawned, waited = await assistant.batch(
            ("greet", {"action": "spawn", "id": "greet"}), ("await", {"all": ["greet"]})
        )
        assert json.loads(waited.result) == needs_input("greet")
        applied, waited = await assistant.batch(
            ("greet", {"action": "apply", "id": "greet", "input": "Ada\n"}), ("await", {"all": ["greet"]})
        )
        (completed,) = json.loads(waited.result)["completed"]
        assert completed == {"id": "greet", "state": "stopped", "result": "Ada\nhello Ada\n"}
        assert json.loads(applied.result)["state"] == "stopped"
        assert json.loads(spawned.result)["content"] == "Name? "


async def test_A6_an_await_goes_on_while_one_of_two_works(tmp_path: Path) -> None:
    async with at_work(script(GREETS, "greet"), script(WORKS, "work", tmp_path)) as assistant:
        greet, work = await assistant.spawn("greet"), await assistant.spawn("work")
        waited = await assistant.call("await", all=["greet", "work"], timeout_secs=1)
        pending = [{"id": "greet", "state": "running"}, {"id": "work", "state": "running"}]
        assert waited == {"completed": [], "pending": pending, "timed_out": True}
        assert await assistant.call("await", any=["greet"]) == needs_input("greet")

        (tmp_path / "done").touch()
        waited = await assistant.call("await", all=["greet", "work"])
        (completed,) = waited.pop("completed")
        assert waited == {key: value for key, value in needs_input("greet").items() if key != "completed"}
        assert (completed["id"], completed["result"]) == ("work", "finished\n")

        await greet.apply("Bob\n")
        (completed,) = (await assistant.call("await", all=["greet"]))["completed"]
        assert greet.text + completed["result"] == "Name? Bob\nhello Bob\n"
        assert work.text == "working\n"


async def test_A6_two_that_read_are_both_named() -> None:
    async with at_work(script(GREETS, "greet")) as assistant:
        first, second = await assistant.spawn("greet", id="first"), await assistant.spawn("greet", id="second")
        assert await assistant.call("await", all=["first", "second"]) == needs_input("first", "second")
        await second.apply("Eve\n")
        (completed,) = (await assistant.call("await", any=["first", "second"]))["completed"]
        assert completed["id"] == "second"
        assert await assistant.call("await", all=["first"]) == needs_input("first")
        await first.abort()


async def test_A6_an_await_wakes_when_the_program_begins_to_read(tmp_path: Path) -> None:
    """Nothing else happens meanwhile: what it prints before it reads is what wakes it."""
    both = "until [ -e done ]; do sleep 0.01; done; " + GREETS
    async with at_work(script(both, "greet", tmp_path)) as assistant:
        await assistant.spawn("greet")
        waiting = asyncio.create_task(assistant.call("await", all=["greet"]))
        await asyncio.sleep(0)
        assert not waiting.done()
        (tmp_path / "done").touch()
        assert await waiting == needs_input("greet")


async def test_A6_an_await_sees_a_program_that_reads_long_after_it_spoke(tmp_path: Path) -> None:
    """What it does in between is silent, so no output tells when to look."""
    late = 'echo checking; until [ -e done ]; do sleep 0.01; done; read name; echo "hello $name"'
    async with at_work(script(late, "greet", tmp_path)) as assistant:
        await assistant.spawn("greet")
        waited = await assistant.call("await", all=["greet"], timeout_secs=1)
        assert waited["timed_out"] is True
        waiting = asyncio.create_task(assistant.call("await", all=["greet"], timeout_secs=PATIENCE))
        await asyncio.sleep(0.5)  # longer than a quiet time: the program is looked at, and works
        (tmp_path / "done").touch()
        assert await waiting == needs_input("greet")


async def test_C5_a_fetch_says_whether_the_program_waits(tmp_path: Path) -> None:
    late = "echo checking; until [ -e done ]; do sleep 0.01; done; " + GREETS
    async with at_work(quick(script(late, "greet", tmp_path))) as assistant:
        session = await assistant.spawn("greet")
        (tmp_path / "done").touch()
        await session.reads("Name? ")
        await session.waits()


async def test_A6_a_program_that_takes_single_keys_is_not_known_to_wait() -> None:
    """It may as well wait for something else: an `await` needs its timeout, and what it shows is left to `fetch`."""
    keys = "import tty; tty.setraw(0); os.write(1, b'key? '); os.read(0, 1)"
    async with at_work(python(keys)) as assistant:
        session = await assistant.spawn("program")
        await session.reads("key? ")
        waited = await assistant.call("await", all=["program"], timeout_secs=1)
        assert waited == {"completed": [], "pending": [{"id": "program", "state": "running"}], "timed_out": True}
        await session.apply(keys=["x"])
        await session.stops()


async def test_A6_a_program_in_the_foreground_of_a_shell_is_looked_at() -> None:
    async with at_work(quick(shell())) as assistant:
        session = await assistant.spawn("shell")
        await session.reads("$ ")
        await session.apply("cat\n")
        await session.waits()
        assert await assistant.call("await", all=["shell"]) == needs_input("shell")
        await session.apply("meow\n")
        assert await session.reads("meow\nmeow\n")
        await session.apply(None)
        assert (await session.reads("$ ")).count("meow") == 0
        await session.apply("exit\n")
        assert (await session.stops())["result"].strip() in ("", "exit")
