"""`keephold --help` as a process, from its start to its end, p50. Against `python -c pass` of the same interpreter.

`keephold ps` beside a trusted `keephold.toml` that names the store. Against the same command with a search that reads
the file without checking whether the user trusts it.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter

from bench.rounds import Bar, Plan, Row, measure

_CALLED = "import sys; sys.argv = ['keephold', 'ps']; from keephold.cli import main; main()"
_UNCHECKED = f"""
from pathlib import Path
from keephold.config import trust

def find_usable(start):
    path = trust.find_config(start)
    return trust.Found(path, path.read_bytes(), "", None, True), None

trust.find_usable = find_usable
{_CALLED}
"""
_CHECKED = f"from keephold.config import trust\n{_CALLED}"


def _p50(command: list[str], length: float, *, directory: str = ".", env: dict[str, str] | None = None) -> float:
    times, until = [], perf_counter() + length
    while (began := perf_counter()) < until:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True, cwd=directory, env=env)
        times.append(perf_counter() - began)
    return statistics.median(times)


def run(plan: Plan) -> list[Row]:
    bare = [sys.executable, "-c", "pass"]
    ours = [str(Path(sys.executable).with_name("keephold")), "--help"]
    return [
        measure("`keephold --help`, against `python -c pass`", plan, Bar(8), partial(_p50, bare), partial(_p50, ours)),
        _trust(plan),
    ]


def _trust(plan: Plan) -> Row:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "keephold.toml").write_text('[store]\nurl = "sqlite:///work.db"\n')
        env = {**os.environ, "XDG_STATE_HOME": f"{directory}/state"}
        for words in (["trust"], ["turn"]):  # the latter makes the store
            _p50([sys.executable, "-m", "keephold", *words], 0.001, directory=directory, env=env)
        unchecked, checked = (
            partial(_p50, [sys.executable, "-c", code], directory=directory, env=env) for code in (_UNCHECKED, _CHECKED)
        )
        return measure("`keephold ps` with the check of trust, against without", plan, Bar(1.05), unchecked, checked)
