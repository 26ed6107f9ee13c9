"""`apply` serves two purposes: data for a running tool, the answer to the question of a waiting one (C6)."""

from pathlib import Path

import pytest
from tests.scenarios.assistant import batch, call, error, one

import keephold
from keephold.testing import VirtualClock


@keephold.tool(actions=("spawn", "fetch", "apply", "abort"))
async def stage(call: keephold.Call) -> str:
    """Takes data, asks, takes data again: what `apply` means is decided by the tool's state alone."""
    first = await call.input()
    sure = await call.ask(keephold.Question(id="sure", text="Discard changes?", answer_type="Boolean"))
    last = await call.input()
    return f"{first} {sure} {last}"


async def test_C6_the_state_of_the_handle_routes_the_input(clock: VirtualClock) -> None:
    """The question's id is never sent: a handle has at most one open question, and knows which."""
    async with keephold.Runtime([stage], clock=clock) as rt, rt.turn("main") as turn:
        running = {"id": "h_1", "state": "running"}
        assert await one(turn, "stage", {"action": "spawn", "id": "h_1"}) == running
        waiting = await one(turn, "stage", {"action": "apply", "id": "h_1", "input": "y\n"})
        assert waiting == {
            "id": "h_1",
            "state": "waiting",
            "question": {"id": "sure", "text": "Discard changes?", "answer_type": "Boolean"},
        }
        assert await one(turn, "stage", {"action": "fetch", "id": "h_1"}) == waiting
        assert await one(turn, "stage", {"action": "apply", "id": "h_1", "input": True}) == running
        stopped = await one(turn, "stage", {"action": "apply", "id": "h_1", "input": {"n": 1}})
        assert stopped == {"id": "h_1", "state": "stopped", "result": "y\n True {'n': 1}"}


async def test_C6_an_answer_of_the_wrong_type_leaves_the_question_open(clock: VirtualClock) -> None:
    async with keephold.Runtime([stage], clock=clock) as rt, rt.turn("main") as turn:
        await one(turn, "stage", {"action": "spawn", "id": "h_1"})
        waiting = await one(turn, "stage", {"action": "apply", "id": "h_1", "input": "y"})
        told = await error(turn, "stage", {"action": "apply", "id": "h_1", "input": "maybe"})
        assert "`sure`" in told
        assert "true or false" in told
        assert await one(turn, "stage", {"action": "fetch", "id": "h_1"}) == waiting


# Says what it got, and how many bytes that was.
CONFIG = r"""
[conversation.tools."*"]
source = "local"
run = "unattended"

[conversation.tools.reader]
command = ["sh", "-c", "while read -r line; do printf '<%s>\n' \"$line\"; done; echo end"]
spawn = { stateful = true, stdin = true, settle_ms = 60000, settle_max_ms = 60000 }

[conversation.tools.writer]
command = ["sh", "-c", '''
    question='{"id":"overwrite","text":"Overwrite?","answer_type":"Boolean"}'
    printf '%s\n' '{"type":"waiting","content":"writing\n","question":'"$question}"
    read -r answer
    case "$answer" in
    *true*) printf '%s\n' '{"type":"stopped","result":{"Ok":"overwritten"}}' ;;
    *) printf '%s\n' '{"type":"stopped","result":{"Err":{"message":"kept","trace":[],"transient":false}}}' ;;
    esac
''']
wire = true
spawn = { stateful = true, settle_ms = 60000, settle_max_ms = 60000 }

[conversation.tools.settled]
command = ["sh", "-c", '''
    for question in first second; do
        printf '{"type":"needs_input","question":{"id":"%s","text":"Overwrite?","answer_type":"Boolean"}}\n' $question
        read -r answer
        sleep 0.3
    done
    printf '%s' "$answer"
''']
wire = true
questions.first.answer = true
questions.second.answer = false
spawn.stateful = true
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "keephold.toml"
    path.write_text(CONFIG)
    return path


async def test_C6_input_for_a_running_program_goes_to_its_stdin(config: Path) -> None:
    async with keephold.Runtime(config=config) as rt, rt.turn("main") as turn:
        await one(turn, "reader", {"action": "spawn", "id": "h"})
        for given, read in [("y\n", "<y>\n"), ("y", "<y>\n"), ({"k": [1]}, '<{"k":[1]}>\n'), (True, "<true>\n")]:
            answer = await one(turn, "reader", {"action": "apply", "id": "h", "input": given})
            assert answer == {"id": "h", "state": "running", "content": read}
        closed = await one(turn, "reader", {"action": "apply", "id": "h", "input": None})
        assert closed == {"id": "h", "state": "stopped", "result": "end\n"}
        assert "`h` is stopped" in await error(turn, "reader", {"action": "apply", "id": "h", "input": "y"})


@pytest.mark.parametrize(
    ("answer", "end"), [(True, {"result": "overwritten"}), (False, {"result": "kept", "is_error": True})]
)
async def test_Q3_the_assistant_answers_the_question_of_a_live_process(
    config: Path, answer: bool, end: dict[str, object]
) -> None:
    async with keephold.Runtime(config=config) as rt, rt.turn("main") as turn:
        waiting = await one(turn, "writer", {"action": "spawn", "id": "h_1"})
        assert waiting == {
            "id": "h_1",
            "state": "waiting",
            "content": "writing\n",
            "question": {"id": "overwrite", "text": "Overwrite?", "answer_type": "Boolean"},
        }
        stopped = await one(turn, "writer", {"action": "apply", "id": "h_1", "input": answer})
        assert stopped == {"id": "h_1", "state": "stopped", **end}


async def test_Q3_a_configured_answer_is_given_while_an_await_waits(config: Path) -> None:
    """The handle waits for nobody: it is asked about twice, answered twice, and awaited to its end."""
    async with keephold.Runtime(config=config) as rt, rt.turn("main") as turn:
        _, waited = await batch(
            turn, call("settled", {"action": "spawn", "id": "h_1"}), call("await", {"all": ["h_1"]})
        )
        told = '{"type":"answer","id":"second","answer":false}'
        assert waited == {"completed": [{"id": "h_1", "state": "stopped", "result": told}], "pending": []}
