"""One-shot calls: spawned, waited for and answered without the assistant seeing any of it (C1, C8)."""

from pathlib import Path

import pytest
from tests.scenarios.assistant import error, one, text

import keephold

# `modify` asks before it touches a file with uncommitted changes, and again if there is a conflict. It notes each
# execution: an answer reaches it by being run again with all answers so far.
CONFIG = """
[conversation.tools."*"]
source = "local"
run = "unattended"

[conversation.tools.cargo_check]
command = ["printf", "ok, 0 warnings"]
parameters.package.type = "string"
spawn.stateful = true

[conversation.tools.fs_modify_file]
command = ["sh", "./modify", "{{ tool.arguments.path }}"]
parameters.path = { type = "string", required = true }

[conversation.tools.curious]
command = ["sh", "./modify", "x"]

[conversation.tools.plain]
command = ["printf", "%s %s", "{{ tool.arguments.action }}", "{{ tool.arguments.id }}"]
parameters.action.type = "string"
parameters.id.type = "string"
"""
ANSWERS = """
[conversation.tools.fs_modify_file.questions]
dirty.answer = true
conflict.answer = "theirs"
"""
MODIFY = """
printf '%s\\n' "$KEEPHOLD_CALL" | sed 's/.*"answers":\\([^}]*}\\).*/\\1/' >> executions
case "$KEEPHOLD_CALL" in
*'"dirty":true'*'"conflict":"theirs"'*)
    printf '{"type":"success","content":"%s modified"}' "$1" ;;
*'"dirty":true'*)
    echo '{"type":"needs_input","question":{"id":"conflict","text":"Which side?",
           "answer_type":{"Select":{"options":["ours","theirs"]}}}}' ;;
*)
    echo '{"type":"needs_input","question":{"id":"dirty","text":"Modify it anyway?","answer_type":"Boolean"}}' ;;
esac
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "modify").write_text(MODIFY)
    path = tmp_path / "keephold.toml"
    path.write_text(CONFIG + ANSWERS)
    return path


async def test_C8_a_call_without_action_gives_the_result_and_leaves_no_handle(config: Path) -> None:
    async with keephold.Runtime(config=config) as rt, rt.turn("main") as turn:
        assert await text(turn, "cargo_check", {"package": "jp_cli"}) == "ok, 0 warnings"
        assert await rt.handles(conversation="main") == []
        assert await error(turn, "await", {"all": ["call:toolu_1"]}) == "Handle `call:toolu_1` not found"


async def test_C1_the_invocation_decides_not_the_tool(config: Path) -> None:
    """The same tool, with `action` and without."""
    async with keephold.Runtime(config=config) as rt, rt.turn("main") as turn:
        spawned = await one(turn, "cargo_check", {"action": "spawn", "id": "h_1", "package": "jp_cli"})
        assert spawned == {"id": "h_1", "state": "running"}
        assert await text(turn, "cargo_check", {"package": "jp_cli"}) == "ok, 0 warnings"
        assert [handle.id for handle in await rt.handles(conversation="main")] == ["h_1"]


async def test_C1_without_declared_actions_action_and_id_are_ordinary_arguments(config: Path) -> None:
    async with keephold.Runtime(config=config) as rt, rt.turn("main") as turn:
        assert await text(turn, "plain", {"action": "spawn", "id": "h_1"}) == "spawn h_1"
        assert await rt.handles(conversation="main") == []


async def test_C8_a_tool_that_needs_input_is_run_again_with_all_answers_so_far(config: Path) -> None:
    async with keephold.Runtime(config=config) as rt, rt.turn("main") as turn:
        assert await text(turn, "fs_modify_file", {"path": "main.rs"}) == "main.rs modified"
        assert (config.parent / "executions").read_text().splitlines() == [
            "{}",
            '{"dirty":true}',
            '{"dirty":true,"conflict":"theirs"}',
        ]
        assert await rt.handles(conversation="main") == []  # it was never registered as stateful


async def test_Q2_a_question_that_nobody_may_answer_is_a_clear_error(config: Path) -> None:
    async with keephold.Runtime(config=config) as rt, rt.turn("main") as turn:
        told = await error(turn, "curious", {})
        assert "Modify it anyway?" in told
        assert "nobody is there to answer" in told
        assert "[conversation.tools.curious.questions.dirty]" in told
        assert (config.parent / "executions").read_text().splitlines() == ["{}"]
