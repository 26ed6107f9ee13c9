"""`keephold attach`: a person in a terminal of their own takes over the terminal of an agent, and hands it back."""

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.e2e.agent import Agent
from tests.e2e.driver import until
from tests.e2e.panes import Pane
from tests.programs import needs


@pytest.fixture(scope="module", autouse=True)
def _programs() -> None:
    needs("tmux", "less", "bash")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with Agent(tmp_path) as agent:
        agent.spawn("shell", "sh")
        yield agent


@pytest.fixture
def pane(agent: Agent) -> Iterator[Pane]:
    with Pane(agent.directory, agent.environment) as pane:
        yield pane


def attach(pane: Pane, *options: str) -> None:
    """Start the command, and wait until it is there."""
    pane.type(" ".join((sys.executable, "-m", "keephold", "attach", "sh", *options)))
    pane.until("detaches")


def client_of(agent: Agent) -> psutil.Process:
    """The command that is attached."""
    (found,) = (
        process
        for process in psutil.process_iter(["cmdline", "environ"])
        if (process.info["cmdline"] or [])[1:4] == ["-m", "keephold", "attach"]
        and (process.info["environ"] or {}).get("KEEPHOLD_STORE") == agent.environment["KEEPHOLD_STORE"]
    )
    return found


def answer(agent: Agent, text: str) -> str:
    """What the shell prints when the assistant types a line."""
    shown, code = agent.apply("shell", "sh", f"{text}\r")
    assert code is None, shown
    return str(json.loads(shown)["content"])


def handed_back(agent: Agent) -> None:
    """Until the assistant may type again."""
    until(lambda: agent.apply("shell", "sh", "\r")[1] != "driven_by_person")


def test_a_person_sees_the_screen_and_types_and_detaches(agent: Agent, pane: Pane) -> None:
    answer(agent, "echo from the agent: $((6 * 7))")
    attach(pane)
    pane.until("from the agent: 42")
    assert "attached; Ctrl-] detaches" in pane.screen
    pane.type("echo from the person: $((6 * 9))")
    pane.until("from the person: 54")
    pane.press("C-]")
    pane.until("detached from sh, which keeps running")
    pane.back()
    pane.type("stty -a | grep -o ' echo ' && echo exit code $?")
    pane.until("exit code 0")
    assert "again: 56" in answer(agent, "echo again: $((7 * 8))")


def test_while_a_person_drives_the_assistant_and_other_people_do_not(agent: Agent, pane: Pane) -> None:
    attach(pane)
    refused, code = agent.apply("shell", "sh", "echo me\r")
    assert code == "driven_by_person", refused
    ((shown, _),) = agent.run(("shell", {"action": "fetch", "id": "sh"}))
    assert json.loads(shown)["driver"] == "person"
    with Pane(agent.directory, agent.environment, cols=100) as other:
        other.type(f"{sys.executable} -m keephold attach sh; echo exit code $?")
        other.until("exit code 2")
        assert "somebody has been driving terminal `sh` since 20" in other.screen
        attach(other, "--read-only")
        pane.type("echo to be $((1 + 1)) seen")
        other.until("to be 2 seen")
        other.type("echo not to be $((1 + 1)) typed")
        other.press("C-]")
        other.until("detached from sh")
    assert "typed" not in pane.screen
    pane.press("C-]")
    pane.until("detached from sh")
    handed_back(agent)
    assert "me: 4" in answer(agent, "echo me: $((2 + 2))")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_client_that_is_ended_hands_the_terminal_back(agent: Agent, pane: Pane, number: signal.Signals) -> None:
    attach(pane)
    client = client_of(agent)
    assert agent.apply("shell", "sh", "\r")[1] == "driven_by_person"
    client.send_signal(number)
    handed_back(agent)
    assert "mine: 9" in answer(agent, "echo mine: $((3 * 3))")
    if number == signal.SIGTERM:
        pane.until("detached from sh")
        pane.back()
        pane.type("stty -a | grep -o ' echo ' && echo exit code $?")
        pane.until("exit code 0")


def test_the_terminal_takes_the_persons_size_and_its_own_afterwards(agent: Agent, pane: Pane) -> None:
    attach(pane)
    pane.type("stty size")
    pane.until("15 60")
    pane.resize(12, 50)
    pane.until("$")
    pane.type("clear; stty size")
    pane.until("12 50")
    pane.press("C-]")
    pane.until("detached from sh")
    assert "20 70" in answer(agent, "stty size")


def test_when_the_program_ends_the_person_is_told_how(agent: Agent, pane: Pane) -> None:
    attach(pane)
    pane.type("exit 3")
    pane.until("exit code 3")
    pane.back()
    pane.type("echo it was $?")
    pane.until("it was 1")


def test_the_alternate_screen_is_shown_and_left(agent: Agent, pane: Pane) -> None:
    agent.apply("shell", "sh", "seq 100 | less\r")
    attach(pane, "--detach-key", "C-g")
    pane.until("\n14")
    pane.press("G")
    pane.until("\n100")
    pane.press("C-g")
    pane.until("detached from sh")
    assert "\n100" not in pane.screen
    pane.back()


def test_a_person_without_a_terminal_cannot_attach(agent: Agent) -> None:
    said = agent.keephold("attach", "sh")
    assert said.code == 2
    assert "`keephold logs -f` needs none" in said.err


def test_attach_is_for_terminals(agent: Agent, pane: Pane) -> None:
    agent.spawn("talk", "t")
    pane.type(f"{sys.executable} -m keephold attach t; echo exit code $?")
    pane.until("exit code 2")
    assert "is not a terminal" in pane.screen
