"""The examples run, and the README shows what they print."""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import psutil
import pytest
from tests.docs.pages import ROOT, blocks
from tests.docs.sessions import run
from tests.patience import PATIENCE

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
        "the page is at http://127.0.0.1:",
        "other site: yacht: ok, 403\n",
        'service: a desk, 420 €: ok, 200 {"status":"accepted"}\n',
        'service: a yacht, 9,000,000 €: err, 200 {"status":"accepted"}\n',
        '{"id":"desk","state":"stopped","result":"{\\"approved\\":true}"},'
        '{"id":"yacht","state":"stopped","result":"The approver said no.","is_error":true}',
    ],
    "coding_agent.py": [
        '{"id":"db","state":"running","content":"sql> ","yielded_because":"waiting_for_input"}\n'
        '{"completed":[{"id":"build","state":"stopped","result":"The command ended with exit code 1.',
        "SyntaxError: invalid syntax",
        "tool: report.py changed\n",
        "RETURNING text\\n('buy milk',)\\nsql> \"",
        '{"completed":[{"id":"again","state":"stopped","result":""}],'
        '"pending":[{"id":"web","state":"running","ready":true}]}\n',
        "tool: buy milk\nmodel: The project builds and runs, and its server shows: buy milk\n",
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
    "three_agents.py": [
        "dashboard: http://127.0.0.1:",
        "person: coder, release: {'decision': 'approve'}\n",
        "person: researcher, ask_user: {'decision': 'answer', 'value': '250'}\n",
        "authority: accepted\n",
        "coder: 1.4 is published.\n  red (tests), attempt 1: test_cart failed: expected 3 items, got 2\n"
        "  green (tests), attempt 1: ok\n",
        "researcher: The limit is 250.\n  limits (read_page), attempt 2: ok\n  archive (read_page), attempt 3: https",
        "operations: The certificate is there. The backup is not.\n  cert (certificate), attempt 1: ok\n"
        "  nightly (backup), attempt 1: Aborted by the assistant.\n",
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


@pytest.mark.parametrize("name", ["approval_webhook.py", "three_agents.py"])
def test_an_example_that_is_terminated_takes_its_server_with_it(name: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / name), "--me"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as example:
        assert example.stdout is not None
        assert "http://127.0.0.1:" in example.stdout.readline()
        (server,) = psutil.Process(example.pid).children()
        example.terminate()
        example.wait(PATIENCE)
        try:
            server.wait(0)
        except psutil.TimeoutExpired:
            server.kill()
            pytest.fail("the server was left")


@pytest.mark.parametrize("name", ["approval_webhook.py", "three_agents.py"])
def test_an_example_whose_server_does_not_start_shows_why_and_ends(name: str, tmp_path: Path) -> None:
    """As after `pip install .`, without what the server needs."""
    (tmp_path / "mcp.py").write_text("raise ModuleNotFoundError('No module named mcp', name='mcp')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(ROOT / "examples" / name)]
    example = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert example.returncode == 1
    assert example.stdout == ""
    assert example.stderr.endswith("No module named mcp\nthe server has ended\n")


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
