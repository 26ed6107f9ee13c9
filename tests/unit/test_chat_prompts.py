"""A prompt that appears while somebody types: those keys are no answer (P1, Q5). On a pty."""

import asyncio
import os
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from tests.patience import PATIENCE

from keephold.cli import prompter
from keephold.cli.keyboard import LineEditor, Tty
from keephold.cli.prompter import TerminalPrompter, Typing
from keephold.handles.question import Question
from keephold.turn.prompts import Answer, Approved, AskQuestion, Decision, Dismissed, Prompt, RunTool

NOTICE = "Waiting for you to stop typing"
RUN = RunTool(tool="order", action=None, id=None, arguments={"item": "ink"}, conversation="main")


class Person:
    """Somebody at the other end of a terminal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rows: int = 40) -> None:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(prompter, "QUIET_SECS", 0.01)
        monkeypatch.setattr(prompter, "PAUSE_SECS", PATIENCE)
        self._monkeypatch = monkeypatch
        self._master, slave = os.openpty()
        termios.tcsetwinsize(self._master, (rows, 80))
        os.set_blocking(slave, False)
        os.set_blocking(self._master, False)
        self.prompter = TerminalPrompter(Tty(slave))
        self.line = LineEditor()
        self.sent = ""

    def asked(self, prompt: Prompt, *, typing: bool) -> "asyncio.Task[Decision]":
        line = Typing(self.line, self.line.press) if typing else None
        return asyncio.create_task(self.prompter(prompt, line))

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def press_last(self, key: str) -> None:
        """Press a key after which there is a pause. Until then there is none, however slow the machine is."""
        self._monkeypatch.setattr(prompter, "PAUSE_SECS", 0.01)
        self.press(key)

    async def until(self, there: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not there():  # noqa: ASYNC110 (it is a terminal that changes)
                await asyncio.sleep(0.005)

    async def sees(self, text: str) -> None:
        def seen() -> bool:
            with suppress(BlockingIOError):
                self.sent += os.read(self._master, 1 << 16).decode()
            return text in self.sent

        await self.until(seen)

    def close(self) -> None:
        self.prompter.close()
        os.close(self._master)


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Iterator[Person]:
    person = Person(monkeypatch)
    yield person
    person.close()


async def test_P1_what_is_being_typed_approves_nothing(person: Person) -> None:
    person.press("ha")  # before it was there
    asked = person.asked(RUN, typing=True)
    await person.sees(NOTICE)
    assert "ink" in person.sent
    for key in "ppy yY":
        person.press(key)
    await person.until(lambda: person.line.text == "happy yY")
    assert not asked.done() and "Run it?" not in person.sent
    person.press_last("e")
    await person.sees("Run it?")
    person.press("y")
    assert await asked == Approved()
    assert person.line.text == "happy yYe"


async def test_Q5_what_is_being_typed_answers_no_question(person: Person) -> None:
    question = Question(id="q", text="Which colour?")
    asked = person.asked(AskQuestion(tool="paint", id=None, question=question, conversation="main"), typing=True)
    await person.sees(NOTICE)
    person.press("hell")
    await person.until(lambda: person.line.text == "hell")
    person.press_last("o")
    await person.sees("\x1b[A\x1b[K")  # the notice is gone
    person.press("green\r")
    assert await asked == Answer("green")
    assert person.line.text == "hello"


async def test_Q5_ctrl_c_cancels_the_prompt_also_before_it_listens(person: Person) -> None:
    asked = person.asked(RUN, typing=True)
    await person.sees(NOTICE)
    person.press("\x03")
    assert await asked == Dismissed()


async def test_P1_where_nobody_types_a_key_answers_at_once(person: Person) -> None:
    asked = person.asked(RUN, typing=False)
    await person.sees("Run it?")
    person.press("y")
    assert await asked == Approved()
    assert NOTICE not in person.sent
