"""SIGKILL to `keephold turn` while its tools fork, move to new sessions and ignore SIGTERM (R2).

Each time the runtime dies at a random moment, from its first child on until all are up. Remaining processes are
found not by keephold's marks but by a token in the environment, which every process inherits. Within a second, only the
guard may have that token; it looks a few more times before it exits, too.
"""

import contextlib
import json
import os
import random
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from keephold.tools import marks

TOKEN = "KEEPHOLD_KILLED"
LIMIT, GUARD_LIMIT = 1.0, 10.0
"""Seconds in which nothing that a tool started may be left, and nothing at all."""
LOOKS = 3
"""Looks in a row that must find nothing: one that is just changing its program has no environment for a moment."""
ALL = 19
"""Processes that there are when every tool has come up: two families of eight, three of a relay, less one between two
of its legs, and the guard."""

_STUBBORN = "trap '' TERM HUP INT; while :; do sleep 30; done"
_QUIET = "</dev/null >/dev/null 2>&1"
_FAMILY = f"""
setsid sh -c "{_STUBBORN}" {_QUIET} &
setsid setsid sh -c "{_STUBBORN}" {_QUIET} &
({_STUBBORN}) &
{_STUBBORN}
"""
_RELAY = f'sleep 0.01; setsid sh -c "$0" "$0" {_QUIET} &'  # forks its successor in a new session, and is gone
CONFIG = f"""
[conversation.tools."*"]
source = "local"
run = "unattended"
spawn = {{ stateful = true }}

[conversation.tools.family]
command = ["sh", "-c", {json.dumps(_FAMILY)}]

[conversation.tools.relay]
command = ["sh", "-c", {json.dumps(f'setsid sh -c "$0" "$0" {_QUIET} & {_STUBBORN}')}, {json.dumps(_RELAY)}]
"""
_CALLS = [
    {"id": id, "name": name, "arguments": {"action": "spawn", "id": id}}
    for id, name in (("a", "family"), ("b", "family"), ("c", "relay"))
]


@dataclass
class Report:
    """The result of all rounds."""

    seed: int
    seconds: list[float] = field(default_factory=list)
    """From each kill to the first look that found nothing but the guard."""
    guard_seconds: list[float] = field(default_factory=list)
    """From each kill to the first look that found nothing."""
    processes: list[int] = field(default_factory=list)
    """How many the runtime left behind each time."""
    left: list[str] = field(default_factory=list)
    """The processes that still existed after a second."""

    def __str__(self) -> str:
        had = self.processes
        told = (
            f"{len(had)} kills with seed {self.seed}, {statistics.median(had):g} processes left by the runtime "
            f"({min(had)}–{max(had)}): all gone after {_spread(self.seconds)}, the guard after "
            f"{_spread(self.guard_seconds)}; {len(self.left)} times not within {LIMIT:g} s"
        )
        return "\n".join([told, *self.left])


def _spread(times: list[float]) -> str:
    shown = [f"{1000 * value:.0f}" for value in (statistics.median(times), min(times), max(times))]
    return f"{shown[0]} ms ({shown[1]}–{shown[2]})"


def run(count: int, seed: int) -> Report:
    """Kill this many runtimes, one after the other."""
    report, chance = Report(seed), random.Random(seed)
    token = f"{os.getpid()}-{secrets.token_hex(8)}"
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "keephold.toml"
        config.write_text(CONFIG)
        for number in range(count):
            _kill_one(config, f"{token}-{number}", chance, report)
    if late := _bearers(token):  # one that no look had found
        report.left.append(f"at the end: {_named(late)}")
        _end(late)
    return report


def _kill_one(config: Path, token: str, chance: random.Random, report: Report) -> None:
    command = [str(Path(sys.executable).with_name("keephold")), "turn", "--config", str(config)]
    command += ["--store", f"sqlite:///{config.with_name('store.db')}"]
    runtime = subprocess.Popen(
        command, env={**os.environ, TOKEN: token}, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert runtime.stdin is not None
    with runtime:
        runtime.stdin.write(json.dumps({"calls": _CALLS}) + "\n")
        runtime.stdin.flush()
        bearers = _come_up(runtime, token, chance.randint(1, ALL))
        time.sleep(chance.uniform(0, 0.01))
        runtime.kill()
        killed = time.monotonic()
    report.processes.append(len(bearers) - 1)
    _watch(token, killed, report)


def _come_up(runtime: subprocess.Popen[str], token: str, count: int) -> list[int]:
    """Wait until this many processes exist besides the runtime."""
    limit = time.monotonic() + 30
    while len(bearers := _bearers(token)) <= count:
        if runtime.poll() is not None:
            raise RuntimeError(f"`keephold turn` ended with {runtime.returncode} before it was killed")
        if time.monotonic() > limit:
            raise RuntimeError(f"its tools started {len(bearers) - 1} processes, not {count}: {_named(bearers)}")
    return bearers


def _watch(token: str, killed: float, report: Report) -> None:
    """Until all are gone, or should be; what then is left is ended here."""
    tools_gone = all_gone = 0.0  # when the first of the latest looks that found none began
    looks = 0
    while looks < LOOKS:
        passed = time.monotonic() - killed
        bearers = _bearers(token)
        tools = [pid for pid in bearers if not _is_guard(pid)]
        if (tools and passed > LIMIT) or (bearers and passed > GUARD_LIMIT):
            report.left.append(f"kill {len(report.processes)}, after {passed:.2f} s: {_named(bearers)}")
            _end(bearers)
            tools_gone, all_gone = tools_gone or passed, passed
            break
        tools_gone = 0.0 if tools else tools_gone or passed
        all_gone = 0.0 if bearers else all_gone or passed
        looks = 0 if bearers else looks + 1
        time.sleep(0.002)
    report.seconds.append(tools_gone)
    report.guard_seconds.append(all_gone)


def _is_guard(pid: int) -> bool:
    return marks.__file__ in _command(pid)


def _bearers(token: str) -> list[int]:
    """Processes with the token, or one that begins with it and a dash, in their environment. Zombies have none."""
    wanted = f"{TOKEN}={token}".encode()
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                variables = Path(entry.path, "environ").read_bytes().split(b"\0")
                if any(each == wanted or each.startswith(wanted + b"-") for each in variables):
                    found.append(int(entry.name))
    return found


def _named(pids: list[int]) -> str:
    return ", ".join(f"{pid} ({_command(pid)[:80]})" for pid in pids)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "gone meanwhile"


def _end(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
