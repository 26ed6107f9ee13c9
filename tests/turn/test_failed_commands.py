"""What a reply shows of a command that failed or ran out of time, through a turn (F3, O1, O3)."""

import json
from pathlib import Path

import pytest

import keephold

CONFIG = """
[conversation.tools."*"]
source = "local"
run = "unattended"
[conversation.tools.fails]
command = { program = "seq 1000; echo why >&2; exit 3", shell = true }
output.max_lines = 40
[conversation.tools.slow]
command = { program = "echo began; exec sleep 60", shell = true }
timeout_secs = 3
[conversation.tools.withheld]
command = { program = "echo SECRET; exit 1", shell = true }
result = "skip"
"""


async def run(directory: Path, name: str, **more: object) -> list[keephold.Response]:
    path = directory / "keephold.toml"
    path.write_text(CONFIG)
    async with keephold.Runtime(config=path) as rt, rt.turn("main") as turn:
        first = await turn.run([keephold.ToolCall("1", name, dict(more))])
        return first + await turn.run([keephold.ToolCall("2", "read_output", {"call_id": "1"})])


async def test_F3_a_failure_shows_code_stderr_and_the_tail_of_the_output(tmp_path: Path) -> None:
    failed, read = await run(tmp_path, "fails")
    assert failed.is_error and failed.code == "command_failed"
    reason, output = failed.result.split("\n\nOutput:\n")
    assert reason == "The command ended with exit code 3.\nwhy"
    assert output.startswith("...964 lines truncated...\n\nRead the rest with read_output")
    assert output.endswith("\n999\n1000\n")
    assert "1\\n2\\n3" in read.result


async def test_O1_reason_and_output_share_the_caps(tmp_path: Path) -> None:
    failed, _ = await run(tmp_path, "fails")
    shown = failed.result.split("\n\n")
    reason, window = shown[0], shown[-1]
    assert reason.count("\n") + window.count("\n") + 3 <= 40
    assert failed.result.count("Read the rest") == 1


@pytest.mark.slow
async def test_F3_a_timeout_shows_what_was_printed_until_then(tmp_path: Path) -> None:
    late, _ = await run(tmp_path, "slow")
    assert late.code == "timeout"
    assert late.result == "Tool timed out after 3 s.\n\nOutput:\nbegan\n"


async def test_P1_a_withheld_result_cannot_be_read_by_another_way(tmp_path: Path) -> None:
    withheld, read = await run(tmp_path, "withheld")
    assert "Result delivery skipped" in withheld.result
    assert "SECRET" not in withheld.result + read.result


async def test_O3_of_many_small_results_nothing_is_cut(tmp_path: Path) -> None:
    """They are counted as raw bytes of output and of a message, and shown with a word between, as text."""
    path = tmp_path / "keephold.toml"
    path.write_text("""
    [conversation.tools."*"]
    source = "local"
    run = "unattended"
    spawn.actions = ["spawn", "fetch", "abort"]
    [conversation.tools.fails]
    command = { program = "echo boom; echo why >&2; exit 3", shell = true }
    [conversation.tools.binary]
    command = { program = "printf 'first\\\\n\\\\377\\\\376 second\\\\n'", shell = true }
    """)
    async with keephold.Runtime(config=path) as rt, rt.turn("main") as turn:
        tools = ["fails", "fails", "fails", "binary", "binary", "binary"]
        calls = [keephold.ToolCall(f"h{n}", name, {"action": "spawn", "id": f"h{n}"}) for n, name in enumerate(tools)]
        await turn.run(calls)
        (waited,) = await turn.run([keephold.ToolCall("w", "await", {"all": [call.id for call in calls]})])
    shown = {entry["id"]: entry["result"] for entry in json.loads(waited.result)["completed"]}
    failed = "The command ended with exit code 3.\n\nOutput:\nboom\nwhy\n"
    assert [shown[call.id] for call in calls] == [failed] * 3 + ["first\n\ufffd\ufffd second\n"] * 3
