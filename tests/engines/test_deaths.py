"""Workers that are cut off or die by their tool. Each needs timeouts of Temporal to pass: `KEEPHOLD_SOAK=1`."""

import asyncio
import signal
from pathlib import Path

import httpx2
import pytest
from tests.engines.processes import Worker, completed, config, workers
from tests.mcp.clients import connected
from tests.patience import until
from tests.ports import free_port
from tests.serve.serving import TOKEN, served
from tests.soak import SOAK
from tests.temporal import Place

pytestmark = pytest.mark.skipif(not SOAK, reason="set KEEPHOLD_SOAK=1: workers are missed after 15 s")


def _noted(place: Path, file: str) -> list[str]:
    return (place / file).read_text().split() if (place / file).exists() else []


async def test_E6_a_worker_that_was_stopped_and_goes_on_records_and_prints_nothing(
    temporal: Place, tmp_path: Path
) -> None:
    settings = config(temporal, lingers="tests.engines.soak_tools:lingers")
    (tmp_path / "front").mkdir()
    variables = {"KEEPHOLD_SOAK_PLACE": str(tmp_path)}
    with workers() as started, served(tmp_path / "front", settings) as server:
        port = free_port()
        started.append(Worker(tmp_path / "first", settings, "--metrics", f"127.0.0.1:{port}", **variables))
        async with connected(server.mcp, token=TOKEN) as client, server.client() as http:
            await client.call_tool("lingers", {"action": "spawn", "id": "l"})
            await until(lambda: _noted(tmp_path, "begun") == ["1"])
            started[0].send(signal.SIGSTOP)
            started.append(Worker(tmp_path / "second", settings, **variables))
            while len(_noted(tmp_path, "begun")) < 2:  # noqa: ASYNC110 (the first worker's polls take attempts first)
                await asyncio.sleep(0.1)
            attempt = _noted(tmp_path, "begun")[1]
            (tmp_path / "go").touch()
            await until(lambda: _noted(tmp_path, "recorded"))
            started[0].send(signal.SIGCONT)
            await until(lambda: _idle(http, port))
            (tmp_path / "end").touch()
            assert await completed(client, "l") == {"l": f"attempt {attempt}"}
            (handle,) = (await http.get("/api/handles")).json()["handles"]
            output = (await http.get(f"/api/handles/{handle['uid']}/output", params={"format": "raw"})).text
    assert _noted(tmp_path, "recorded") == [attempt]
    assert output.count("prints") == 1 and f"attempt {attempt} prints" in output


async def _idle(http: httpx2.AsyncClient, port: int) -> bool:
    """Return whether a worker runs nothing, by its metrics."""
    return "keephold_worker_attempts_running 0.0" in (await http.get(f"http://127.0.0.1:{port}/metrics")).text


async def test_R8_a_tool_that_ends_three_workers_is_stopped(temporal: Place, tmp_path: Path) -> None:
    settings = config(temporal, dies="tests.engines.soak_tools:dies")
    (tmp_path / "front").mkdir()
    with workers() as started, served(tmp_path / "front", settings) as server:
        async with connected(server.mcp, token=TOKEN) as client, server.client() as http:
            await client.call_tool("dies", {"action": "spawn", "id": "d"})
            for _ in range(3):
                started.append(Worker(tmp_path / "worker", settings, KEEPHOLD_SOAK_PLACE=str(tmp_path)))
                await until(lambda: started[-1].process.poll() is not None)
            started.append(Worker(tmp_path / "worker", settings, KEEPHOLD_SOAK_PLACE=str(tmp_path)))
            await completed(client, "d")
            (handle,) = (await http.get("/api/handles")).json()["handles"]
    assert handle["code"] == "crash_loop" and _noted(tmp_path, "died") == ["1", "2", "3"]


async def test_R6_a_worker_exits_although_its_tool_swallows_its_cancellation(temporal: Place, tmp_path: Path) -> None:
    settings = config(temporal, swallows="tests.engines.soak_tools:swallows")
    variables = {"KEEPHOLD_SOAK_PLACE": str(tmp_path)}
    (tmp_path / "front").mkdir()
    with workers() as started, served(tmp_path / "front", settings) as server:
        started.append(Worker(tmp_path / "first", settings, "--drain", "0", **variables))
        async with connected(server.mcp, token=TOKEN) as client:
            await client.call_tool("swallows", {"action": "spawn", "id": "s"})
            await until(lambda: _noted(tmp_path, "begun") == ["1"])
            assert await asyncio.to_thread(started[0].stop) == 128 + signal.SIGTERM
            assert "did not end when they were cancelled" in started[0].said
            started.append(Worker(tmp_path / "second", settings, **variables))
            await until(lambda: _noted(tmp_path, "begun") == ["1", "2"])
