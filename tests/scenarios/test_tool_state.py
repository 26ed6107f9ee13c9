"""What a tool process prints to tell its state: the present forms, and the older ones that map to them (S7, C3)."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.scenarios.assistant import call, one, text

import keephold

CONFIG = """
[conversation.tools."*"]
source = "local"
run = "unattended"
parameters.form = { type = "string", required = true }

[conversation.tools.tool]
command = ["printf", "%s", "{{ tool.arguments.form }}"]

[conversation.tools.live]
command = ["sh", "-c", "printf '%s\\n' {{ tool.arguments.form }}; read -r answer; printf '%s' \\"$answer\\""]
wire = true
# Generous: each form is answered when it is heard, or when the process has ended, however busy the machine.
spawn = { stateful = true, settle_ms = 60000, settle_max_ms = 60000 }
"""

QUESTION = {"id": "q", "text": "Overwrite?", "answer_type": "Boolean"}
ERROR = {"message": "no network", "trace": ["dns", "socket"], "transient": True}

OK = [
    {"type": "success", "content": "done"},
    {"type": "stopped", "result": {"Ok": "done"}},
    {"type": "stopped", "result": {"ok": "done"}},
    {"type": "stopped", "content": "done", "error": None},
]
ERR = [
    {"type": "error", **ERROR},
    {"type": "stopped", "result": {"Err": ERROR}},
    {"type": "stopped", "result": {"err": ERROR}},
    {"type": "stopped", "content": "", "error": ERROR},
]
ASKS = [
    {"type": "needs_input", "question": QUESTION},
    {"type": "waiting", "content": "", "question": QUESTION},
    {"type": "waiting", "content": None, "question": QUESTION},
    {"type": "waiting", "question": QUESTION},
]
RUNS = [
    {"type": "running", "content": "listening"},
    {"type": "spawned", "content": "listening"},
]


def named(form: dict[str, Any]) -> str:
    return f"{form['type']}:{','.join([*form, *form.get('result', ())])}"


@asynccontextmanager
async def conversation(directory: Path) -> AsyncIterator[keephold.Turn]:
    config = directory / "keephold.toml"
    config.write_text(CONFIG)
    async with keephold.Runtime(config=config) as rt, rt.turn("main") as turn:
        yield turn


@pytest.mark.parametrize("form", OK, ids=named)
async def test_S7_success_is_stopped_with_the_content(tmp_path: Path, form: dict[str, Any]) -> None:
    async with conversation(tmp_path) as turn:
        assert await text(turn, "tool", {"form": json.dumps(form)}) == "done"
        stopped = await one(turn, "live", {"action": "spawn", "id": "h", "form": json.dumps(form)})
        assert stopped == {"id": "h", "state": "stopped", "result": "done"}


@pytest.mark.parametrize("form", ERR, ids=named)
async def test_S7_error_is_stopped_with_message_trace_and_transient(tmp_path: Path, form: dict[str, Any]) -> None:
    async with conversation(tmp_path) as turn:
        (response,) = await turn.run([call("tool", {"form": json.dumps(form)})])
        assert (response.result, response.is_error) == ("no network", True)
        stopped = await one(turn, "live", {"action": "spawn", "id": "h", "form": json.dumps(form)})
        assert stopped == {
            "id": "h",
            "state": "stopped",
            "result": "no network",
            "is_error": True,
            "transient": True,
            "trace": ["dns", "socket"],
        }


@pytest.mark.parametrize("form", ASKS, ids=named)
async def test_S7_needs_input_is_waiting_with_the_question(tmp_path: Path, form: dict[str, Any]) -> None:
    async with conversation(tmp_path) as turn:
        waiting = await one(turn, "live", {"action": "spawn", "id": "h", "form": json.dumps(form)})
        assert waiting == {"id": "h", "state": "waiting", "question": QUESTION}
        answered = await one(turn, "live", {"action": "apply", "id": "h", "input": True})
        assert answered["state"] == "stopped"
        assert json.loads(answered["result"]) == {"type": "answer", "id": "q", "answer": True}


@pytest.mark.parametrize("form", RUNS, ids=named)
async def test_S7_running_shows_its_content_from_the_first_reply_on(tmp_path: Path, form: dict[str, Any]) -> None:
    async with conversation(tmp_path) as turn:
        assert await text(turn, "tool", {"form": json.dumps(form)}) == "listening"  # it has exited: stopped, ok
        running = await one(turn, "live", {"action": "spawn", "id": "h", "form": json.dumps(form)})
        assert running == {"id": "h", "state": "running", "content": "listening"}


@pytest.mark.parametrize(
    "output",
    [
        '{"type":"success","content":"done","extra":1}',
        '{"type":"finished"}',
        '{"content":"done"}',
        'log line\n{"type":"success","content":"done"}',
        '["success"]',
    ],
)
async def test_S7_anything_else_is_text(tmp_path: Path, output: str) -> None:
    async with conversation(tmp_path) as turn:
        assert await text(turn, "tool", {"form": output}) == output
