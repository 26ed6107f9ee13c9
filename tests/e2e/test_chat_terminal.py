"""`keephold chat` at a terminal: what a person sees and types (G1, L1)."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.chats import ChatPane, Chats
from tests.e2e.driver import until
from tests.patience import PATIENCE
from tests.programs import needs
from tests.trusting import write_trusted


@pytest.fixture(scope="module", autouse=True)
def _programs() -> None:
    needs("tmux", "bash")


@pytest.fixture
def chats(tmp_path: Path) -> Chats:
    return Chats(tmp_path)


@pytest.fixture
def pane(chats: Chats) -> Iterator[ChatPane]:
    with chats.pane() as pane:
        yield pane


# What is said


def test_G1_K4_answers_stream_tools_have_one_line_and_only_text_reaches_the_terminal(
    chats: Chats, pane: ChatPane
) -> None:
    evil = ["I \x1b", "]2;stolen\x07am \x1b[", "2J\x1b[5;5Hgood\u202e.\r\nReally\x9b31m."]
    chats.script(
        {"thought": "Hm.", "text": ["Hello wor", "ld.\nMore."], "until": "go"},
        {"text": ["Let me see."], "calls": [["gate", {}]]},
        {"text": ["So it is."]},
        {"text": evil, "calls": [["nasty", {}], ["\x1b[2J", {}]]},
        {"text": ["Yes."]},
    )
    pane.chat()
    pane.type("good day")
    pane.until("Hello wor\n  working")
    assert pane.last == ">"
    chats.touch("go")
    pane.until("1 request · ")
    until(lambda: len(pane.lines) == 8, what=lambda: pane.screen)
    assert pane.lines[2:] == ["> good day", "Hm.", "Hello world.", "More.", pane.lines[6], ">"]
    assert "good day" in chats.given

    pane.type("is it open?")
    pane.until("● gate  ")
    pane.until("the gate is shut")
    pane.until("● gate  2s")  # it is drawn again
    assert pane.count("gate  ") == 1
    chats.touch("open")
    pane.until("So it is.")
    pane.idle()
    assert pane.count("gate  ") == 1
    assert [line for line in pane.rolled if line.startswith("✓ gate  ") and line.endswith("s  open")]
    assert pane.count("working") == 0

    before = pane.title
    pane.type("be nice")
    pane.until("Yes.\n")
    assert pane.title == before
    assert {"> be nice", "I am good<U+202E>.", "Really.", "Yes."} < set(pane.lines)
    assert [line for line in pane.lines if line.startswith("✓ nasty  ") and line.endswith("  behaved")]


def test_G1_what_scrolls_away_is_there_once_and_whole(chats: Chats) -> None:
    """Long rows, wide characters and tabs, in small pieces, on a small terminal, with a tool beside it."""
    text = "\n".join(f"{n}:" + "wörd 漢字\t" * (n % 13) for n in range(60)) + "\nThe end."
    pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
    chats.script({"calls": [["kept", {"action": "spawn", "id": "k"}]]}, {"text": pieces})
    with chats.pane(rows=12, cols=40) as pane:
        pane.chat()
        pane.type("go")
        pane.until("2 requests")
        pane.idle()
        pane.until("● k (kept)")
        rolled = "".join(line.replace(" ", "").replace("\t", "") for line in pane.rolled)
        assert text.replace(" ", "").replace("\t", "").replace("\n", "") in rolled
        assert pane.count("● k (kept)") == 1
        assert pane.count("working") == 0


def test_a_terminal_may_change_its_size(chats: Chats, pane: ChatPane) -> None:
    chats.script({"text": ["Half a sentence ", "and the rest."], "until": "go", "calls": [["gate", {}]]})
    pane.chat()
    pane.type("go")
    pane.until("Half a sentence")
    for cols in (20, 60, 30, 80):
        pane.resize(30, cols)
        pane.until("working")
    chats.touch("go")
    pane.until("● gate  ")
    pane.resize(30, 25)
    pane.resize(30, 80)
    chats.touch("open")
    pane.until("(the script is over)")
    shown = " ".join(" ".join(pane.rolled).split())  # a line that was written while it was narrow stays broken
    assert shown.count("and the rest.") == pane.count("✓ gate") == 1


# What a person is asked


def test_P1_Q8_Q5_a_person_is_asked_on_the_same_terminal_and_loses_no_line_by_it(chats: Chats, pane: ChatPane) -> None:
    chats.script(
        {"text": ["I deploy."], "calls": [["deploy", {"env": env}] for env in ("staging", "prod")]},
        {"text": ["Deployed."]},
        {"calls": [["ask_user", {"question": "Which colour?"}]]},
        {"text": ["So be it."]},
        {"calls": [["gate", {}], ["deploy", {"env": "both"}]]},
        {"text": ["Both."]},
        {"text": ["I ", "wait."], "until": "go", "calls": [["deploy", {"env": "last"}]]},
        {"text": ["Done."]},
    )
    prompt = "Run it? [y/Y/n/N/r/e/v/?]\n"
    pane.chat()
    pane.type("deploy it")
    pane.until('"staging"')
    pane.until(prompt)
    pane.press("y")
    pane.until('"prod"')
    pane.until(prompt)
    pane.press("n")
    pane.until("Deployed.")
    assert [line for line in pane.lines if line.startswith("✓ deploy env=staging")]
    assert "deployed to staging" in chats.given
    assert "deployed to prod" not in chats.given
    pane.idle()

    pane.type("paint it")
    pane.until("Which colour?")
    until(lambda: "stop typing" not in pane.screen)
    pane.type("green")
    pane.until("So be it.")
    assert "green" in chats.given
    pane.idle()

    pane.type("go")
    pane.until('"both"')
    pane.until(prompt)
    chats.touch("open")  # the gate ends while the person thinks about the other call
    pane.press("y")
    pane.until("Both.")
    assert pane.count("✓ gate") == pane.count("✓ deploy env=both") == 1
    pane.idle()

    pane.type("and the last")
    pane.until("I\n")
    pane.write("half a li")
    until(lambda: pane.last == "> half a li")
    chats.touch("go")
    pane.until('"last"')
    pane.until(prompt)
    assert "stop typing" not in pane.screen
    pane.press("y")
    pane.until("Done.")
    until(lambda: pane.last == "> half a li")


def test_Q5_a_terminal_that_cannot_be_drawn_on_is_talked_to_line_by_line(chats: Chats, pane: ChatPane) -> None:
    chats.script({"text": ["I deploy."], "calls": [["deploy", {"env": "x"}]]}, {"text": ["Done."]})
    pane.type(f"TERM=dumb {pane.command('chat')}; echo code $?")
    pane.until("\n>")
    pane.type("deploy it")
    pane.until("Run it?")
    pane.press("y")
    pane.until("Done.")
    until(lambda: pane.last == ">")
    pane.press("C-d")
    pane.until("Continue with")
    pane.left()


# Ctrl-C and other ways out


def test_B7_ctrl_c_cancels_the_turn_gives_back_what_was_not_said_and_a_second_one_leaves(
    chats: Chats, pane: ChatPane
) -> None:
    chats.script(
        {"calls": [["gate", {}]]},
        {"text": ["Something else."]},
        {"calls": [["gate", {}]]},
        {"text": ["I see."]},
        {"text": ["Once upon ", "a time."], "until": "never"},
    )

    def cancelled(times: int) -> None:
        until(lambda: pane.count("Cancelled.") == times, what=lambda: pane.screen)

    pane.chat()
    pane.type("wait")
    pane.until("● gate")
    pane.press("C-c")
    cancelled(1)
    pane.until("■ gate")
    pane.idle()
    pane.type("and now?")
    pane.until("Something else.")
    pane.idle()

    pane.type("wait again")
    pane.until("● gate")
    pane.type("no, do this")
    pane.until("(with the next request)")
    pane.press("C-c")
    cancelled(2)
    until(lambda: pane.last == "> no, do this", what=lambda: pane.screen)
    pane.idle()
    pane.press("Enter")
    pane.until("> no, do this\nI see.")
    pane.idle()
    assert pane.count("no, do this") == 1

    pane.type("tell me a story")
    pane.until("Once upon")
    pane.press("C-c")
    cancelled(3)
    pane.idle()
    pane.press("C-c")
    pane.until("Ctrl-C again, or Ctrl-D, leaves.")
    pane.press("C-c")
    pane.until("Continue with: keephold chat --conversation c-")
    pane.left()


def test_ctrl_c_twice_leaves_while_something_does_not_end(chats: Chats, pane: ChatPane) -> None:
    """A tool that ignores its end has two seconds; whoever leaves need not see that."""
    config = (chats.directory / "keephold.toml").read_text().replace('"echo $$ >>started;', "\"trap '' TERM; echo;")
    write_trusted(chats.directory / "keephold.toml", config)
    chats.script({"calls": [["gate", {}]]})
    pane.chat()
    pane.type("wait")
    pane.until("● gate")
    pane.press("C-c")
    pane.press("C-c")
    pane.left()


def test_lines_come_back_with_the_up_key_and_ctrl_c_or_its_signal_clears_the_line_before_it_leaves(
    chats: Chats, pane: ChatPane
) -> None:
    pane.chat()
    for line in ("first", "second"):
        pane.type(line)
        pane.until(f"> {line}\n(the script is over)\n")
    pane.press("Up")
    pane.press("Up")
    until(lambda: pane.last == "> first")
    pane.press("Down")
    until(lambda: pane.last == "> second")
    pane.press("Down")
    until(lambda: pane.last == ">")

    pane.write("nonsense")
    pane.until("> nonsense")
    pane.press("C-c")
    pane.until("leaves")
    assert pane.last == ">"
    pane.type("sense")
    pane.until("> sense\n(the script is over)")
    pane.idle()
    said = pane.count("Ctrl-C again, or Ctrl-D, leaves.")
    (process,) = pane.processes()
    process.send_signal(signal.SIGINT)
    until(lambda: pane.count("Ctrl-C again, or Ctrl-D, leaves.") == said + 1, what=lambda: pane.screen)
    process.send_signal(signal.SIGINT)
    pane.left()


def test_R6_a_signal_ends_it_and_the_turn_goes_on_later(chats: Chats, pane: ChatPane) -> None:
    chats.script({"calls": [["gate", {}]]})
    pane.chat("--conversation", "main")
    pane.type("wait")
    pane.until("● gate")
    (process,) = pane.processes()
    process.send_signal(signal.SIGTERM)
    pane.left(143)
    assert pane.count("Error") == pane.count("Cancelled.") == 0
    assert chats.interrupted("main")


@pytest.mark.parametrize("open_prompt", [False, True])
def test_R6_a_terminal_that_goes_away_ends_it_and_the_turn_goes_on_later(chats: Chats, open_prompt: bool) -> None:
    """Also in the middle of a prompt: that it could not be answered is no answer."""
    chats.script({"calls": [["deploy", {"env": "x"}] if open_prompt else ["gate", {}]]}, {"text": ["All is well."]})
    with chats.pane() as pane:
        pane.chat("--conversation", "main")
        pane.type("wait")
        pane.until("Run it?" if open_prompt else "● gate")
        (process,) = pane.processes()
        pane.hangs_up()
        process.wait(PATIENCE)
        assert not pane.processes()
    assert chats.interrupted("main")
    if open_prompt:
        assert chats.chat("--conversation", "main").out == "All is well.\n"
        assert "went away" not in chats.given


def test_B7_whoever_quits_wants_no_more_of_the_turn(chats: Chats, pane: ChatPane) -> None:
    chats.script({"calls": [["gate", {}]]})
    pane.chat("--conversation", "main")
    pane.type("wait")
    pane.until("● gate")
    pane.type("/quit")
    pane.until("Cancelled.")
    pane.left()
    assert not chats.interrupted("main")


def test_a_prompt_on_the_command_line_is_one_turn(chats: Chats, pane: ChatPane) -> None:
    chats.script({"text": ["That is all."]}, {"fail": "no more money"})
    pane.type(f"{pane.command('chat', 'hello')}; echo code $?")
    pane.until("> hello\nThat is all.\n1 request")
    pane.left(0)
    id = next(line for line in pane.lines if line.startswith("Continue with")).split()[-1]
    pane.type(f"{pane.command('chat', 'again', '--conversation', id)}; echo code $?")
    pane.until("no more money")
    pane.left(1)


# Lines and commands


def test_a_line_that_is_typed_meanwhile_is_said_in_the_turn_also_while_the_answer_ends(
    chats: Chats, pane: ChatPane
) -> None:
    chats.script(
        {"calls": [["gate", {}]]},
        {"text": ["Noted."]},
        {"text": ["Once ", "upon."], "until": "go"},
        {"text": ["Twice."]},
    )
    pane.chat()
    pane.type("wait")
    pane.until("● gate")
    pane.type("and hurry up")
    pane.until("> and hurry up  (with the next request)")
    chats.touch("open")
    pane.until("Noted.")
    pane.idle()
    assert "hurry up" in chats.given
    assert pane.count("hurry up") == 1
    assert pane.lines.index("> and hurry up") < pane.lines.index("Noted.")

    pane.type("a story")
    pane.until("Once")
    pane.type("another one")
    pane.until("> another one  (with the next request)")
    chats.touch("go")
    pane.until("Twice.")
    pane.idle()
    assert pane.count("another one") == 1
    assert pane.count("the script is over") == 0


def test_N4_news_between_turns_is_shown_above_what_is_being_typed(chats: Chats, pane: ChatPane) -> None:
    chats.script(
        {"calls": [["kept", {"action": "spawn", "id": "k"}]]}, {"text": ["It runs."]}, {"text": ["I have heard."]}
    )
    pane.chat()
    pane.type("start it")
    pane.until("It runs.")
    pane.idle()
    pane.write("half a li")
    until(lambda: pane.last == "> half a li")
    assert pane.lines[-2].startswith("● k (kept)")
    chats.touch("open")
    pane.until("✓ k (kept)")
    until(lambda: pane.last == "> half a li")
    assert pane.lines[-2].startswith("✓ k (kept)") and pane.lines[-2].endswith("wide open")
    pane.type("ne")
    pane.until("I have heard.")
    assert "`k` (kept) stopped: " in chats.given
    assert pane.count("k (kept)") == 1


def test_ps_and_abort(chats: Chats, pane: ChatPane) -> None:
    chats.script({"calls": [["kept", {"action": "spawn", "id": "k"}]]}, {"text": ["It runs."]})
    pane.chat()
    pane.type("/ps")
    pane.until("Nothing runs.")
    pane.type("start it")
    pane.until("It runs.")
    pane.idle()
    pane.type("/ps")
    until(lambda: any(line.split()[:3] == ["k", "kept", "running"] for line in pane.lines), what=lambda: pane.screen)
    pane.type("/etc/hosts is what?")  # no command
    pane.until("> /etc/hosts is what?\n(the script is over)")
    pane.type("/abort nobody")
    pane.until("Error: Handle `nobody` not found")
    pane.type("/abort k")
    pane.until("■ k (kept)")
    pane.until("Aborted by a person.")
    pane.type("/abort k")
    pane.until("k has stopped already.")
    pane.type("/abort")
    pane.until("write /abort ID")
    pane.type("/quit")
    pane.left()


def test_G2_what_a_sub_agent_runs_is_shown_below_it_and_can_be_aborted(chats: Chats, pane: ChatPane) -> None:
    spawn = {"action": "spawn", "id": "h", "prompt": "look after it"}
    chats.script({"calls": [["helper", spawn], ["await", {"all": ["h"]}]]}, {"text": ["It helped."]})
    chats.script({"calls": [["kept", {"action": "spawn", "id": "k"}], ["gate", {}]]}, {"text": ["Done."]}, of="helper")
    pane.chat()
    pane.type("get help")
    pane.until("● h (helper)")
    pane.until("  ● k (kept)")
    pane.until("  ● gate")
    pane.type("/ps")
    until(lambda: [line for line in pane.lines if line.split()[:2] == ["k", "kept"]], what=lambda: pane.screen)
    pane.type("/abort k")
    until(lambda: "  ● k (kept)" not in pane.screen)
    chats.touch("open")
    pane.until("It helped.")
    pane.idle()
    assert pane.count("✓ h (helper)") == 1
    assert pane.count("●") == 0


def test_attach_takes_over_a_terminal_and_comes_back(chats: Chats, pane: ChatPane) -> None:
    chats.script({"calls": [["shell", {"action": "spawn", "id": "sh"}]]}, {"text": ["Take it."]}, {"text": ["Well?"]})
    pane.chat()
    pane.type("a shell, please")
    pane.until("Take it.")
    pane.idle()
    pane.type("/attach nobody")
    pane.until("not found")
    pane.type("/attach sh")
    pane.until("inner>")
    pane.until("detaches")
    pane.type("echo $((6 * 7)) is it")
    pane.until("42 is it")
    pane.press("C-]")
    pane.until("which keeps running")
    pane.until("● sh (shell)")
    assert pane.last == ">"
    pane.type("done")
    pane.until("Well?")
    pane.type("/quit")
    pane.left()


# Coming back


def test_G1_whoever_comes_back_sees_what_was_said_last(chats: Chats, pane: ChatPane) -> None:
    chats.script({"text": ["Hello, Ada."]}, {"text": ["You are"], "calls": [["nasty", {}]]}, {"text": ["Ada."]})
    pane.chat("--conversation", "desk")
    pane.until("There is no conversation `desk` yet: it is a new one.\n>")
    pane.press("C-d")
    pane.left()
    chats.chat("--conversation", "desk", stdin="I am Ada\nwho am I?\n")
    pane.type("clear")
    pane.chat("--conversation", "desk")
    pane.until(" · /help\n> who am I?\nAda.\n>")
    assert "Hello" not in pane.screen


# Crashes


def test_B9_a_chat_that_was_killed_goes_on_in_the_middle_of_its_batch(chats: Chats, pane: ChatPane) -> None:
    chats.script({"calls": [["gate", {}], ["deploy", {"env": "prod"}]]}, {"text": ["All is well."]})
    pane.chat("--conversation", "main")
    pane.type("do both")
    pane.until("Run it?")
    (process,) = pane.processes()
    process.send_signal(signal.SIGKILL)
    pane.until("code 137")
    chats.touch("open")
    pane.type("clear; stty sane")
    pane.chat("--conversation", "main")
    pane.until("Resuming the last turn, which was interrupted.")
    pane.until("Run it?")
    pane.press("y")
    pane.until("All is well.")
    assert "deployed to prod" in chats.given
    assert (chats.directory / "started").read_text().count("\n") == 1
    pane.idle()
    pane.press("C-d")
    pane.until("Continue with: keephold chat --conversation main")
    pane.left()
