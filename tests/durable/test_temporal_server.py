"""The Temporal server that the tests of the engine run on: it starts, it keeps what it acknowledged, it ends."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from temporalio import workflow
from temporalio.worker import Worker
from tests.patience import until
from tests.temporal import GIVEN, Place, own_server


@workflow.defn(sandboxed=False)
class Journal:
    """Keeps what updates bring, until it is told to end."""

    def __init__(self) -> None:
        self._steps: list[str] = []
        self._ended = False

    @workflow.run
    async def run(self) -> list[str]:
        await workflow.wait_condition(lambda: self._ended)
        return self._steps

    @workflow.update
    async def step(self, name: str) -> int:
        self._steps.append(name)
        return len(self._steps)

    @workflow.signal
    def end(self) -> None:
        self._ended = True


async def test_a_workflow_takes_updates(temporal: Place) -> None:
    client = await temporal.connect()
    async with Worker(client, task_queue=temporal.task_queue, workflows=[Journal]):
        call = await client.start_workflow(Journal.run, id=temporal.task_queue, task_queue=temporal.task_queue)
        assert [await call.execute_update(Journal.step, name) for name in ("a", "b")] == [1, 2]
        await call.signal(Journal.end)
        assert await call.result() == ["a", "b"]


async def test_a_killed_server_has_everything_that_it_acknowledged() -> None:
    with own_server() as server:
        place = Place(server.address)
        client = await place.connect()
        async with Worker(client, task_queue=place.task_queue, workflows=[Journal]):
            call = await client.start_workflow(Journal.run, id="journal", task_queue=place.task_queue)
            assert await call.execute_update(Journal.step, "a") == 1
            server.kill()
            server.start()
            assert await call.execute_update(Journal.step, "b") == 2
            await call.signal(Journal.end)
            assert await call.result() == ["a", "b"]


_TWO_SERVERS = """
import sys, time
from pathlib import Path
from tests.temporal import own_server, shared_server

with shared_server(Path(sys.argv[1])) as shared, own_server() as own:
    print(shared, own.address, flush=True)
    time.sleep(600)
"""


async def test_servers_end_when_the_tests_are_killed(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != GIVEN}
    environment["TMPDIR"] = str(tmp_path)  # an own server that is killed with the tests leaves its directory
    command = [sys.executable, "-c", _TWO_SERVERS, str(tmp_path / "place")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as tests:
        assert tests.stdout is not None
        addresses = tests.stdout.readline().split()
        assert len(addresses) == 2 and all(map(_listens, addresses))
        tests.send_signal(signal.SIGKILL)
    await until(lambda: not any(map(_listens, addresses)))
    _, directory = (tmp_path / "place/server").read_text().splitlines()
    await until(lambda: not Path(directory).exists())


def _listens(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as tried:
        return not tried.connect_ex((host, int(port)))
