"""A host starts `keephold mcp` and sends `initialize`: from the start of the process to the answer, against a bare
`MCPServer` on stdio, and the resident memory then.

*cold*: on a store without a server, so that the background server is started; its memory is measured. *bridged*: while
that runs; the memory is that of the process which the host has started.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import psutil

from bench.rounds import Bar, Plan, Row, seconds

COLD, BRIDGED, MEMORY = Bar(1.3), Bar(0.5), Bar(1.3)
_BARE = """
from mcp.server import MCPServer
server = MCPServer("bare")
@server.tool()
def echo(text: str) -> str:
    return text
server.run("stdio")
"""
_INFO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
_INITIALIZE = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _INFO}).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class _Start:
    seconds: float
    memory: float
    """Bytes."""


def _start(command: list[str], directory: str, *, background: bool = False) -> _Start:
    began = perf_counter()
    env = {**os.environ, "XDG_STATE_HOME": directory}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, cwd=directory
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(_INITIALIZE)
        process.stdin.flush()
        assert b'"result"' in process.stdout.readline()
        took = perf_counter() - began
        used = psutil.Process(_background(directory)[0] if background else process.pid).memory_info().rss
        process.stdin.close()
    return _Start(took, used)


def _background(directory: str) -> list[int]:
    notes = (path for path in Path(directory).rglob("*-server-*") if path.suffix != ".lock")
    return [json.loads(note.read_text())["pid"] for note in notes]


def _end(directory: str) -> None:
    for pid in _background(directory):
        os.kill(pid, signal.SIGTERM)
        while _background(directory):
            time.sleep(0.01)
    time.sleep(0.5)  # it closes its store


def _row(what: str, bar: Bar, bare: list[float], ours: list[float], *, memory: bool = False) -> Row:
    ratios = [own / other for own, other in zip(ours, bare, strict=True)]
    shown = [f"{median(side) / 1e6:.0f} MB" if memory else seconds(median(side)) for side in (bare, ours)]
    result = f"{median(ratios):.2f} × ({min(ratios):.2f}–{max(ratios):.2f})"
    return Row(what, shown[0], shown[1], result, str(bar), bar.met(median(ratios)))


def run(plan: Plan) -> list[Row]:
    ours = [sys.executable, "-m", "keephold", "mcp"]
    bare, cold, bridged = list[_Start](), list[_Start](), list[_Start]()
    for _ in range(plan.rounds):
        with tempfile.TemporaryDirectory() as directory:
            try:
                bare.append(_start([sys.executable, "-c", _BARE], directory))
                cold.append(_start(ours, directory, background=True))
                bridged.append(_start(ours, directory))
            finally:
                _end(directory)
    times, sizes = [each.seconds for each in bare], [each.memory for each in bare]
    start = "`keephold mcp`: start to the answer of `initialize`, against a bare `MCPServer`"
    return [
        _row(f"{start}, cold", COLD, times, [each.seconds for each in cold]),
        _row(f"{start}, bridged", BRIDGED, times, [each.seconds for each in bridged]),
        _row("… resident memory, cold", MEMORY, sizes, [each.memory for each in cold], memory=True),
        _row("… resident memory, bridged", MEMORY, sizes, [each.memory for each in bridged], memory=True),
    ]
