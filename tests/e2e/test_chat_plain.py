"""`keephold chat` without a terminal: lines in, text or events out; and what it says when it cannot talk (G1, L3)."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.e2e.chats import Chats
from tests.e2e.driver import until
from tests.patience import PATIENCE
from tests.trusting import write_trusted

from keephold.agent.events import Event, Interjected, Text, TurnFinished, TurnStarted


@pytest.fixture
def chats(tmp_path: Path) -> Chats:
    return Chats(tmp_path)


def conversation_of(err: str) -> str:
    line = next(line for line in err.splitlines() if line.startswith("Continue with: keephold chat --conversation "))
    return line.split()[-1]


def test_G1_each_line_is_a_prompt_and_answers_are_all_that_is_printed(chats: Chats) -> None:
    chats.script(
        {"thought": "Hm.", "text": ["One"], "calls": [["nasty", {}]]}, {"text": ["Two\n"]}, {"text": ["Three"]}
    )
    said = chats.chat(stdin="first\n\n  second  \n")
    assert (said.code, said.out) == (0, "One\nTwo\nThree\n")
    assert [line for line in said.err.splitlines() if line.startswith("✓ nasty") and line.endswith("  behaved")]
    assert said.err.count(" tokens in") == 2
    assert "Hm." not in said.err


def test_G1_a_conversation_goes_on(chats: Chats) -> None:
    chats.script({"text": ["Hello."]}, {"text": ["Hello again."]})
    id = conversation_of(chats.chat("I am Ada").err)
    said = chats.chat("who am I?", "--conversation", id)
    assert said.out == "Hello again.\n"
    assert "I am Ada" in chats.given


def test_G1_a_conversation_that_is_not_there_yet_says_that_it_is_new(chats: Chats) -> None:
    new = "There is no conversation `desk` yet: it is a new one.\n"
    assert chats.chat("I am Ada", "--conversation", "desk").err.startswith(new)
    assert new not in chats.chat("who am I?", "--conversation", "desk").err
    assert "no conversation" not in chats.chat("hello").err


@pytest.mark.parametrize("id", ["", " "])
def test_a_conversation_needs_a_name(chats: Chats, id: str) -> None:
    said = chats.chat("hi", "--conversation", id)
    assert (said.code, said.out) == (2, "")
    assert "Invalid value for '--conversation': it is empty" in said.err


def test_G1_what_is_piped_beside_a_prompt_goes_with_it(chats: Chats) -> None:
    chats.script({"text": ["Two lines."]})
    assert chats.chat("summarise this", stdin="one\n\n  two\n").out == "Two lines.\n"
    assert json.dumps("summarise this\n\none\n\n  two")[1:-1] in chats.given


@pytest.mark.parametrize("stdin", ["", "\n \n"])
def test_G1_nothing_that_is_piped_changes_no_prompt(chats: Chats, stdin: str) -> None:
    chats.chat("hello", stdin=stdin)
    assert '"hello"' in chats.given


def test_the_command_that_goes_on_names_what_was_named(chats: Chats) -> None:
    (chats.directory / "my config.toml").write_text((chats.directory / "keephold.toml").read_text())
    said = chats.chat("hi", "--config", "my config.toml", "--store", "sqlite:///other.db")
    assert " --config 'my config.toml' --store sqlite:///other.db\n" in said.err


def test_L3_json_prints_what_happens(chats: Chats) -> None:
    chats.script({"text": ["a\u202e\x9bb"], "calls": [["nasty", {}]]}, {"text": ["c"]})
    said = chats.chat("--json", stdin="go\n")
    assert said.out.isascii()
    first, *lines = said.out.splitlines()
    assert json.loads(first) == {"type": "Conversation", "id": conversation_of(said.err), "new": True}
    events = [msgspec.json.decode(line, type=Event) for line in lines]
    assert [type(event).__name__ for event in events] == [
        "TurnStarted", "Text", "Used", "Called", "Answered", "Text", "Used", "TurnFinished"
    ]  # fmt: skip
    assert events[1] == Text("a\u202e\x9bb")
    assert isinstance(events[-1], TurnFinished)
    assert events[-1].answer.text == "c"


def test_L3_the_exit_code_is_that_of_the_last_turn(chats: Chats) -> None:
    chats.script({"text": ["Fine."]}, {"fail": "no more money"})
    said = chats.chat(stdin="a\nb\n")
    assert (said.code, said.out) == (1, "Fine.\n")
    assert [line for line in said.err.splitlines() if line.startswith("Error: ") and "no more money" in line]
    assert chats.chat(stdin="a\n").code == 0


def test_P2_without_a_terminal_nobody_is_asked(chats: Chats) -> None:
    chats.script({"calls": [["deploy", {"env": "prod"}]]}, {"text": ["No."]})
    said = chats.chat("deploy it")
    assert said.out == "No.\n"
    assert "✗ deploy" in said.err
    assert "deployed to" not in chats.given


def test_B7_a_signal_cancels_the_turn_and_ends_the_chat(chats: Chats) -> None:
    chats.script({"calls": [["gate", {}]]}, {"text": ["Not to be said."]})
    process = chats.start("--conversation", "main")
    try:
        assert process.stdin is not None
        process.stdin.write("wait\nand then\n")
        process.stdin.flush()
        until(lambda: (chats.directory / "started").exists())
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        out, err = process.communicate()
        assert out == ""
        assert "Cancelled." in err
    finally:
        process.kill()
        process.wait()
    assert not chats.interrupted("main")


@pytest.mark.parametrize(
    ("number", "first"),
    [
        (signal.SIGTERM, {"calls": [["gate", {}]]}),
        (signal.SIGHUP, {"text": ["Once ", "upon."], "until": "go"}),
    ],
    ids=["in a batch", "in a stream"],
)
def test_R6_a_signal_to_end_leaves_the_turn_to_be_gone_on_with(
    chats: Chats, number: signal.Signals, first: dict[str, Any]
) -> None:
    """A connection that is lost costs no more than a crash."""
    chats.script(first, {"text": ["All is well."]})
    process = chats.start("look", stdin=subprocess.DEVNULL)
    try:
        there = chats.directory / ("started" if "calls" in first else "given.json")
        until(there.exists)
        process.send_signal(number)
        assert process.wait(PATIENCE) == 128 + number
        _, err = process.communicate()
        assert "Cancelled." not in err and "Traceback" not in err and "Error" not in err
    finally:
        process.kill()
        process.wait()
    for name in ("open", "go"):
        chats.touch(name)
    said = chats.chat("--conversation", conversation_of(err), stdin="")
    assert "Resuming the last turn, which was interrupted." in said.err
    assert said.out == ("All is well.\n" if "calls" in first else "Once upon.\n")
    assert chats.given.count("look") == 1


def test_a_signal_at_an_input_that_says_nothing_ends_the_chat(chats: Chats) -> None:
    process = chats.start("--conversation", "main", "--json")
    try:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("hello\n")
        process.stdin.flush()
        while b"TurnFinished" not in process.stdout.readline().encode():
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 143
        assert "Traceback" not in process.communicate()[1]
    finally:
        process.kill()
        process.wait()


def test_a_reader_who_goes_away_ends_it(chats: Chats) -> None:
    chats.script({"text": ["a\n", "b\n"], "until": "go"})
    process = chats.start("hi", stdin=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "a\n"
        process.stdout.close()
        chats.touch("go")
        process.stdout = None
        assert "Traceback" not in process.communicate(timeout=PATIENCE)[1]
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("stdin", ["", "one more thing\n"])
def test_B9_a_turn_that_was_killed_goes_on_first(chats: Chats, stdin: str) -> None:
    chats.script({"text": ["Let me see."], "calls": [["gate", {}]]}, {"text": ["It is open."]}, {"text": ["More."]})
    process = chats.start("look", "--conversation", "main", stdin=subprocess.DEVNULL)
    try:
        until(lambda: (chats.directory / "started").exists())
        process.kill()
        process.communicate()
    finally:
        process.kill()
        process.wait()
    chats.touch("open")
    said = chats.chat("--conversation", "main", "--json", stdin=stdin)
    first, *lines = said.out.splitlines()
    assert json.loads(first) == {"type": "Conversation", "id": "main", "new": False}
    events = [msgspec.json.decode(line, type=Event) for line in lines]
    assert isinstance(events[0], TurnStarted) and events[0].resumed
    assert "Resuming the last turn, which was interrupted." in said.err
    answers = [event.answer.text for event in events if isinstance(event, TurnFinished)]
    assert answers == (["It is open.", "More."] if stdin else ["It is open."])
    assert not [event for event in events if isinstance(event, Interjected)]


# When it cannot talk


def refused(chats: Chats, *arguments: str) -> str:
    """What it says, in one line."""
    said = chats.chat("hi", *arguments)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("Error: ") and said.err.count("\n") == 1, said.err
    return said.err


def test_without_a_model_it_says_how_to_name_one(chats: Chats) -> None:
    write_trusted(chats.directory / "keephold.toml", "")
    assert "[conversation.assistant]" in refused(chats)
    (chats.directory / "keephold.toml").unlink()
    assert "--model" in refused(chats)


@pytest.mark.parametrize("model", ["nobody:nothing", "python:tests.e2e.chat_model:nothing", "python:nowhere:model"])
def test_an_unknown_model_is_named(chats: Chats, model: str) -> None:
    assert f"model `{model}` cannot be" in refused(chats, "--model", model)


def test_K5_a_key_that_is_missing_is_named(chats: Chats) -> None:
    chats.environment = {key: value for key, value in chats.environment.items() if not key.endswith("_API_KEY")}
    assert "OPENAI_API_KEY" in refused(chats, "--model", "openai:gpt-5")


def test_without_pydantic_ai_it_says_what_to_install(chats: Chats) -> None:
    program = "import sys; sys.modules['pydantic_ai'] = None; from keephold.cli import main; main(['chat', 'hi'])"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=chats.directory, env=chats.environment, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert ran.returncode == 2
    assert "pip install 'keephold[agent]'" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_conversation_that_somebody_else_talks_in_is_refused(chats: Chats) -> None:
    chats.script({"calls": [["gate", {}]]})
    process = chats.start("look", "--conversation", "main", stdin=subprocess.DEVNULL)
    try:
        until(lambda: (chats.directory / "started").exists())
        assert "conversation `main` has an open turn" in refused(chats, "--conversation", "main")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
