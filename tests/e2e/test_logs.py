"""`keephold logs`: what a handle has printed, from the process that runs it or from the store (C5, K4, O5, L)."""

import json
import re
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tests.e2e.agent import Agent
from tests.patience import PATIENCE

from keephold.cli.logs import Printer
from keephold.turn import attach_protocol as frames


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with Agent(tmp_path) as agent:
        yield agent


SAID = "hello\nyou said Ada\n"
RAW = "hello\nyou said \x1b[31mAda\x1b[0m\r\n"


def test_C5_what_a_running_handle_printed_is_shown_without_controls_or_as_it_was(agent: Agent) -> None:
    agent.spawn("talk", "t")
    agent.keephold("send", "t", "Ada")
    assert agent.keephold("logs", "t").out == SAID
    assert agent.raw("logs", "t", "--raw") == RAW.encode()
    assert agent.raw("logs", "t", "--raw", "--since", "10") == RAW[10:].encode()


def test_C5_what_a_stopped_handle_printed_is_shown_from_the_store(agent: Agent) -> None:
    agent.spawn("talk", "t")
    agent.keephold("send", "t", "Ada")
    agent.keephold("send", "t", "bye")
    agent.kill()
    assert agent.keephold("logs", "t").out == SAID
    assert agent.raw("logs", "t", "--raw") == RAW.encode()
    assert agent.keephold("logs", "-f", "t").out == SAID


def test_C5_follow_goes_on_until_the_handle_stops(agent: Agent) -> None:
    agent.spawn("talk", "t")
    with agent.start("logs", "-f", "t") as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "hello\n"
        agent.keephold("send", "t", "Ada")
        assert following.stdout.readline() == "you said Ada\n"
        agent.keephold("send", "t", "bye")
        assert (following.stdout.read(), following.wait(PATIENCE)) == ("", 0)


def test_L3_json_has_the_text_with_its_offset_which_since_goes_on_from(agent: Agent) -> None:
    agent.spawn("talk", "t")
    agent.keephold("send", "t", "Ada")
    agent.keephold("send", "t", "bye")
    pieces = [json.loads(line) for line in agent.keephold("logs", "t", "--json").out.splitlines()]
    assert pieces[0]["offset"] == 0
    assert "".join(piece["text"] for piece in pieces) == SAID
    place = RAW.index("said")
    (last,) = [
        json.loads(line) for line in agent.keephold("logs", "t", "--json", "--since", str(place)).out.splitlines()
    ]
    assert last == {"offset": place, "text": "said Ada\n"}


def test_L3_ctrl_c_leaves_with_130(agent: Agent) -> None:
    agent.spawn("talk", "t")
    with agent.start("logs", "-f", "t") as following:
        assert following.stdout is not None
        following.stdout.readline()
        following.send_signal(signal.SIGINT)
        out, err = following.communicate(timeout=PATIENCE)
        assert (following.returncode, out, err) == (130, "", "")


def test_a_broken_pipe_ends_it_quietly(agent: Agent) -> None:
    agent.spawn("gush", "g", size=1_000_000)
    with agent.start("logs", "-f", "g") as following:
        assert following.stdout is not None and following.stderr is not None
        following.stdout.readline()
        following.stdout.close()
        assert following.stderr.read() == ""
        following.wait(PATIENCE)


def test_when_the_process_dies_that_is_told(agent: Agent) -> None:
    agent.spawn("talk", "t")
    with agent.start("logs", "-f", "t") as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "hello\n"
        agent.kill()
        _, err = following.communicate(timeout=PATIENCE)
        assert following.returncode == 2
        assert "is gone" in err
    afterwards = agent.keephold("logs", "t")
    assert afterwards.code == 0
    assert "is gone" in afterwards.err


def test_a_process_that_stands_still_is_not_waited_for_for_ever(agent: Agent) -> None:
    agent.spawn("talk", "t")
    agent.signal(signal.SIGSTOP)
    try:
        said = agent.keephold("logs", "t")
    finally:
        agent.signal(signal.SIGCONT)
    assert said.code == 2
    assert "does not answer" in said.err


def test_a_terminals_lines_are_shown_as_they_were_to_be_read(agent: Agent) -> None:
    agent.spawn("shell", "sh")
    agent.apply("shell", "sh", "printf 'at 1%%\\rat 2%%\\n'; exit\r")
    text, bytes_ = agent.keephold("logs", "sh").out, agent.raw("logs", "sh", "--raw")
    assert "at 2%\n" in text
    assert "at 1%" not in text.replace("printf 'at 1%%", "")
    assert b"at 1%\rat 2%\r\n" in bytes_


