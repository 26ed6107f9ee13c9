"""Calls on Temporal whose workers, front end and server are killed: all of them are processes of their own."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.engines.processes import Worker, config, on_path, workers
from tests.mcp.clients import connected, read
from tests.patience import until
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
        assert (await waiting)["result"] == "r-17 installed in production, approved by Ada"
        said = [worker.said for worker in started]
    assert [each.count("step `build` runs") for each in said] == [1, 0]
    assert [each.count("step `install` runs") for each in said] == [0, 1]


async def _result(server: Served) -> dict[str, Any]:
    """Wait as a client does: if the server dies, it connects again and waits again."""
    while True:
        with suppress(Exception):
            async with connected(server.mcp, token=TOKEN) as client:
                waited = await client.call_tool("await", {"all": ["d"]})
                break
        await asyncio.sleep(0.1)
    (completed,) = read(waited)["completed"]
    return dict(completed)
