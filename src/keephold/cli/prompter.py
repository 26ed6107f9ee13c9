"""Asks the user at the terminal (P, Q): may a call run, may the model see its result, what is the answer.

A prompt is a panel, a question and a key; arguments and results are edited in the user's own editor. Characters
that a terminal would obey or not show are escapes (K4), and a typed secret is never shown. A panel that does not fit
must be viewed before it is approved. Keys that were meant for something else are dropped: until none was pressed for a
moment, the question is not asked.
"""

import asyncio
import io
import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, NoReturn

from keephold.cli.keyboard import Gone, KeyPress, LineEditor, Row, Tty, open_tty
from keephold.cli.printing import one_line, printable
from keephold.handles.form import Form, fields_of, label_of, options_of, problem_of, read_field
from keephold.handles.question import Question, form_of, select_options
from keephold.text import exact, isolated, isolated_json, readable_json, to_utf8
from keephold.turn.prompts import (
    Answer,
    Approved,
    AskQuestion,
    Decision,
    DeliverResult,
    Denied,
    Dismissed,
    Edited,
    Prompt,
    RunTool,
    Until,
    lasting,
)

PAUSE_SECS = 1.0
"""Without a key for this long, the user is not typing."""
QUIET_SECS = 0.7
"""After a prompt has appeared, it takes no key until none was pressed for this long."""

_STOP_TYPING = "Waiting for you to stop typing; keys still go to your line."
_HEAD_LINES, _TAIL_LINES = 30, 10
_HEAD_CHARACTERS, _TAIL_CHARACTERS = 300, 80
_NARROWEST, _WIDEST = 20, 100
"""Columns of a panel, however narrow or wide the terminal is."""

_REST = lasting("turn")
_RUN = {
    "y": "yes",
    "Y": f"yes, and to this tool {_REST}",
    "n": "no",
    "N": f"no, and to this tool {_REST}",
    "r": "no, for a reason",
    "e": "edit the arguments",
    "v": "view all of it",
}
_RUN_EDITED = {key: _RUN[key] for key in "ynNrev"}
_DELIVER = {"y": "yes", "n": "no", "e": "edit the text", "v": "view all of it"}
_ANSWER = {
    "y": "yes",
    "Y": f"yes, and to this question {_REST}",
    "n": "no",
    "N": f"no, and to this question {_REST}",
}
_YES_OR_NO = {"y": "yes", "n": "no"}


class _Left(Exception):
    """The user cancelled the prompt."""


class _NotOpened(Exception):
    """The editor or the pager failed; the text says why."""


class Typing(NamedTuple):
    """The line that the user is typing when a prompt appears, and the handler of its keys."""

    line: LineEditor
    press: Callable[[KeyPress], None]


class _Part(NamedTuple):
    """A piece of a panel. The style is rich's, or `json`."""

    text: str
    style: str = ""


