"""The TypeScript SDK of ACP: a client made with it drives `keephold acp` (X1, X2, X4), and an agent is checked (X5).

One agent of ours plays all of the client's scenes, and the tests look at what came of each.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.acp.editor import config
from tests.interop.acp_turns import SIGNAL, Message, ended, prompts, statuses, text, updates
from tests.interop.foreign import HERE, NODE, NPM_ROOT, ROOT, need, script, told

from keephold.acp.check import Settings, run

Report = dict[str, Any]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Report]:
    """What `acp_client.mjs` has seen."""
    directory = tmp_path_factory.mktemp("typescript")
    agent = [sys.executable, "-m", "keephold", "acp", "--config", str(config(directory))]
    agent += ["--store", f"sqlite:///{directory}/store.db"]
    run = script("acp_client.mjs", str(directory / "flag"), *agent, environment={"PYTHONPATH": str(ROOT)})
    yield {**json.loads(told(run)), "stderr": run.stderr}


def test_X1_everything_is_taken_by_the_client_and_the_agent_ends_well(report: Report) -> None:
    (line,) = report["stderr"].splitlines()
    assert line.startswith("using ") and line.endswith("keephold.toml")
    assert report["code"] == 0
    assert report["agentCapabilities"]["loadSession"] is True
    assert report["agentCapabilities"]["_meta"] == {"keephold/turnComplete": {}}


def test_X2_the_end_of_every_turn_is_told_once_and_last(report: Report) -> None:
    wire: list[Message] = report["wire"]
    reasons = [ended(wire, prompt) for prompt in prompts(wire)]
    assert reasons == ["end_turn"] * 5 + ["cancelled"] * 4 + ["end_turn"]
    assert len([each for each in wire if each.get("method") == SIGNAL]) == len(reasons)


def test_X1_a_turn_streams(report: Report) -> None:
    first = updates(report["wire"], prompts(report["wire"])[0])
    kinds = ["session_info_update", "agent_thought_chunk", "agent_message_chunk", "agent_message_chunk"]
    assert [each["sessionUpdate"] for each in first] == kinds
    assert text(first) == "a b"


def test_X1_permission_is_given_and_refused(report: Report) -> None:
    assert report["permissions"] == ["end_turn", "end_turn"]
    given, refused = (updates(report["wire"], prompt) for prompt in prompts(report["wire"])[1:3])
    assert statuses(given, "1") == ["pending", "in_progress", "completed"]
    assert statuses(refused, "1") == ["pending", "failed"]


def test_X1_a_session_that_is_loaded_is_shown_again(report: Report) -> None:
    shown = report["loaded"]
    kinds = [each["sessionUpdate"] for each in shown]
    said = [each["content"]["text"] for each in shown if each["sessionUpdate"] == "user_message_chunk"]
    assert said == [each["params"]["prompt"][0]["text"] for each in prompts(report["wire"])[:3]]
    assert kinds[:3] == ["user_message_chunk", "agent_thought_chunk", "agent_message_chunk"]
    assert text(shown) == "a bdonedone"
    assert statuses(shown, "1") == ["pending", "completed", "pending", "failed"]  # a call in each of two turns


def test_X2_the_answer_to_a_prompt_does_not_wait_for_the_clients_handlers(report: Report) -> None:
    """So a client that reads the answer as the end of the turn has not handled it: here, not one update."""
    assert report["race"]["begun"] > 0
    assert report["race"]["handled"] == 0


def test_X2_a_client_that_waits_for_the_signal_has_handled_everything_in_order(report: Report) -> None:
    handled = report["slowHandlers"]
    assert handled == updates(report["wire"], prompts(report["wire"])[4])
    assert statuses(handled, "1") == ["pending", "in_progress", "completed"]
    assert text(handled) == "a b c done"


def test_X4_a_tool_a_stream_a_request_and_a_question_are_cancelled(report: Report) -> None:
    assert report["cancelled"] == ["cancelled"] * 4
    tool, stream, request, question = (updates(report["wire"], prompt) for prompt in prompts(report["wire"])[5:9])
    assert statuses(tool, "1") == ["pending", "in_progress", "failed"]
    assert text(stream) == text(request) == "a"
    assert statuses(question, "1") == ["pending", "failed"]


def test_X2_a_handle_that_ends_between_turns_is_told_of_at_once(report: Report) -> None:
    update, wire = report["background"], report["wire"]
    assert update["_meta"] == {"keephold/background": True}
    assert update["content"][-1]["content"]["text"].endswith("it is there")
    spawned = updates(wire, prompts(wire)[-1])
    assert statuses(spawned, "1") == ["pending", "in_progress"]
    assert wire[-1]["params"]["update"] == update


async def test_X5_an_agent_made_with_it_passes_every_check_of_what_it_offers(tmp_path: Path) -> None:
    need(NPM_ROOT)
    (tmp_path / "node_modules").symlink_to(NPM_ROOT / "node_modules")  # packages are looked for next to the program
    program = str(shutil.copy(HERE / "acp_agent.mjs", tmp_path))
    prompts = {"prompt": "a b c", "permission_prompt": "may I", "slow_prompt": "slowly"}
    report = await run(Settings((str(NODE), program, "--signal"), 20.0, (), **prompts))
    assert [(each.name, each.why) for each in report.checks if each.outcome == "failed"] == []
    skipped = {each.name for each in report.checks if each.outcome == "skipped"}
    assert skipped == {"load-session", "resume-session", "list-sessions", "close-session"}
