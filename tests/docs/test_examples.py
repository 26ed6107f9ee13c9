"""The examples run, and the README shows what they print."""

import re
import sys
from functools import cache
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, blocks
from tests.docs.sessions import run

from keephold.config import load_config

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

ESSENTIAL = {
    "approval.py": [
        "first worker: step `build` runs",
        "kill -9",
        "second worker: the tool begins, attempt 2",
        "approver: Ada approves: accepted",
        "approver: Bob approves: already_resolved",
        "second worker: step `install` runs",
        '"result":"r-17 installed in production, approved by Ada"',
    ],
    "approval_webhook.py": [
        "agent: desk is running, parked: True",
        "webhook: Ada approves: 200 accepted",
        "webhook: Bob approves: 409 already_resolved",
        "webhook: Eve has altered the key: 404 unknown_or_revoked",
        'agent: desk is stopped: {"approved_by":"Ada"}',
    ],
    "conversation.py": [
        'await {"all": ["app", "docs"], "timeout_secs": 60}\n    → {"id":"app","state":"running"}\n',
        '{"completed":[{"id":"app","state":"stopped","result":"app: ok"},',
        '{"id":"docs","state":"stopped","result":"docs: ok"}],"pending":[]}\nThe app and the docs are built.\n',
        "(end_turn after 2 requests)\n",
    ],
    "editor_agent.py": [
        "agent: app: check package=app (pending)",
        "editor: asked whether app: check package=app may run: yes",
        "agent: The package \n  agent: has no problems.\n  editor: the turn has ended (end_turn), by turn_complete\n",
    ],
    "parallel_builds.py": [
        'agent: await {"all": ["app-0", "docs-0"]}\n    → {"completed": [{"id": "app-0", "state": "stopped", ',
        "user: Where should app go? staging",
        '"state": "stopped", "result": "app is on staging"}], "pending": []}',
    ],
    "raises.py": [
        "ConnectionError: the connection to the model broke\nNo agent runs:\n  Ada approves: accepted\n",
        'finds a batch of 3 calls\n  1: {"id":"app","state":',
        '2: {"approved_by":"Ada"}\n  3: {"completed":[{"id":"app","state":"stopped",',
        '"result":"compiling\\ncompiled\\n"}],"pending":[]}\n',
    ],
    "release.py": [
        "migrate asks: Drop the table old_users?",
        "tool: old_users kept\n\n[Automatic notifications.",
        "- info: `links` (check) stopped: links: all well",
        '{"completed":[{"id":"tests","state":"stopped","result":"tests: all well"}],"pending":[]}\n'
        "assistant: The tests are well, too.",
    ],
    "first_turn.py": [
        '{"id":"compile","state":"running"}',
        '{"completed":[{"id":"compile","state":"stopped","result":""},{"id":"lines","state":"stopped","result":"',
        '"pending":[{"id":"door","state":"running","waiting_for_input":true}],"needs_input":true}',
        '{"id":"door","state":"stopped","result":"Hello, the model!"}',
    ],
    "mcp_server.py": [
        "first client: bread is running",
        "first client: gives up on the rolls, and goes",
        "(kill -9)\n  next server: ",
        "second client: finds bread and call:",
        "second client: bread: 4 x loaf",
        ": 3 x roll",
    ],
    "survives_kill.py": [
        "first process: publish v1, attempt 1\n  (kill -9)\n",
        "second process: finds the workflow running, attempt 2",
        "second process: publish v1, attempt 2",
        "second process: completed: tag v1: done, build v1: done, publish v1: done",
    ],
    "terminal.py": [
        "  | +fire\n  | (1/1) Stage this hunk",
        'stage({"action": "apply", "id": "s", "input": "n"})',
        "  | +tea\n  | (1/1) Stage this hunk",
        "running, waiting_for_input",
        "stopped, exited",
        "staged: shopping.txt\n",
    ],
}
IN_README = ["terminal.py", "approval.py"]
"""Which example each `text` block of the README is of. In a block `…` stands for what it leaves out."""


@cache
def printed(name: str) -> str:
    """What an example prints, run once; `run` raises when it ends with another exit code than 0."""
    return run([sys.executable, "-W", "error", str(ROOT / "examples" / name)], ROOT)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_and_shows_the_essential(example: Path) -> None:
    assert example.name in ESSENTIAL, "say here what the example must show"
    assert [line for line in ESSENTIAL[example.name] if line not in printed(example.name)] == [], printed(example.name)


def test_a_step_that_was_recorded_before_the_kill_runs_once() -> None:
    assert printed("approval.py").count("step `build` runs") == 1
    assert printed("mcp_server.py").count("loaf 1 is in the oven") == 1
    assert printed("survives_kill.py").count("build v1, attempt") == 1


def test_the_readme_shows_what_the_examples_print() -> None:
    shown = [block.text for block in blocks(ROOT / "README.md") if block.language == "text"]
    for name, text in zip(IN_README, shown, strict=True):
        pattern = re.escape(_counted(text)).replace("…", ".*")
        assert re.search(pattern, _counted(printed(name))), f"{name} does not print\n{text}"


def test_the_quickstart_shows_what_its_example_prints() -> None:
    _, *shown = [block.text for block in blocks(ROOT / "docs" / "quickstart.md") if block.language == "text"]
    assert shown
    for text in shown:
        pattern = re.escape(_counted(text)).replace("…", ".*")
        for attempt in range(5):  # on a busy machine one build may overtake the other, and say more at once
            shows = printed if attempt == 0 else printed.__wrapped__
            if re.search(pattern, _counted(shows("parallel_builds.py"))):
                break
        else:
            pytest.fail(text)


def _counted(text: str) -> str:
    """Without white space, which the README breaks lines by, and with every number the same."""
    return re.sub(r"\d+", "1", re.sub(r"\s+", "", text))


@pytest.mark.parametrize("name", ["keephold.toml", "serve/keephold.toml"])
def test_the_configuration_of_the_examples_is_right(name: str) -> None:
    config = load_config(ROOT / "examples" / name)
    assert config.conversation.tools
    assert config.ignored_settings() == []
