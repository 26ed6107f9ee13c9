"""The boxes that `keephold top` shows over its table: confirmations, filters, answers.

Each is dismissed with the user's answer, or None if the user leaves it. Texts of tools and models are shown without the
controls that a terminal would obey (K4), and never as markup. A prompt takes no key until none was pressed for a while,
and a call or a result is approved only after all of it was on the screen.
"""

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.events import Key
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widgets import Input, OptionList, Static

from keephold.cli import prompter
from keephold.cli.printing import one_line, printable
from keephold.handles.form import expected_form
from keephold.text import exact, isolated, isolated_json, readable_json

_LEAVE = "Escape: leave it as it is"


class AskScreen(ModalScreen[Any]):
    """A box over the table: a text, the means to answer, a hint."""

    keys = ""
    """The keys that answer it, for the hint."""

    CSS = """
    #box { width: 90%; max-width: 100; height: auto; max-height: 90%; border: round $accent; padding: 0 1;
           background: $surface; }
    #scroll { height: auto; max-height: 14; }
    #asked { height: auto; }
    #problem { color: $error; height: auto; }
    OptionList { height: auto; max-height: 12; border: none; background: $surface; }
    Input { border: none; height: 1; background: $boost; padding: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave")]

    def __init__(self, asked: str, problem: str = "", *, prompts: bool = True) -> None:
        """`prompts`: keys that were meant for something else must not answer it."""
        super().__init__()
        self._asked = asked
        self._problem = problem
        self._prompts = prompts
        self._quiet: Timer | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            with VerticalScroll(id="scroll"):
                yield Static(Text(self._asked), id="asked")
            with Vertical(id="answers"):
                yield from self.answers()
            if self._problem:
                yield Static(Text(printable(self._problem)), id="problem")
            yield Static(id="hint")

    def on_mount(self) -> None:
        if self._prompts:
            self._quiet = self.set_timer(prompter.QUIET_SECS, self._listen)
            self.query_one("#answers").disabled = True
            self.say_hint()
        else:
            self._listen()

    def _listen(self) -> None:
        """Take keys from now on."""
        self._quiet = None
        answers = self.query_one("#answers")
        answers.disabled = False
        if answers.children:
            answers.children[0].focus()
        self.say_hint()

    @property
    def listening(self) -> bool:
        """Whether keys answer it."""
        return self._quiet is None

    def on_key(self, event: Key) -> None:
        if self._quiet is not None and event.key != "escape":
            self._quiet.reset()

    def say_hint(self) -> None:
        """Show the hint; while keys do not answer, only Escape."""
        hint = self.hint() if self.listening else _LEAVE
        self.query_one("#hint", Static).update(Text(hint, style="dim"))

    def answers(self) -> ComposeResult:
        """Yield the widgets for the answer."""
        yield from ()

    def hint(self) -> str:
        return f"{self.keys}{_LEAVE}"

    def action_leave(self) -> None:
        self.dismiss(None)


class KeysScreen(AskScreen):
    def __init__(self, keys: Sequence[tuple[str, str]]) -> None:
        super().__init__("\n".join(f"{key:<8}{meaning}" for key, meaning in keys), prompts=False)

    def hint(self) -> str:
        return "Escape: back"


class YesNoScreen(AskScreen):
    """Is dismissed with True or False."""

    keys = "y: yes   n: no   "
    BINDINGS: ClassVar[list[BindingType]] = [Binding("y", "say(True)", "Yes"), Binding("n", "say(False)", "No")]

    def action_say(self, value: bool) -> None:
        if self.listening:
            self.dismiss(value)


class ApproveScreen(YesNoScreen):
    """Is dismissed with True only after all of the text was on the screen."""

    def __init__(self, asked: str) -> None:
        super().__init__(asked)
        self._seen: set[int] = set()
        self._width = 0

    def on_mount(self) -> None:
        scroll = self.query_one("#scroll")
        for what in ("scroll_y", "size", "virtual_size"):
            self.watch(scroll, what, self._look)
        self.query_one("#scroll").focus()

    def _look(self) -> None:
        scroll = self.query_one("#scroll")
        if self._width != scroll.size.width:  # its lines have moved
            self._seen, self._width = set(), scroll.size.width
        if scroll.scroll_y != scroll.scroll_target_y:  # lines that fly past are not seen
            return
        first = round(scroll.scroll_y)
        self._seen |= set(range(first, first + scroll.size.height))
        self.say_hint()

    @property
    def unseen(self) -> int:
        """The number of lines that were not on the screen yet."""
        return sum(line not in self._seen for line in range(self.query_one("#asked").size.height or 1))

    def hint(self) -> str:
        unseen = f"{self.unseen} lines not seen yet: PageDown scrolls, then " if self.unseen else ""
        return unseen + super().hint()

    def action_say(self, value: bool) -> None:
        if not (value and self.unseen):
            super().action_say(value)


class ChoiceScreen(AskScreen):
    """Is dismissed with the index of the option."""

    keys = "Enter: choose   "

    def __init__(self, asked: str, options: list[str], problem: str = "") -> None:
        super().__init__(asked, problem)
        self._options = options

    def answers(self) -> ComposeResult:
        yield OptionList(*(Text(one_line(option)) for option in self._options))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_index)


class TextScreen(AskScreen):
    """Is dismissed with a line of text; a secret is not shown. `does` says what Enter does."""

    def __init__(
        self,
        asked: str,
        problem: str = "",
        *,
        value: str = "",
        secret: bool = False,
        does: str = "send",
        prompts: bool = True,
    ) -> None:
        super().__init__(asked, problem, prompts=prompts)
        self._value = value
        self._secret = secret
        self.keys = f"Enter: {does}   "

    def answers(self) -> ComposeResult:
        yield Input(self._value, password=self._secret)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


def question_screen(fact: dict[str, Any], problem: str = "") -> AskScreen:
    """Return the screen for a handle's question; `answer_text` takes its result."""
    question = fact["question"]
    asked = f"{prompter.named(fact['tool'], fact['id'])} asks:\n"
    if question["pre_amble"]:
        asked += f"{isolated(printable(question['pre_amble']))}\n"
    asked += isolated(printable(question["text"]))
    if question["secret"]:
        return TextScreen(asked, problem, secret=True)
    kind = question["answer_type"]
    if kind == "Boolean":
        return YesNoScreen(asked, problem)
    if isinstance(kind, dict) and "Select" in kind:
        return ChoiceScreen(asked, kind["Select"]["options"], problem)
    default = question["default"]
    if isinstance(kind, dict) and "Form" in kind:
        asked += f"\nType {expected_form(kind['Form'])}, as JSON."
        return TextScreen(asked, problem, value=json.dumps(default or {}, ensure_ascii=False))
    return TextScreen(asked, problem, value=default if isinstance(default, str) else "")


def answer_text(question: dict[str, Any], said: Any) -> str:
    """Return the result of the screen as `keephold send` would send it."""
    if isinstance(said, bool):
        return "yes" if said else "no"
    if isinstance(said, int):
        return str(question["answer_type"]["Select"]["options"][said])
    return str(said)


def request_screen(request: dict[str, Any]) -> AskScreen:
    """Return the screen that asks whether a call may run, or its result be shown."""
    who = prompter.named(request["tool"], request["handle_id"])
    if request["kind"] == "permission":
        given = isolated_json(readable_json(request["arguments"]))
        return ApproveScreen(f"May {who} {one_line(request['action'] or 'run')}?\n{given}")
    return ApproveScreen(f"May the result of {who} be shown to the model?\n{isolated(exact(request['result']))}")
