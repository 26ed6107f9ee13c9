"""What a person does about a handle in `keephold top`: end it, answer it, take its terminal over, look for others."""

import asyncio
from collections.abc import Sequence
from typing import Any

from textual import work
from textual.app import App

from keephold.cli.printing import one_line, printable
from keephold.cli.top_ask import Keys, Sure, Typed, answer_text, need_screen, question_screen
from keephold.cli.top_model import Model
from keephold.cli.top_rows import Fact
from keephold.cli.top_source import Source
from keephold.errors import KeepholdError

_ASK_AGAIN = ("bad_answer",)
_KEYS = (
    ("Enter", "open the handle: its facts, and what it prints"),
    ("r", "answer what it asks: a question, a permission"),
    ("a", "abort it"),
    ("t", "take its terminal over; Ctrl-] gives it back"),
    ("/", "show only handles with a text in their id, tool or uid"),
    ("s", "sort: urgent first, newest, oldest, by tool, by id"),
    ("g", "group by conversation"),
    ("e", "show also what has ended"),
    ("q", "quit"),
)


class Acting(App[None]):
    """The keys of the app that act. What they are about is `chosen`."""

    source: Source
    model: Model
    words: Sequence[str]
    paused: bool

    @property
    def chosen(self) -> Fact | None:
        raise NotImplementedError

    def look_again(self) -> None:
        raise NotImplementedError

    def draw(self) -> None:
        raise NotImplementedError

    def program(self) -> list[str]:
        raise NotImplementedError

    def say(self, text: str, *, bad: bool = False) -> None:
        """Tell the person something, for a moment."""
        self.notify(printable(text), severity="error" if bad else "information", markup=False)

    @work(exclusive=True, group="acting")
    async def action_filter(self) -> None:
        asked = "Show only handles whose id, tool or uid has this in it. Nothing: all."
        said = await self.push_screen_wait(Typed(asked, value=self.model.search, does="show these"))
        if said is not None:
            self.model.search = said.strip()
            self.look_again()

    @work(exclusive=True, group="acting")
    async def action_keys(self) -> None:
        await self.push_screen_wait(Keys(_KEYS))

    @work(exclusive=True, group="acting")
    async def action_abort(self) -> None:
        fact = self.chosen
        if fact is None or fact.get("need"):
            return
        if fact["state"] == "stopped":
            self.say(f"{one_line(fact['id'])} has stopped")
            return
        asked = f"Abort {one_line(fact['id'])} of {one_line(fact['tool'])}, in {one_line(fact['conversation'])}?"
        if await self.push_screen_wait(Sure(asked)):
            try:
                await self.source.abort(fact["uid"])
                self.say(f"aborted {one_line(fact['id'])}")
            except KeepholdError as error:
                self.say(error.message, bad=True)

    @work(exclusive=True, group="acting")
    async def action_answer(self) -> None:
        fact = self.chosen
        if fact is None:
            return
        if fact.get("need"):
            await self._decide(fact["need"])
        elif fact.get("question"):
            await self._answer(fact)
        else:
            self.say(f"{one_line(fact['id'])} asks nothing")

    async def _answer(self, fact: Fact) -> None:
        question, problem = fact["question"], ""
        while True:
            said = await self.push_screen_wait(question_screen(fact, problem))
            if said is None:
                return
            try:
                await self.source.answer(fact, answer_text(question, said), secret=question["secret"])
                self.say(f"answered {one_line(fact['id'])}")
                return
            except KeepholdError as error:
                if error.code not in _ASK_AGAIN:
                    self.say(error.message, bad=True)
                    return
                problem = error.message

    async def _decide(self, need: dict[str, Any]) -> None:
        said = await self.push_screen_wait(need_screen(need))
        if said is None:
            return
        try:
            problem = await self.source.decide(need["id"], {"decision": "approve" if said else "deny"})
            self.say(problem or f"{'approved' if said else 'denied'} {one_line(need['tool'])}", bad=bool(problem))
        except KeepholdError as error:
            self.say(error.message, bad=True)
        self.look_again()

    @work(exclusive=True, group="acting")
    async def action_attach(self) -> None:
        fact = self.chosen
        if fact is None or fact.get("need"):
            return
        words = [*self.program(), "attach", *self.words, "--", fact["uid"]]
        self.paused = True
        try:
            with self.suspend():
                process = await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.PIPE)
                _, said = await process.communicate()
        finally:
            self.paused = False
        self.refresh(layout=True)
        self.draw()
        told = said.decode(errors="replace").strip().removeprefix("Error: ")
        if told:
            self.say(told, bad=process.returncode != 0)
