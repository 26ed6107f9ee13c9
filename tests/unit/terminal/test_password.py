"""Password prompts: asked of a person, typed only where they are read, and never to be seen again (Q, K5)."""

import asyncio
import subprocess
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import until
from tests.unit.terminal.calls import Recorder, Start, guard, python, sh, start

from keephold.handles.question import Question
from keephold.handles.state import Failure, Ok, Outcome, PrintedOutput
from keephold.tools.terminal.stream import Veil

__all__ = ["guard", "start"]  # fixtures

SECRET = "correct horse"
ASKS = "stty -echo; printf 'Password for me: '; read word; stty echo; echo; echo got ${word} end"


async def asked(live: Any, sink: Recorder, number: int = 1) -> tuple[Question, Callable[[Outcome], None]]:
    """The question that probing brings about."""
    await until(lambda: live.probe() is not True and len(sink.asked) >= number)
    return sink.asked[number - 1]


async def test_a_prompt_without_echo_is_a_secret_question_and_its_answer_is_typed(start: Start) -> None:
    live, sink = start(sh(ASKS))
    question, then = await asked(live, sink)
    assert question == Question(id="password", text="Password for me:", answer_type="Text", secret=True)
    assert sink.printed == b"Password for me: ", "whoever is asked can have seen the prompt"
    assert live.probe() is False
    then(Ok(SECRET))
    assert await sink.end() == (PrintedOutput(), 0, None)
    assert len(sink.asked) == 1
    assert sink.withdrawn == 0


async def test_K5_the_secret_is_in_no_output_and_on_no_screen(start: Start) -> None:
    live, sink = start(sh(ASKS + "; cat"))
    _, then = await asked(live, sink)
    then(Ok(SECRET))
    await sink.said(b"got ******** end\r\n")
    screen = live.screen()
    assert "got ******** end" in screen.lines
    assert SECRET not in "".join(screen.lines)
    live.end(0)
    await sink.end()
    assert SECRET.encode() not in sink.printed


async def test_K5_a_secret_that_is_printed_in_pieces_is_hidden_too(start: Start) -> None:
    by_letters = "import getpass; word = getpass.getpass('? ')\nfor c in word: os.write(1, c.encode())\n"
    live, sink = start(python(by_letters + "os.write(1, b' end'); os.read(0, 1)"))
    _, then = await asked(live, sink)
    then(Ok(SECRET))
    await sink.said(b"******** end")
    live.end(0)
    await sink.end()
    assert b"horse" not in sink.printed


async def test_K5_what_only_begins_like_the_secret_is_shown_after_all(start: Start) -> None:
    live, sink = start(python("import getpass; getpass.getpass('? '); os.write(1, b'correct'); time.sleep(1001)"))
    _, then = await asked(live, sink)
    then(Ok(SECRET))
    await sink.said(b"correct")
    live.end(0)
    await sink.end()


