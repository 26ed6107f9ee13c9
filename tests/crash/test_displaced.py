"""A process whose lock file is deleted while it lives (E6): it fails with `lease_lost` and says so, and never hangs."""

import asyncio
import fcntl
import subprocess
import sys
from pathlib import Path

import pytest
from tests.durable.lives import stopped, stored_in

import keephold
from keephold import Call, KeepholdError, Runtime
from keephold.outcomes import Ok
from keephold.store.sqlite.processes import Owners

ROOT = Path(__file__).parents[2]

PROGRAM = """
import asyncio, logging, sys
import keephold
from keephold import Call, KeepholdError, Runtime, ToolCall

logging.basicConfig(stream=sys.stdout, format="%(name)s %(message)s", level=logging.ERROR)

@keephold.tool(actions=["spawn", "fetch", "abort"], on_crash="replay", on_turn_end="keep")
async def work(call: Call) -> str:
    async def step(_):
        print(rt.registry.store.owner, flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        return "first"
    try:
        return await call.durable().run_json("step", {}, step)
    except KeepholdError as error:
        print("step:", error.code, flush=True)
        raise

async def main():
    global rt
    rt = Runtime([work], store=sys.argv[1])
    async with rt:
        turn = await rt.turn("main").__aenter__()
        await turn.run([ToolCall("1", "work", {"action": "spawn", "id": "work"})])
        while not rt.registry.store.trouble:
            await asyncio.sleep(0.01)
        try:
            await turn.end()
        except KeepholdError as error:
            print("end:", error.code, flush=True)
    print("closed", flush=True)

asyncio.run(main())
"""


@keephold.tool(actions=["spawn", "fetch", "abort"], on_crash="replay")
async def work(call: Call) -> str:
    async def step(_: object) -> str:
        return "second"

    return str(await call.durable().run_json("step", {}, step))


async def test_E6_a_process_whose_lock_file_is_gone_loses_its_calls_and_does_not_hang(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, stored_in(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            owner = (await asyncio.to_thread(process.stdout.readline)).strip()
            (tmp_path / "work.db-owners" / owner).unlink()
            async with Runtime([work], store=stored_in(tmp_path)) as rt:
                assert (await stopped(rt, "work")).outcome == Ok("second")
                printed, _ = await asyncio.to_thread(process.communicate, "\n", 60)
                assert (await rt.handle("work", conversation="main")).outcome == Ok("second")
        finally:
            process.kill()
    assert "step: lease_lost" in printed and "end: lease_lost" in printed and "closed" in printed
    assert "keephold.store this process has lost" in printed


def test_a_file_system_that_ignores_locks_is_found_by_trying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a shared folder of some virtual machines does. None can be mounted here, so locking does nothing."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with pytest.raises(KeepholdError, match="ignores locks"):
        Owners(tmp_path / "owners").enter()
    assert list((tmp_path / "owners").iterdir()) == []
