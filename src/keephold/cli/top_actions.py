"""What a person does about a handle in `keephold top`: end it, answer it, take its terminal over, look for others.

What `keephold top` asks a person over its table: whether to end a handle, what a filter is, what the answer is.

Each is a screen that is dismissed with what was said, or None if the person would rather not. Texts of tools and models
are shown without what a terminal would act on (K4), and never as markup.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static

from keephold.cli.printing import one_line, printable
from keephold.cli.top_rows import Fact
from keephold.cli.top_source import Model, Source
from keephold.errors import KeepholdError

_SHOWN = 4000
"""Characters of what a call is given, or a tool gave."""


class AskScreen(ModalScreen[Any]):
    """A box over the table, with what is asked on top of it."""

    CSS = """
    #box { width: 90%; max-width: 100; height: auto; max-height: 90%; border: round $accent; padding: 0 1;
           background: $surface; }
    #asked { height: auto; max-height: 14; overflow-y: auto; }
    #problem { color: $error; height: auto; }
    OptionList { height: auto; max-height: 12; border: none; background: $surface; }
    Input { border: none; height: 1; background: $boost; padding: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave")]

    def __init__(self, asked: str, problem: str = "") -> None:
        super().__init__()
        self._asked = asked
        self._problem = problem

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static(Text(printable(self._asked)), id="asked")
            yield from self.answers()
            if self._problem:
                yield Static(Text(printable(self._problem)), id="problem")
            yield Static(Text(self.hint(), style="dim"))

    def answers(self) -> ComposeResult:
        """What the person answers with."""
        yield from ()

    def hint(self) -> str:
        return "Escape: leave it as it is"

    def action_leave(self) -> None:
        self.dismiss(None)


class Keys(AskScreen):
    """Which keys there are, and what they do."""

    def __init__(self, keys: Sequence[tuple[str, str]]) -> None:
        super().__init__("\n".join(f"{key:<8}{meaning}" for key, meaning in keys))

    def hint(self) -> str:
        return "Escape: back"


class Sure(AskScreen):
    """Yes or no, by a key; a question's own answer is True or False."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "say(True)", "Yes"),
        Binding("n", "say(False)", "No"),
    ]

    def hint(self) -> str:
        return "y: yes   n: no   Escape: leave it as it is"

    def action_say(self, value: bool) -> None:
        self.dismiss(value)


class Chosen(AskScreen):
    """One of several: the number of the one that was chosen."""

    def __init__(self, asked: str, options: list[str], problem: str = "") -> None:
        super().__init__(asked, problem)
        self._options = options

    def answers(self) -> ComposeResult:
        yield OptionList(*(Text(one_line(option)) for option in self._options))

    def hint(self) -> str:
        return "Enter: choose   Escape: leave it as it is"

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_index)


class Typed(AskScreen):
    """A line of text; a secret is not shown."""

    def __init__(
        self, asked: str, problem: str = "", *, value: str = "", secret: bool = False, does: str = "send"
    ) -> None:
        """`does` is what Enter does."""
        super().__init__(asked, problem)
        self._value = value
        self._secret = secret
        self._does = does

    def answers(self) -> ComposeResult:
        yield Input(self._value, password=self._secret)

    def hint(self) -> str:
        return f"Enter: {self._does}   Escape: leave it as it is"

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


def question_screen(fact: dict[str, Any], problem: str = "") -> AskScreen:
    """The screen that fits the type of a handle's question. What it is dismissed with is for `answer_text`."""
    question = fact["question"]
    asked = f"{one_line(fact['tool'])} {one_line(fact['id'])} asks:\n"
    if question["pre_amble"]:
        asked += f"{question['pre_amble']}\n"
    asked += question["text"]
    if question["secret"]:
        return Typed(asked, problem, secret=True)
    kind = question["answer_type"]
    if kind == "Boolean":
        return Sure(asked, problem)
    if isinstance(kind, dict) and "Select" in kind:
        return Chosen(asked, kind["Select"]["options"], problem)
    default = question["default"]
    return Typed(asked, problem, value=default if isinstance(default, str) else "")


def answer_text(question: dict[str, Any], said: Any) -> str:
    """What was said, as a person sends it (`keephold send`)."""
    if isinstance(said, bool):
        return "yes" if said else "no"
    if isinstance(said, int):
        return str(question["answer_type"]["Select"]["options"][said])
    return str(said)


def need_screen(need: dict[str, Any], problem: str = "") -> AskScreen:
    """Whether a call may run, or its result be shown."""
    from keephold.text import to_json

    who = f"{one_line(need['tool'])} {one_line(need['handle_id'] or '')}".strip()
    if need["kind"] == "permission":
        given = to_json(need["arguments"]).decode()
        return Sure(f"May {who} {need['action'] or 'run'}?\n{given[:_SHOWN]}", problem)
    return Sure(f"May the result of {who} be shown to the model?\n{str(need['result'])[:_SHOWN]}", problem)


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
