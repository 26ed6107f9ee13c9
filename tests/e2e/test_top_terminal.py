"""`keephold top` as a program: in a real terminal of 80 × 24, with a real agent beside it, and without a terminal."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.e2e.agent import Agent
from tests.e2e.panes import Pane
from tests.programs import needs

SEQUENCE = re.compile(r"\x1b\[([0-9;]*)m")
GREYS = {0, 7, 8, 15, 16, 59, 102, 145, 188, 231, *range(232, 256)}
"""Of the 256 colours."""


@pytest.fixture(scope="module", autouse=True)
def _programs() -> None:
    needs("tmux", "bash")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with Agent(tmp_path) as agent:
        yield agent


@contextmanager
def top(agent: Agent, **environment: str) -> Iterator[Pane]:
    """A person who watches."""
    with Pane(
        agent.directory, {**agent.environment, "TERM": "xterm-256color", **environment}, rows=24, cols=80
    ) as pane:
        pane.type(f"{sys.executable} -W error -m keephold top; echo code $?")
        pane.until("urgent first")
        yield pane
        pane.press("q")
        pane.until("code 0")
        pane.back()


def lines(pane: Pane) -> list[str]:
    return [line for line in pane.screen.splitlines() if line.strip()]


def test_L_a_person_watches_answers_and_leaves(agent: Agent) -> None:
    agent.spawn("talk", "chatty")
    agent.spawn("choose", "paint")
    with top(agent) as pane:
        pane.until("? Which colour?")
        pane.until("hello")
        head, first, second = lines(pane)[1:4]
        assert head.split() == ["STATE", "ID", "TOOL", "CONVERSATION", "TIME", "LAST"]
        assert first.split()[:4] == ["waiting", "paint", "choose", "main"]
        assert second.split()[:4] == ["running", "chatty", "talk", "main"]
        assert "q Quit" in lines(pane)[-1]
        pane.press("Home")
        pane.press("r")
        pane.until("choose paint asks:")
        pane.until("Enter: choose")  # it listens
        pane.press("Down")
        pane.press("Enter")
        pane.until("answered paint")
        pane.until("stopped, ok")
    assert agent.keephold("show", "paint", "--json").json["outcome"]["value"] == "painted green"


def test_Q_a_secret_is_never_on_the_screen(agent: Agent) -> None:
    agent.spawn("log_in", "door")
    with top(agent) as pane:
        pane.until("? Password:")
        pane.press("r")
        pane.until("log_in door asks:")
        pane.until("Enter: send")
        pane._run("send-keys", "-l", "hunter2")
        pane.until("•••••••")
        assert "hunter2" not in pane.screen
        pane.press("Enter")
        pane.until("stopped, ok")
    assert agent.keephold("show", "door", "--json").json["outcome"]["value"] == "7 characters"


def test_L_a_person_takes_a_terminal_over_and_comes_back(agent: Agent) -> None:
    agent.spawn("shell", "sh")
    with top(agent) as pane:
        pane.until("sh ")
        pane.press("t")
        pane.until("detaches")
        pane.type("echo from $((40 + 2))")
        pane.until("from 42")
        assert "urgent first" not in pane.screen
        pane.press("C-]")
        pane.until("urgent first")
        pane.until("detached from")
        pane.press("Enter")
        pane.until("handle       sh, of shell")
        pane.until("from 42")
        pane.press("Escape")
        pane.until("urgent first")


def test_L_a_handle_that_is_no_terminal_is_not_taken_over(agent: Agent) -> None:
    agent.spawn("talk", "chatty")
    with top(agent) as pane:
        pane.until("chatty")
        pane.press("t")
        pane.until("` is not a")
        pane.until("urgent first")


def test_L_without_colours_all_of_it_is_there(agent: Agent) -> None:
    agent.spawn("choose", "paint")
    with top(agent, NO_COLOR="1") as pane:
        pane.until("? Which colour?")
        assert [found for found in SEQUENCE.findall(pane._run("capture-pane", "-p", "-e")) if coloured(found)] == []


def coloured(sequence: str) -> bool:
    """Whether it asks for anything else than a shade of grey."""
    numbers = [int(number) for number in sequence.split(";") if number]
    while numbers:
        match numbers:
            case [38 | 48, 2, red, green, blue, *numbers]:
                if not red == green == blue:
                    return True
            case [38 | 48, 5, number, *numbers]:
                if number not in GREYS:
                    return True
            case [number, *numbers]:
                if number % 10 not in (0, 7, 8, 9) and number // 10 in (3, 4, 9, 10):
                    return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_L_a_signal_ends_it_and_the_terminal_is_as_it_was(agent: Agent, number: signal.Signals) -> None:
    agent.spawn("talk", "chatty")
    with Pane(agent.directory, {**agent.environment, "TERM": "xterm-256color"}, rows=24, cols=80) as pane:
        pane.type("stty -g > before")
        pane.back()
        pane.type(f"{sys.executable} -m keephold top; echo code $?")
        pane.until("urgent first")
        (shown,) = (
            process
            for process in psutil.process_iter(["cmdline", "environ"])
            if (process.info["cmdline"] or [])[1:4] == ["-m", "keephold", "top"]
            and (process.info["environ"] or {}).get("KEEPHOLD_STORE") == agent.environment["KEEPHOLD_STORE"]
        )
        shown.send_signal(number)
        pane.until(f"code {128 + number}")
        pane.back()
        pane.type("stty -g | cmp - before && echo the same")
        pane.until("\nthe same")
        assert pane._run("display-message", "-p", "#{alternate_on} #{mouse_any_flag}").split() == ["0", "0"]


# Without a terminal


def test_L3_json_is_a_snapshot(agent: Agent) -> None:
    agent.spawn("talk", "chatty")
    agent.spawn("choose", "paint")
    said = agent.keephold("top", "--json").json
    assert [fact["id"] for fact in said["handles"]] == ["paint", "chatty"]
    assert said["handles"][0]["question"]["text"] == "Which colour?"
    assert (said["requests"], said["more"]) == ([], False)


def test_L_without_a_terminal_it_says_what_to_do(agent: Agent) -> None:
    said = agent.keephold("top")
    assert said.code == 2
    assert "`keephold top` needs a terminal; `--json` prints what it would show" in said.err


def test_L_without_the_extra_it_says_how_to_get_it(agent: Agent) -> None:
    agent.spawn("talk", "chatty")
    program = "import sys; sys.modules['textual'] = None; from keephold.cli import main; main(prog_name='keephold')"

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", program, "top", *arguments],
            env=agent.environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    refused = run()
    assert refused.returncode == 2
    assert "pip install 'keephold[tui]'" in refused.stderr
    assert json.loads(run("--json").stdout)["handles"][0]["id"] == "chatty"