async def test_K5_what_is_held_back_is_shown_when_the_program_waits_or_ends(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keephold.tools.terminal.stream.HELD_BACK", 60.0)
    live, sink = start(
        python("import getpass; getpass.getpass('? '); os.write(1, b'cor'); input(); print('rect', end='')")
    )
    _, then = await asked(live, sink)
    then(Ok(SECRET))
    await until(live.probe)
    assert sink.printed.endswith(b"cor")
    live.write("\r")
    await sink.end()
    assert sink.printed.endswith(b"rect")


async def test_a_prompt_without_words_has_a_text_nevertheless(start: Start) -> None:
    live, sink = start(sh("stty -echo; read word"))
    question, _ = await asked(live, sink)
    assert question.text == "Password:"
    live.end(0)
    await sink.end()


async def test_K4_the_text_of_the_question_is_the_last_line_without_controls(start: Start) -> None:
    live, sink = start(
        sh("stty -echo; printf 'first\\n\\033[1m\\033]0;title\\007[sudo] password:\\033[0m \\n'; read word")
    )
    question, _ = await asked(live, sink)
    assert question.text == "[sudo] password:"
    live.end(0)
    await sink.end()


async def test_a_second_prompt_is_a_second_question(start: Start) -> None:
    again = 'stty -echo; for i in 1 2; do printf "try $i: "; read word; echo; done; stty echo'
    live, sink = start(sh(again))
    _, then = await asked(live, sink)
    then(Ok(SECRET))
    question, then = await asked(live, sink, 2)
    assert question.text == "try 2:"
    then(Ok(SECRET))
    assert await sink.end() == (PrintedOutput(), 0, None)


async def test_Q7_no_answer_ends_the_program_with_that_error(start: Start) -> None:
    live, sink = start(sh("trap '' TERM HUP; " + ASKS))
    _, then = await asked(live, sink)
    error = Failure("The person cancelled question `password`.", "input_cancelled")
    then(error)
    assert await sink.end() == (error, None, None)
    then(Ok("late"))


async def test_a_prompt_that_goes_away_is_withdrawn_when_output_tells(start: Start) -> None:
    live, sink = start(sh(ASKS + "; while sleep 0.01; do echo tick; done"))
    _, then = await asked(live, sink)
    live.type(b"by hand\r")
    await until(lambda: sink.withdrawn)
    then(Ok(SECRET))
    ticks = sink.printed.count(b"tick")
    await until(lambda: sink.printed.count(b"tick") > ticks + 2)
    live.end(0)
    await sink.end()
    assert sink.withdrawn == 1
    assert b"got ******** end" in sink.printed  # what was typed without echo is a secret, whoever typed it
    assert b"horse" not in sink.printed


async def test_a_prompt_that_goes_away_in_silence_is_withdrawn_when_a_probe_tells(start: Start) -> None:
    live, sink = start(sh("stty -echo; read word; exec sleep 1001"))
    _, then = await asked(live, sink)
    live.type(b"by hand\r")
    await until(lambda: live.probe() is False and sink.withdrawn)
    then(Ok(SECRET))
    live.end(0)
    await sink.end()


async def test_output_of_others_does_not_withdraw_a_prompt_that_is_still_there(start: Start) -> None:
    """Each of them also wakes the reader for a moment, as the end of a child does."""
    live, sink = start(sh("(for i in 1 2 3 4 5 6 7 8 9; do sleep 0.01; kill -CHLD $$; echo tick $i; done) & " + ASKS))
    _, then = await asked(live, sink)
    await sink.said(b"tick 9")
    assert sink.withdrawn == 0
    await until(lambda: live._pty.look() == live._asked)
    then(Ok(SECRET))
    assert await sink.end() == (PrintedOutput(), 0, None)


@pytest.mark.parametrize("changed", ["echo", "-icanon"])
async def test_a_secret_is_not_typed_where_it_would_be_seen(start: Start, changed: str) -> None:
    """The terminal has changed, in silence and unseen by any probe, when the person has typed."""
    live, sink = start(sh("stty -echo; exec cat"))
    _, then = await asked(live, sink)
    subprocess.run(["stty", changed], stdin=live._pty._slave, check=True)
    then(Ok(SECRET))
    live.type(b"x\r")
    await sink.said(b"x")
    live.end(0)
    await sink.end()
    assert b"horse" not in sink.printed and b"****" not in sink.printed


async def test_a_secret_is_not_typed_for_another_reader(start: Start) -> None:
    live, sink = start(sh("stty -echo; read word; cat"))
    _, then = await asked(live, sink)
    live._pty.write(b"by hand\r")
    await until(lambda: live._pty.look().state == "password" and live._pty.look() != live._asked)
    then(Ok(SECRET))
    live.type(b"x\r")
    await sink.said(b"x")
    live.end(0)
    await sink.end()
    assert b"horse" not in sink.printed and b"****" not in sink.printed


async def test_a_person_who_drives_is_asked_nothing(start: Start) -> None:
    live, sink = start(sh(ASKS))
    live.driven(True)
    await sink.said(b"Password")
    await until(lambda: live._pty.look().state == "password")
    assert live.probe() is False
    assert sink.asked == []
    live.driven(False)
    await asked(live, sink)
    live.driven(True)
    assert sink.withdrawn == 1
    live.type(b"by hand\r")
    assert await sink.end() == (PrintedOutput(), 0, None)


async def test_a_call_that_is_being_ended_asks_nothing(start: Start) -> None:
    live, sink = start(sh("trap '' TERM HUP; " + ASKS))
    await sink.said(b"Password")
    await until(lambda: live._pty.look().state == "password")
    live.end(0.1)
    assert live.probe() is False
    await sink.end()
    assert sink.asked == []


# The stream without its secrets


def shown(pieces: Iterable[bytes], *secrets: str) -> list[bytes]:
    """Return the pieces that a veil shows of a stream, with those at its end."""

    async def run() -> list[bytes]:
        shown: list[bytes] = []
        veil = Veil(shown.append)
        for secret in secrets:
            veil.hide(secret)
        for piece in pieces:
            veil.feed(piece)
        veil.reveal()
        assert not veil.holds
        return shown

    return asyncio.run(run())


@given(st.text("ab*", min_size=4, max_size=6), st.lists(st.text("ab*x", max_size=5)))
def test_K5_however_it_is_split_the_secret_is_not_in_what_is_shown(secret: str, pieces: list[str]) -> None:
    whole, seen = "".join(pieces), b"".join(shown(map(str.encode, pieces), secret))
    if "*" not in secret:
        assert secret.encode() not in seen
    if secret not in whole:
        assert seen.decode() == whole


@given(st.lists(st.binary(max_size=20)))
def test_K5_nothing_is_held_back_or_changed_without_a_secret(pieces: list[bytes]) -> None:
    assert shown(pieces, "abc") == pieces  # too short to be told from anything else


def test_K5_of_two_secrets_the_longer_is_hidden_as_a_whole() -> None:
    pieces = (b"a password, a pass.", b"pas", b"t")
    assert shown(pieces, "pass", "password") == [b"a ********, a ********.", b"", b"past"]
