"""A child that was forked without `exec` (a pool of processes) keeps nothing of its parent: no lock, no socket (E6)."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from tests.durable.lives import stopped, stored_in
from tests.turn.calls import STATEFUL

import keephold
from keephold import Call, Runtime, ToolCall

ROOT = Path(__file__).parents[2]

PROGRAM = """
import asyncio, multiprocessing, os, sys, threading
from concurrent.futures import ProcessPoolExecutor
import keephold
from keephold import Call, KeepholdError, Runtime, ToolCall
from keephold.store.sqlite import opening

@keephold.tool(actions={actions!r})
async def work(call: Call) -> str:
    await asyncio.sleep(3600)
    return "never"

def child(seconds):
    import time
    time.sleep(seconds)
    return os.getpid()

async def main():
    async with Runtime([work], store=sys.argv[1]) as rt:
        turn = await rt.turn("main").__aenter__()
        await turn.run([ToolCall("work", "work", {{"action": "spawn", "id": "work"}})])
{body}

asyncio.run(main())
"""

POOL = """
        with rt.registry.store._place.turnstile:  # as in the middle of a commit
            pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork"))
            workers = [pool.submit(child, 3600) for _ in range(2)]
            while len(multiprocessing.active_children()) < 2:
                await asyncio.sleep(0.01)
            print("ready", *(each.pid for each in multiprocessing.active_children()), flush=True)
            await asyncio.sleep(3600)
"""

LEAVES = """
        pid = os.fork()
        if pid == 0:
            try:
                opening.claim(rt.registry.store.path)
            except KeepholdError as error:
                print("refused" if "was forked" in error.message else error.message, flush=True)
            sys.exit(7)  # through everything that the parent has open
        code = await asyncio.to_thread(os.waitpid, pid, 0)
        print("left", os.waitstatus_to_exitcode(code[1]), flush=True)
        (info,) = await rt.handles(conversation="main")
        print(info.state, rt.registry.store.trouble, flush=True)
        await rt.notify("a.b", "info", "it can write", conversation="main")
        print("writes", flush=True)
        await asyncio.sleep(3600)
"""


@contextmanager
def program(directory: Path, body: str) -> Iterator["subprocess.Popen[str]"]:
    text = PROGRAM.format(actions=STATEFUL, body=body)
    command = [sys.executable, "-c", text, stored_in(directory)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def said(process: "subprocess.Popen[str]") -> list[str]:
    assert process.stdout is not None
    return (await asyncio.to_thread(process.stdout.readline)).split()


@keephold.tool(actions=STATEFUL)
async def work(call: Call) -> str:
    return "new"


async def test_E6_after_a_kill_the_children_of_a_pool_keep_neither_the_call_nor_the_turnstile(tmp_path: Path) -> None:
    with program(tmp_path, POOL) as process:
        ready, *pids = await said(process)
        assert ready == "ready"
        process.kill()
        process.wait()
        workers = [psutil.Process(int(pid)) for pid in pids]
        try:
            async with Runtime([work], store=stored_in(tmp_path)) as rt:
                assert (await stopped(rt, "work")).ended_by == "crash"
                async with rt.turn("main") as turn:
                    (response,) = await turn.run([ToolCall("1", "work")])
                    assert response.result == "new"
            assert all(each.is_running() for each in workers), "they lived all the time"
        finally:
            for each in workers:
                each.kill()


async def test_a_forked_child_that_leaves_ends_nothing_of_its_parent(tmp_path: Path) -> None:
    with program(tmp_path, LEAVES) as process:
        assert await said(process) == ["refused"]
        assert await said(process) == ["left", "7"]
        assert await said(process) == ["running", "None"]
        assert await said(process) == ["writes"]
