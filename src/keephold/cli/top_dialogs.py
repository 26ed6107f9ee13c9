"""The boxes that `keephold top` shows over its table: confirmations, filters, answers.

Each is dismissed with the user's answer, or None if the user leaves it. Texts of tools and models are shown without the
controls that a terminal would obey (K4), and never as markup.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static

from keephold.cli.printing import one_line, printable

_SHOWN = 4000
"""Characters of arguments and results."""


class AskScreen(ModalScreen[Any]):
    """A box over the table: a text, the means to answer, a hint."""

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
        """Yield the widgets for the answer."""
        yield from ()

    def hint(self) -> str:
        return "Escape: leave it as it is"

    def action_leave(self) -> None:
        self.dismiss(None)


class KeysScreen(AskScreen):
    def __init__(self, keys: Sequence[tuple[str, str]]) -> None:
        super().__init__("\n".join(f"{key:<8}{meaning}" for key, meaning in keys))

    def hint(self) -> str:
        return "Escape: back"


class YesNoScreen(AskScreen):
    """Is dismissed with True or False."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("y", "say(True)", "Yes"), Binding("n", "say(False)", "No")]

    def hint(self) -> str:
        return "y: yes   n: no   Escape: leave it as it is"

    def action_say(self, value: bool) -> None:
        self.dismiss(value)


class ChoiceScreen(AskScreen):
    """Is dismissed with the index of the option."""

    def __init__(self, asked: str, options: list[str], problem: str = "") -> None:
        super().__init__(asked, problem)
        self._options = options

    def answers(self) -> ComposeResult:
        yield OptionList(*(Text(one_line(option)) for option in self._options))

    def hint(self) -> str:
        return "Enter: choose   Escape: leave it as it is"

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_index)


class TextScreen(AskScreen):
    """Is dismissed with a line of text; a secret is not shown. `does` says what Enter does."""

    def __init__(
        self, asked: str, problem: str = "", *, value: str = "", secret: bool = False, does: str = "send"
    ) -> None:
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
    """Return the screen for a handle's question; `answer_text` takes its result."""
    question = fact["question"]
    asked = f"{one_line(fact['tool'])} {one_line(fact['id'])} asks:\n"
    if question["pre_amble"]:
        asked += f"{question['pre_amble']}\n"
    asked += question["text"]
    if question["secret"]:
        return TextScreen(asked, problem, secret=True)
    kind = question["answer_type"]
    if kind == "Boolean":
        return YesNoScreen(asked, problem)
    if isinstance(kind, dict) and "Select" in kind:
        return ChoiceScreen(asked, kind["Select"]["options"], problem)
    default = question["default"]
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
    from keephold.text import to_json

    who = f"{one_line(request['tool'])} {one_line(request['handle_id'] or '')}".strip()
    if request["kind"] == "permission":
        given = to_json(request["arguments"]).decode()
        return YesNoScreen(f"May {who} {request['action'] or 'run'}?\n{given[:_SHOWN]}")
    return YesNoScreen(f"May the result of {who} be shown to the model?\n{str(request['result'])[:_SHOWN]}")
