"""`keephold wait` for a server that another process runs: until it prints a line, until it is ready (A9, L1)."""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.e2e.place import Place
from tests.turn.calls import spawn

import keephold
from keephold import Runtime

SERVER = "echo starting; read go < go; echo 'listening on :80'; exec sleep 600"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(tmp_path, stack)


async def test_A9_wait_for_a_line_and_for_readiness_from_another_process(place: Place, tmp_path: Path) -> None:
    script = ["sh", "-c", SERVER]
    dev = keephold.command(script, name="dev", cwd=str(tmp_path), ready="^listening", actions=("spawn", "abort"))
    os.mkfifo(tmp_path / "go")
    async with Runtime([dev], store=f"sqlite:///{tmp_path}/work.db") as rt, rt.turn("main") as turn:
        await turn.run([spawn("dev", "d")])
        first = await asyncio.to_thread(place.keephold, "wait", "--output", "d=^start", "--timeout", "60")
        assert (first.code, first.out) == (0, "d: running: starting\n"), first
        look = await asyncio.to_thread(place.keephold, "wait", "--ready", "d", "--timeout", "0")
        assert (look.code, look.out) == (124, "d: running\n"), look
        waiting = place.start("wait", "--ready", "d", "--output", "d=listening on (.*)", "--json")
        await asyncio.to_thread((tmp_path / "go").write_text, "go\n")
        out, _ = await asyncio.to_thread(waiting.communicate)
        (entry,) = json.loads(out)["pending"]
        assert (waiting.returncode, entry["ready"], entry["matched"]) == (0, True, "listening on :80")
        assert "running, ready" in (await asyncio.to_thread(place.keephold, "ps")).out


def test_L3_a_wait_for_nothing_and_a_wrong_condition_are_refused(place: Place) -> None:
    assert "Name a handle" in place.keephold("wait").err
    assert "is not ID=REGEX" in place.keephold("wait", "--output", "d").err