def test_a_session_can_be_recorded_while_it_runs_and_afterwards(agent: Agent) -> None:
    agent.spawn("shell", "sh")
    agent.apply("shell", "sh", "echo $((6 * 7)) times\r")
    header, *events = map(json.loads, agent.keephold("logs", "sh", "--cast", "-").out.splitlines())
    assert (header["version"], header["width"], header["height"]) == (2, 70, 20)
    assert "42 times\r\n" in "".join(event[2] for event in events)
    agent.apply("shell", "sh", "exit\r")
    assert agent.keephold("logs", "sh", "--cast", "session.cast").out == ""
    recorded = [json.loads(line) for line in (agent.directory / "session.cast").read_text().splitlines()]
    assert recorded[0] == header
    assert "".join(event[2] for event in recorded[1:]) == agent.raw("logs", "sh", "--raw").decode()


@pytest.mark.parametrize("stopped", [False, True])
def test_what_is_no_terminal_has_no_session_and_no_file_is_made(agent: Agent, stopped: bool) -> None:
    agent.spawn("talk", "t")
    if stopped:
        agent.apply("talk", "t", "bye")
    said = agent.keephold("logs", "t", "--cast", "session.cast")
    assert said.code == 2
    assert "is not a terminal" in said.err
    assert not (agent.directory / "session.cast").exists()
    assert agent.keephold("logs", "t", "--cast", "-", "--raw").code == 2


def test_C5_the_last_lines_are_printed_and_what_comes_after_them(agent: Agent) -> None:
    agent.spawn("talk", "t")
    agent.keephold("send", "t", "Ada")
    assert agent.keephold("logs", "-n", "1", "t").out == "you said Ada\n"
    assert agent.keephold("logs", "-n", "9", "t").out == SAID
    assert agent.keephold("logs", "-n", "0", "t").out == ""
    assert agent.keephold("logs", "-n", str(1 << 63), "t").code == 2
    with agent.start("logs", "-n", "1", "-f", "t") as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "you said Ada\n"
        agent.keephold("send", "t", "bye")
        assert (following.stdout.read(), following.wait(PATIENCE)) == ("", 0)
    assert agent.keephold("logs", "-n", "1", "--since", "3", "t").code == 2


def test_C5_a_last_line_is_not_copied_for_each_of_its_pieces(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    printer, count = Printer(raw=True), 6000
    printer.hold(1)
    began = time.process_time()
    for _ in range(count):
        printer.take((frames.OUTPUT, b"x" * 4096))
    printer.print_last()
    assert time.process_time() - began < PATIENCE, "24 MB copied 6000 times take minutes"
    assert capsysbinary.readouterr().out == b"x" * 4096 * count


def test_times_are_printed_before_each_line_and_since_begins_with_what_was_printed_in_a_time(agent: Agent) -> None:
    before = time.time()
    agent.spawn("talk", "t")
    agent.keephold("send", "t", "Ada")
    for ended in (False, True):
        if ended:
            agent.keephold("send", "t", "bye")
        lines = agent.keephold("logs", "t", "-t").out.splitlines()
        assert [line.split(" ", 1)[1] for line in lines] == SAID.splitlines()
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", line.split()[0]) for line in lines)
        pieces = [json.loads(line) for line in agent.keephold("logs", "t", "-t", "--json").out.splitlines()]
        assert all(before - 0.001 <= piece["time"] <= time.time() for piece in pieces)
        assert agent.keephold("logs", "t", "-t", "-n", "1").out == f"{lines[-1]}\n"
        assert agent.keephold("logs", "t", "--since", "1h").out == SAID
        assert agent.keephold("logs", "t", "--since", "0s") == (0, "", "")


def test_options_that_contradict_times_are_refused(agent: Agent) -> None:
    assert "leave one of --raw and --times out" in agent.keephold("logs", "t", "-t", "--raw").err
    assert "--cast takes the whole session" in agent.keephold("logs", "t", "-t", "--cast", "-").err
    assert "an age such as `90s`" in agent.keephold("logs", "t", "--since", "yesterday").err
    for large in ("9" * 20, "9" * 5000):
        assert agent.keephold("logs", "t", "--since", large).code == 2


def test_without_known_times_everything_is_shown(agent: Agent, tmp_path: Path) -> None:
    agent.spawn("talk", "t")
    agent.keephold("send", "t", "bye")
    agent.kill()
    with closing(sqlite3.connect(tmp_path / "work.db")) as store, store:
        ((kept,),) = store.execute("SELECT kept FROM outputs").fetchall()
        known = msgspec.msgpack.decode(kept)
        del known["times"]
        store.execute("UPDATE outputs SET kept = ?", (msgspec.msgpack.encode(known),))
    shown = agent.keephold("logs", "t", "--since", "0s", "-t")
    assert shown.out == "- hello\n" and "not known when" in shown.err
