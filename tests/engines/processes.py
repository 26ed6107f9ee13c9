"""`keephold worker` as a process of its own, in a directory of its own, beside a `keephold serve`."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from mcp.client import Client
from tests.mcp.clients import read
from tests.patience import PATIENCE
from tests.serve.serving import ROOT, environment
from tests.temporal import Place
from tests.trusting import write_trusted


async def completed(client: Client, *ids: str) -> dict[str, Any]:
    """Return the results of handles. A wait is answered after 45 s, and then the handles may still run."""
    while True:
        waited = read(await client.call_tool("await", {"all": list(ids)}))["completed"]
        if len(waited) == len(ids):
            return {each["id"]: each.get("result") for each in waited}


def config(place: Place, **tools: str) -> str:
    """The configuration of a front end and its workers: the functions of these tools, by name, on Temporal."""
    said = f'[engines.temporal]\naddress = "{place.address}"\ntask_queue = "{place.task_queue}"\n'
    for name, function in tools.items():
        said += f'[conversation.tools.{name}]\nsource = "python"\nfunction = "{function}"\n'
        said += 'run = "unattended"\nengine = "temporal"\n'
    return said


class Worker:
    """A worker. All it says, and all its tools say, is in a file."""

    def __init__(self, directory: Path, config: str, *words: str, **variables: str) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        write_trusted(directory / "keephold.toml", config, directory / "state")
        with (directory / "said").open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "keephold", "worker", "--engine", "temporal", *words],
                cwd=directory,
                env={**environment(directory), **variables},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    @property
    def said(self) -> str:
        return (self.directory / "said").read_text()

    def memory(self) -> int:
        """Its resident memory, in bytes."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def stop(self) -> int:
        """End it in good order, and return its exit code."""
        self.send(signal.SIGTERM)
        return self.process.wait(PATIENCE)


@contextmanager
def workers() -> Iterator[list[Worker]]:
    """Workers that a test starts; those that still run are killed in the end."""
    started: list[Worker] = []
    try:
        yield started
    finally:
        for worker in started:
            if worker.process.poll() is None:
                worker.kill()


def on_path(*directories: Path) -> dict[str, str]:
    """Return the variables by which a process finds modules in these directories."""
    return {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *directories)))}