class TerminalPrompter:
    """A prompter (`Runtime(prompter=…)`) that asks the user at `/dev/tty`.

    It shows one prompt at a time, and never blocks the event loop. Ctrl-C, Ctrl-D and Escape cancel the prompt, not the
    process. The terminal is restored when the coroutine ends or is cancelled. If the user is `typing` something else,
    keys go to that line until there is a pause: only then do they answer.
    """

    who = "the terminal"

    def __init__(self, tty: Tty) -> None:
        self._tty = tty
        self._plain = tty.dumb or bool(os.environ.get("NO_COLOR"))
        self._typing: Typing | None = None
        self._appeared = False

    async def __call__(self, prompt: Prompt, typing: Typing | None = None) -> Decision:
        """Show the prompt and return the decision: `Dismissed` also if the terminal goes away."""
        self._typing, self._appeared = typing, False
        with self._tty.taken():
            try:
                match prompt:
                    case RunTool():
                        return await self._run_tool(prompt)
                    case DeliverResult():
                        return await self._deliver_result(prompt)
                    case AskQuestion():
                        return await self._ask_question(prompt)
            except _Left:
                self._tty.write("\nCancelled.\n")
                return Dismissed()
            except Gone:
                return Dismissed("the terminal went away")
            except asyncio.CancelledError:
                self._tty.write("\nWithdrawn: nobody needs the answer any more.\n")
                raise

    def close(self) -> None:
        """Restore the terminal, also during a prompt, and close it."""
        self._tty.close()

    # The prompts

    async def _run_tool(self, prompt: RunTool) -> Decision:
        arguments, problem, viewed = prompt.arguments, prompt.problem, False
        if prompt.edit and (problem is None or await self._edit_again(problem)):
            arguments, problem = await self._edit_arguments(arguments)
            viewed = problem is None
        while True:
            edited = not _same(arguments, prompt.arguments)
            body = readable_json(arguments)
            shown = self._problem(problem) + self._call(prompt, body)
            question, choices = ("Run it with these arguments?", _RUN_EDITED) if edited else ("Run it?", _RUN)
            choices = _lasting(choices, prompt.until)
            key = await self._choose(shown, question, choices, unseen="" if viewed else self._unseen(shown, body))
            match key:
                case "y" | "Y":
                    return Edited(arguments) if edited else Approved(remember=key == "Y")
                case "n" | "N":
                    return Denied(remember=key == "N")
                case "r":
                    self._tty.write("Why not?\n")  # keys typed already belong to the reason
                    return Denied(await self._type() or None)
                case "v":
                    problem = await self._view(body)
                case "e":
                    arguments, problem = await self._edit_arguments(arguments)
            viewed |= problem is None

    async def _deliver_result(self, prompt: DeliverResult) -> Decision:
        original = text = exact(prompt.result)  # what the user sees is what the user edits
        problem, viewed = None, False
        if prompt.edit:
            text, problem = await self._edit_result(text)
            viewed = problem is None
        while True:
            title = f"{'Error' if prompt.is_error else 'Result'} of {named(prompt.tool, prompt.id)}"
            body = exact(text)
            part = _Part(isolated(_shortened(body)), "red" if prompt.is_error else "")
            shown = self._problem(problem) + self._panel(title, part)
            unseen = "" if viewed else self._unseen(shown, body)
            key = await self._choose(shown, "May the model see it?", _DELIVER, unseen=unseen)
            match key:
                case "y":
                    return Approved() if text == original else Edited(text)
                case "n":
                    return Denied()
                case "v":
                    problem = await self._view(body)
                case "e":
                    text, problem = await self._edit_result(text)
            viewed |= problem is None

    async def _ask_question(self, prompt: AskQuestion) -> Decision:
        question = prompt.question
        if question.answer_type == "Boolean":
            return await self._yes_or_no(prompt)
        parts = [_Part(isolated(printable(question.pre_amble)), "dim")] if question.pre_amble else []
        parts.append(_Part(isolated(printable(question.text)), "bold"))
        shown = self._problem(prompt.problem) + self._panel(f"{named(prompt.tool, prompt.id)} asks", *parts)
        form, options = form_of(question), select_options(question)
        if form is not None:
            return Answer(await self._fill_in(shown, form))
        return Answer(await self._answer(shown, question) if options is None else await self._select(shown, question))

    async def _yes_or_no(self, prompt: AskQuestion) -> Decision:
        """Ask a question whose yes may allow something: as for a call, all of it was on the screen before (P7)."""
        question, problem, viewed = prompt.question, prompt.problem, False
        default = ("y" if question.default else "n") if isinstance(question.default, bool) else None
        bodies = [exact(question.pre_amble), exact(question.text)] if question.pre_amble else [exact(question.text)]
        parts = [_Part(isolated(_shortened(body)), "dim") for body in bodies]
        parts[-1] = parts[-1]._replace(style="bold")
        while True:
            shown = self._problem(problem) + self._panel(f"{named(prompt.tool, prompt.id)} asks", *parts)
            unseen = "" if viewed else self._unseen(shown, *bodies)
            choices = _lasting(_ANSWER, prompt.until) if prompt.may_remember else _YES_OR_NO
            if unseen or viewed:
                choices = {**choices, "v": _RUN["v"]}
            key = await self._choose(
                shown, "Yes or no?", choices, default=default, secret=question.secret, unseen=unseen
            )
            if key != "v":
                return Answer(key in "yY", remember=key in "YN")
            problem = await self._view("\n\n".join(bodies))
            viewed |= problem is None

    async def _answer(self, shown: str, question: Question) -> str:
        default = question.default if isinstance(question.default, str) else ""
        if default and question.secret:
            shown += "Enter alone gives the default.\n"
        elif default:
            shown += f"Enter alone gives: {one_line(default, _WIDEST)}\n"
        await self._show(shown)
        return await self._type(secret=question.secret) or default

    async def _fill_in(self, shown: str, form: Form) -> dict[str, Any]:
        """Ask for the fields of a form, one after the other. An empty line leaves a field out, or takes its default."""
        answer: dict[str, Any] = {}
        fields = fields_of(form)
        for at, (name, field) in enumerate(fields, 1):
            required = name in form["required"]
            lines = [f"{at} of {len(fields)}: {label_of(name, field, required)}", exact(field.get("description", ""))]
            lines += [f"  {number}  {exact(title)}" for number, (_, title) in enumerate(options_of(field) or (), 1)]
            if "default" in field:
                lines.append(f"Enter alone gives: {one_line(json.dumps(field['default']), _WIDEST)}")
            head, problem = isolated("\n".join(filter(None, lines))) + "\n", None
            while name not in answer:
                if at == 1 and problem is None:
                    await self._show(shown + head)
                else:
                    self._tty.write(self._problem(problem) + head)  # keys typed already belong to this field
                text = await self._type()
                if not text.strip() and "default" in field:
                    answer[name] = field["default"]
                elif not text.strip() and not required:
                    break
                else:
                    value = read_field(field, text)
                    problem = problem_of({"properties": {name: field}, "required": ()}, {name: value})
                    if problem is None:
                        answer[name] = value
        return answer

    # Parts of a prompt

    def _call(self, prompt: RunTool, body: str) -> str:
        words = [one_line(prompt.action or ""), f"handle {named(prompt.id)}" if prompt.id is not None else ""]
        parts = [_Part(", ".join(filter(None, words)), "dim")] if any(words) else []
        return self._panel(named(prompt.tool), *parts, _Part(isolated_json(_shortened(body)), "json"))

    def _unseen(self, shown: str, *bodies: str) -> str:
        """Say how much of the bodies is not on the screen. Nothing if all of it is."""
        above = max(shown.count("\n") + 2 - self._tty.rows, 0)
        if not above and all(_shortened(body) == body for body in bodies):
            return ""
        scrolled = f" ({above} of its rows have scrolled away)" if above else ""
        return f"Not all of it is on the screen{scrolled}: press v to view all of it before you approve it.\n"

    def _problem(self, problem: str | None) -> str:
        return "" if problem is None else "\n" + self._drawn(_Part(printable(problem), "yellow"))

    def _panel(self, title: str, *parts: _Part) -> str:
        return "\n" + self._drawn(*parts, title=title)

    def _drawn(self, *parts: _Part, title: str | None = None) -> str:
        """Draw the parts, in a box if there is a title. Nothing in them is markup."""
        from rich import box  # rich is slow to import, and needed only for prompts
        from rich.console import Console, Group
        from rich.highlighter import JSONHighlighter
        from rich.panel import Panel
        from rich.text import Text

        texts = [Text(part.text, style="" if part.style == "json" else part.style) for part in parts]
        for part, text in zip(parts, texts, strict=True):
            if part.style == "json":
                JSONHighlighter().highlight(text)
        out = io.StringIO()
        console = Console(
            file=out, width=min(max(self._tty.columns, _NARROWEST), _WIDEST), force_terminal=not self._plain,
            color_system=None if self._plain else "auto", legacy_windows=False,
        )  # fmt: skip
        if title is None:
            console.print(*texts, sep="\n")
        else:
            edge = box.ASCII if self._tty.dumb else box.ROUNDED
            console.print(Panel(Group(*texts), title=Text(title), title_align="left", box=edge))
        return out.getvalue()

    # The user's answers

    async def _show(self, shown: str, question: str = "") -> None:
        """Show a prompt. The keys that follow answer it."""
        typing, self._typing, self._appeared = self._typing, None, True
        if typing is None:
            await self._tty.show(shown)
            await self._quiet()
            self._tty.write(question)
            return
        notice = _Part(_STOP_TYPING[: max(self._tty.columns - 1, 0)], "yellow")  # one row, to be taken away again
        await self._tty.show(shown + self._drawn(notice), keep=True)
        row = Row(self._tty, secret=False)
        row.draw(typing.line.text, typing.line.at)
        while (key := await self._tty.key_within(PAUSE_SECS)) is not None:
            if key.name == "C-c":
                raise _Left
            typing.press(key)
            row.draw(typing.line.text, typing.line.at)
        self._tty.write(f"\r\x1b[K\x1b[A\x1b[K{question}")

    async def _quiet(self) -> None:
        """Drop keys until none was pressed for a moment: they were meant for what was there before."""
        while (key := await self._tty.key_within(QUIET_SECS)) is not None:
            if key.name == "C-c":
                raise _Left

    async def _choose(
        self,
        shown: str,
        question: str,
        choices: Mapping[str, str],
        *,
        default: str | None = None,
        secret: bool = False,
        unseen: str = "",
    ) -> str:
        """Return one of the keys. Pasted text presses none, because it was not meant for this. If a part is `unseen`,
        which is a sentence about it, nothing is approved."""
        enter = f", Enter: {choices[default]}" if default is not None and not secret else ""
        line = f"{unseen}{question} [{'/'.join(choices)}/?{enter}] "
        await self._show(shown, line)
        while True:
            key = await self._key()
            chosen = default if key.name == "enter" else key.text if key.name == "text" else None
            if chosen == "?":
                legend = "".join(f"  {key}  {meaning}\n" for key, meaning in choices.items())
                self._tty.write(f"\n{legend}  Esc, Ctrl-C and Ctrl-D cancel the prompt.\n{line}")
            elif unseen and chosen in ("y", "Y") and chosen in choices:
                self._tty.write(f"\n{line}")
            elif chosen is not None and chosen in choices:
                self._tty.write("\n" if secret else f"{choices[chosen]}\n")
                return chosen

    async def _select(self, shown: str, question: Question) -> str:
        """Return the option that the user chooses by number or arrow keys, and Enter."""
        options = select_options(question)
        assert options is not None
        listed = "".join(f"  {number}  {named(option)}\n" for number, option in enumerate(options, start=1))
        chosen = _Option(options.index(question.default) + 1 if question.default in options else 0)
        row = Row(self._tty, secret=question.secret)
        await self._show(f"{shown}{listed}", "A number or the arrow keys, then Enter.\n")
        while True:
            at = chosen.number
            row.draw(f"{at}  {one_line(options[at - 1])}" if at else "")
            key = await self._key()
            if key.name == "enter" and at:
                self._tty.write("\n")
                return options[at - 1]
            chosen = chosen.after(key, len(options))

    async def _type(self, *, secret: bool = False) -> str:
        """Read a line. A secret is not shown, not even its length."""
        line, row = LineEditor(), Row(self._tty, secret=secret)
        while True:
            row.draw(line.text, line.at)
            key = await (self._tty.key() if line.text else self._key())
            if key.name == "enter":
                self._tty.write("\n")
                return line.text
            if key.name in ("escape", "C-c"):
                raise _Left
            line.press(key)

    async def _key(self) -> KeyPress:
        key = await self._tty.key()
        if key.name in ("escape", "C-c", "C-d"):
            raise _Left
        return key

    # The user's programs

    async def _edit_again(self, problem: str) -> bool:
        return await self._choose(self._problem(problem), "Edit again?", _YES_OR_NO) == "y"

    async def _edit_arguments(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
        """Return the edited arguments; if editing failed, the old ones and the error."""
        text = readable_json(arguments) + "\n"
        while True:
            try:
                text = await self._edit(text, "arguments.json")
                return _arguments(text), None
            except _NotOpened as error:
                return arguments, str(error)
            except ValueError as error:
                if not await self._edit_again(f"These are not arguments: {error}."):
                    return arguments, None

    async def _edit_result(self, text: str) -> tuple[str, str | None]:
        try:
            edited = await self._edit(text, "result.txt")
        except _NotOpened as error:
            return text, str(error)
        # Many editors end a file with a newline whether or not it had one.
        return edited if text.endswith("\n") else edited.removesuffix("\n"), None

    async def _edit(self, text: str, name: str) -> str:
        """Return a text after the user has edited it."""
        return await self._open(_program(("VISUAL", "EDITOR"), ("editor", "nano", "vi")), text, name)

    async def _view(self, text: str) -> str | None:
        """Show a text in the user's pager. Return the error, if any."""
        try:
            await self._open(_program(("PAGER",), ("less", "more")), isolated(text), "result.txt")
        except _NotOpened as error:
            return str(error)
        return None

    async def _open(self, argv: list[str], text: str, name: str) -> str:
        """Open a text in a program, and return what it is then."""
        with TemporaryDirectory(prefix="keephold-") as directory:  # readable by the user only
            path = Path(directory, name)
            _write(path, text)
            await self._lend([*argv, str(path)])
            return _read(path)

    async def _lend(self, argv: list[str]) -> None:
        opening = f"\nOpen in {one_line(argv[0])} …\n"
        await (self._tty.show(opening) if self._appeared else self._show(opening))
        try:
            code = await self._tty.lend(argv)
        except OSError as error:
            raise _NotOpened(f"`{argv[0]}` cannot be started: {error.strerror}.") from error
        if code != 0:
            how = f"with exit code {code}" if code > 0 else f"by signal {-code}"
            raise _NotOpened(f"`{argv[0]}` ended {how}; nothing was changed.")


class _Option(NamedTuple):
    """The chosen option: the first is 1, 0 means none."""

    number: int
    typed: bool = False
    """Whether the number was typed, so that another digit may follow."""

    def after(self, key: KeyPress, count: int) -> "_Option":
        """Return the choice after this key."""
        match key.name:
            case "down":
                return _Option(self.number % count + 1)
            case "up":
                return _Option((self.number - 2) % count + 1 if self.number else count)
            case "backspace":
                return _Option(0)
            case "text" if key.text in "0123456789":
                for number in (self.number * 10 + int(key.text) if self.typed else 0, int(key.text)):
                    if 1 <= number <= count:
                        return _Option(number, typed=True)
        return self


def open_prompter() -> TerminalPrompter | None:
    """Return a prompter at this process's terminal; None if it has none, if stderr goes elsewhere, or if it is a
    background job."""
    if not os.isatty(2):
        return None
    tty = open_tty()
    return None if tty is None else TerminalPrompter(tty)


def named(*names: str | None) -> str:
    """Return names in a line of text, those that are not None."""
    return " ".join(isolated(one_line(name)) for name in names if name is not None)


def _lasting(choices: dict[str, str], until: Until) -> dict[str, str]:
    """Return the choices with words that say how long a remembered decision lasts."""
    if until == "turn":
        return choices
    return {key: meaning.replace(_REST, f"in this conversation {lasting(until)}") for key, meaning in choices.items()}


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON. Python treats `true` and `1` as equal."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _arguments(text: str) -> dict[str, Any]:
    """Parse the arguments that the user wrote. Raise `ValueError` that says what is wrong."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        value = json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError("they are nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("they must be a JSON object, {…}")
    return value


def _shortened(text: str) -> str:
    """Return the head and the tail of a long text, and of each long line, with the length of the gap."""
    lines = text.split("\n")
    if (missing := len(lines) - _HEAD_LINES - _TAIL_LINES) > 1:
        lines[_HEAD_LINES:-_TAIL_LINES] = [f"… {missing} lines left out: v shows all …"]
    return "\n".join(map(_shortened_line, lines))


def _shortened_line(line: str) -> str:
    missing = len(line) - _HEAD_CHARACTERS - _TAIL_CHARACTERS
    if missing <= _TAIL_CHARACTERS:
        return line
    return f"{line[:_HEAD_CHARACTERS]} … {missing} characters left out: v shows all … {line[-_TAIL_CHARACTERS:]}"


def _program(variables: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the program that one of the variables names, or the first of the others that is installed."""
    for name in variables:
        try:
            argv = shlex.split(os.environ.get(name, ""))
        except ValueError as error:
            raise _NotOpened(f"${name} cannot be read: {error}.") from error
        if argv:
            return argv
    for name in others:
        if shutil.which(name):
            return [name]
    raise _NotOpened(f"No program for it was found ({', '.join(others)}): set {variables[-1]} to one.")


def _write(path: Path, text: str) -> None:
    path.write_bytes(to_utf8(text))


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise _NotOpened(f"The edited text cannot be read: {error}.") from error
