"""One trace across a crash: a program with a tracer provider is killed, and the next one goes on in its traces."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from tests.durable.lives import stored_in
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]


async def program(directory: Path, how: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.e2e.traced", stored_in(directory), str(directory / "spans"), how,
        cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def killed_when_ready(directory: Path) -> int:
    process = await program(directory, "begin")
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            assert await process.stdout.readline() == b"ready\n"
    finally:
        process.kill()
        await process.wait()
    return process.pid


def spans(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "spans").read_text().splitlines()]


async def test_R1_one_trace_across_a_kill_and_a_restart(tmp_path: Path) -> None:
    first = await killed_when_ready(tmp_path)
    second = await program(tmp_path, "go-on")
    async with asyncio.timeout(PATIENCE):
        assert await second.wait() == 0
    found = spans(tmp_path)
    (step,) = [span for span in found if span["name"] == "step"]
    (deploy,) = [span for span in found if span["name"] == "execute_tool deploy"]
    (turn,) = [span for span in found if span["name"] == "invoke_agent"]
    (resolve,) = [span for span in found if span["name"] == "resolve"]
    (waited,) = [span for span in found if span["name"] == "wait event"]
    assert (step["pid"], deploy["pid"], turn["pid"], waited["pid"]) == (first, second.pid, second.pid, second.pid)
    traces = {span["context"]["trace_id"] for span in found}
    assert traces == {step["context"]["trace_id"]}
    assert deploy["attributes"]["keephold.recovered"]
    attempts = {span["context"]["span_id"]: span for span in found if span["name"] == "attempt"}
    assert attempts[waited["parent_id"]]["attributes"]["keephold.attempt"] == 2
    assert attempts[waited["parent_id"]]["parent_id"] == deploy["context"]["span_id"]
    (link,) = resolve["links"]
    assert link["context"]["trace_id"] == step["context"]["trace_id"]
    assert deploy["parent_id"] == link["context"]["span_id"]  # the call as it was stored, whose span died unseen
