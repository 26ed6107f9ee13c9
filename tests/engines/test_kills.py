"""Calls on Temporal whose workers, front end and server are killed: all of them are processes of their own."""

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.engines.processes import Worker, completed, config, on_path, workers
from tests.mcp.clients import connected, read
from tests.patience import PATIENCE, until
from tests.serve.serving import ROOT, TOKEN, Served, served
from tests.temporal import Place

EXAMPLES = on_path(ROOT / "examples")


async def test_E2_the_deployment_of_the_readme_on_temporal(temporal: Place, tmp_path: Path) -> None:
    """`examples/approval.py` has the tool; only the configuration says where it runs."""
    settings = config(temporal, deploy="approval:deploy")
    front, first, second = (tmp_path / name for name in ("front", "first", "second"))
    front.mkdir()
    with workers() as started, served(front, settings, env={**EXAMPLES, "KEEPHOLD_TOKEN": TOKEN}) as server:
        started.append(Worker(first, settings, **EXAMPLES))
        async with connected(server.mcp, token=TOKEN) as client:
            spawned = await client.call_tool("deploy", {"action": "spawn", "id": "d", "env": "production"})
            assert read(spawned) == {"id": "d", "state": "running"}
        waiting = asyncio.create_task(_result(server))
        await until((first / "approval.key").exists)
        started[0].kill()

        # Another machine continues. Meanwhile the front end dies, too.
        started.append(Worker(second, settings, **EXAMPLES))
        server.kill()
        await until((second / "approval.key").exists)
        server.restart()
        key = (second / "approval.key").read_text()
        assert key == (first / "approval.key").read_text()

        async with server.client() as webhook:
            answered = await webhook.post(f"/complete/{key}", json={"status": "ok", "payload": {"by": "Ada"}})
            assert answered.status_code == 200, answered.text
            again = await webhook.post(f"/complete/{key}", json={"status": "ok", "payload": {"by": "Bob"}})
            assert again.json()["status"] == "already_resolved"
        assert await waiting == "r-17 installed in production, approved by Ada"
        said = [worker.said for worker in started]
    assert [each.count("step `build` runs") for each in said] == [1, 0]
    assert [each.count("step `install` runs") for each in said] == [0, 1]


async def test_R6_a_worker_that_is_told_to_stop_ends_what_it_runs_or_lets_another_continue(
    temporal: Place, tmp_path: Path
) -> None:
    settings = config(temporal, moves="tests.engines.soak_tools:moves", stays="tests.engines.soak_tools:stays")
    variables = {"KEEPHOLD_SOAK_PLACE": str(tmp_path)}
    (tmp_path / "front").mkdir()
    with workers() as started, served(tmp_path / "front", settings) as server:
        started.append(Worker(tmp_path / "first", settings, "--drain", str(PATIENCE), **variables))
        async with connected(server.mcp, token=TOKEN) as client:
            for tool in ("moves", "stays"):
                await client.call_tool(tool, {"action": "spawn", "id": tool})
            begun = tmp_path / "begun"
            await until(lambda: begun.exists() and begun.read_text() == "1\n1\n")
            started[0].send(signal.SIGTERM)
            await until(lambda: "Stopping" in started[0].said)
            (tmp_path / "go").touch()
            assert await asyncio.to_thread(started[0].process.wait, PATIENCE) == 128 + signal.SIGTERM

            started.append(Worker(tmp_path / "second", settings, **variables))
            results = await completed(client, "moves", "stays")
    assert results == {"moves": "step 1, end 2", "stays": "end 1"}
    assert (tmp_path / "begun").read_text() == "1\n1\n", "no step ran again"


async def _result(server: Served) -> Any:
    """Wait as a client does: if the server dies, it connects again and waits again."""
    while True:
        with suppress(Exception):
            async with connected(server.mcp, token=TOKEN) as client:
                return (await completed(client, "d"))["d"]
        await asyncio.sleep(0.1)
