"""Templates of the configuration, and the command lines made from them (F, F1, F2, K3).

A template is Jinja text in a sandbox. It sees `tool` and `context`, reads no file and changes nothing. An unknown name
is an error, never an empty text. A string is inserted unchanged, a boolean as `true` or `false`, a number as its
digits, a list or a table as compact JSON. `null` is an error too: a template that means "nothing" says so with
`default("", true)`.

A `CommandLine` is compiled once and rendered for each call into an argv. Words are split before anything is rendered,
so a value is always one argument or part of one. In a script for a shell it is a parameter (see `shell`).
"""

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Self

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, Undefined, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing

from keephold.errors import ConfigError, ToolError
from keephold.tools.base import Invocation
from keephold.tools.shell import Marks, UnplaceableValue, find_scripts, pass_values

Values = Mapping[str, Any]
"""The variables of templates: `{"tool": …, "context": …}`."""

ARGUMENT_LIMIT = 128 * 1024
"""The size from which Linux refuses an argument, its final NUL included (F1)."""

_MARKS = " marks"
"""The marks of a rendering, under a name that no template can write."""


def values_of(
    invocation: Invocation,
    *,
    answers: Values | None = None,
    options: Values | None = None,
    root: str = "",
    cwd: str = "",
) -> dict[str, Any]:
    """Return the data of a call that templates and the tool's process see (F1)."""
    return {
        "tool": {
            "name": invocation.tool.name,
            "arguments": invocation.arguments,
            "answers": dict(answers or {}),
            "options": dict(options or {}),
        },
        "context": {
            "action": "run",
            "root": root,
            "cwd": cwd,
            "conversation_id": invocation.conversation,
            "turn_id": invocation.turn,
            "call_id": invocation.call_id,
        },
    }


class _Missing(StrictUndefined):
    """An unknown name, with an error that lists the known ones."""

    __slots__ = ()

    @property
    def _undefined_message(self) -> str:
        name, of = self._undefined_name, self._undefined_obj
        if of is missing:
            return f"`{name}` is unknown; a template sees `tool` and `context`"
        if not isinstance(of, dict):
            return super()._undefined_message
        known = ", ".join(f"`{key}`" for key in of) or "nothing"
        return (
            f"`{name}` is missing, there is {known}; make the parameter required, give it a default, "
            'or write `default("")` or `is defined` in the template'
        )


class _Environment(ImmutableSandboxedEnvironment):
    """A dot names a key and nothing else: an argument may be called `items`, and then `arguments.items` is that
    argument.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.getitem(obj, attribute) if isinstance(obj, dict) else super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, dict):
            return obj[argument] if argument in obj else self.undefined(obj=obj, name=argument)
        return super().getitem(obj, argument)


def _text(value: Any) -> str:
    match value:
        case str():
            return str(value)
        case bool():
            return "true" if value else "false"
        case int() | float() | Undefined():
            return str(value)
        case list() | tuple() | dict():
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        case None:
            raise TypeError('a value is null; write `default("", true)` behind it to put nothing')
    raise TypeError(f"a {type(value).__name__} is not text; write `| list` or `| join` behind it")


@pass_context  # it also keeps Jinja from rendering constants at compile time, before there are marks
def _put(context: Context, value: Any) -> str:
    text = _text(value)
    marks = context.get(_MARKS)
    return text if marks is None else marks.put(text)


# Not optimized: Jinja would evaluate constants such as `"a" * 10**10` in a file that is checked before it is trusted.
_environment = _Environment(undefined=_Missing, finalize=_put, keep_trailing_newline=True, optimized=False)


class Template:
    """One text of the configuration; `where` is its setting, for messages."""

    def __init__(self, text: str, where: str) -> None:
        self.text = text
        self.where = where
        self.optional = False
        """It has a `{% … %}` block: as an element of a command, it is left out when it renders to nothing."""
        self._compiled = None
        if "\0" in text:
            raise ConfigError([f"{where}: there is a NUL character in it, which no command can be given"])
        if "{{" not in text and "{%" not in text and "{#" not in text:
            return
        try:
            self.optional = any(kind == "block_begin" for _, kind, _ in _environment.lex(text))
            self._compiled = _environment.from_string(text)
        except TemplateSyntaxError as error:
            hint = "; `{#` begins a comment of the template: write {{ '{#' }} for it" if "{#" in text else ""
            raise ConfigError([f"{where}: not a template: {error.message}{hint}"]) from error

    @property
    def fixed(self) -> bool:
        """Whether there is nothing to render."""
        return self._compiled is None

    def render(self, values: Values, marks: Marks | None = None) -> str:
        """Return the text for these values, or with marks for them. Raises `ToolError` (`template_failed`)."""
        if self._compiled is None:
            return self.text
        try:
            return self._compiled.render({**values, _MARKS: marks})
        except TemplateError as error:
            self.fail(error.message or type(error).__name__)
        except Exception as error:
            self.fail(str(error) or type(error).__name__)

    def fail(self, reason: str) -> NoReturn:
        raise ToolError(f"{self.where}: {reason}", code="template_failed")


class CommandLine:
    """A configured command, ready to be rendered into an argv."""

    def __init__(self, elements: Sequence[Template]) -> None:
        self._elements = tuple(elements)

    @classmethod
    def parse(cls, value: Any, where: str) -> Self:
        """Make one from a list of words, a string, or a table `{program, args, shell}`. Raises `ConfigError`."""
        match value:
            case str():
                return cls(_words(value, where))
            case list() | tuple():
                return cls(_elements(value, where))
            case Mapping():
                return cls(_table(value, where))
        raise ConfigError([f"{where}: a command is a list of words, a string, or a table {{ program, args, shell }}"])

    def render(self, values: Values) -> list[str]:
        """Return the argv for these values. Raises `ToolError` (`template_failed`)."""
        kept = []
        for element in self._elements:
            text = element.render(values)
            if text or not element.optional:
                kept.append((element, text))
        argv = [text for _, text in kept]
        if not argv:
            self._elements[0].fail("the command is empty for this call; its first word is the program to run")
        origin = [element for element, _ in kept]
        # From the last to the first: each script counts the elements behind it, appended values included.
        for script in reversed(find_scripts(argv)):
            element = origin[script.text]
            if not element.fixed:
                marks = Marks()
                marked = element.render(values, marks)
                try:
                    pass_values(argv, script, marked, marks)
                except UnplaceableValue as error:
                    element.fail(str(error))
        for at, argument in enumerate(argv):
            _check(argument, origin[min(at, len(origin) - 1)])
        return argv


def _check(argument: str, element: Template) -> None:
    if "\0" in argument:
        element.fail("a value has a NUL character, which no argument can hold; send such data to the stdin of the tool")
    try:
        size = len(os.fsencode(argument))
    except UnicodeEncodeError:
        element.fail("a value has half of a surrogate pair, which is not text; send whole characters")
    if size >= ARGUMENT_LIMIT:
        element.fail(
            f"an argument is {size} bytes and may be at most {ARGUMENT_LIMIT - 1} (128 KiB); "
            "the tool finds every argument of the call, of any size, in KEEPHOLD_CALL or KEEPHOLD_CALL_FILE"
        )


def _elements(words: Sequence[Any], where: str) -> list[Template]:
    problems = [
        f'{where}[{at}]: each part of a command is a string; write "{word}"'
        for at, word in enumerate(words)
        if not isinstance(word, str)
    ]
    if not words or words[0] == "":
        problems.append(f"{where}: the command is empty; its first word is the program to run")
    if problems:
        raise ConfigError(problems)
    return [Template(word, f"{where}[{at}]") for at, word in enumerate(words)]


def _table(table: Mapping[str, Any], where: str) -> list[Template]:
    program, args, shell = table.get("program"), table.get("args", []), table.get("shell", False)
    problems = [
        f"{where}.{key}: unknown key; a command has `program`, `args` and `shell`"
        for key in table
        if key not in ("program", "args", "shell")
    ]
    if not isinstance(program, str) or not program:
        problems.append(f"{where}.program: the program to run is missing, a string")
    if not isinstance(args, list | tuple) or not all(isinstance(arg, str) for arg in args):
        problems.append(f"{where}.args: the arguments are a list of strings")
    if not isinstance(shell, bool):
        problems.append(f"{where}.shell: true or false")
    if problems:
        raise ConfigError(problems)
    if shell:
        return [Template("sh", where), Template("-c", where), Template(" ".join([str(program), *args]), where)]
    return [
        Template(str(program), f"{where}.program"),
        *(Template(arg, f"{where}.args[{at}]") for at, arg in enumerate(args)),
    ]


_TAG = re.compile(
    r"""\{\#.*?\#\}                                          # a comment
      | (?: \{\{ | \{% ) (?: "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' | [^"'] )*? (?: \}\} | %\} )""",
    re.DOTALL | re.VERBOSE,
)
_TAG_PLACE = re.compile("\0(\\d+)\0")


def _words(command: str, where: str) -> list[Template]:
    """Split a string into words as a shell would, with each `{{ … }}` and `{% … %}` kept whole."""
    tags: list[str] = []

    def take(tag: re.Match[str]) -> str:
        tags.append(tag[0])
        return f"\0{len(tags) - 1}\0"

    if "\0" in command:
        raise ConfigError([f"{where}: there is a NUL character in it, which no command can be given"])
    try:
        words = shlex.split(_TAG.sub(take, command))
    except ValueError as error:
        raise ConfigError([f"{where}: cannot be split into words: {error}; a quote needs its counterpart"]) from error
    if not words or words[0] == "":
        raise ConfigError([f"{where}: the command is empty; its first word is the program to run"])
    elements = []
    for word in words:
        whole = _TAG_PLACE.sub(lambda place: tags[int(place[1])], word)
        try:
            elements.append(Template(whole, f"{where}, word `{whole}`"))
        except ConfigError as error:
            hint = "each word is a template of its own, so a block ends in the word that it begins in"
            raise ConfigError([f"{problem}; {hint}" for problem in error.problems]) from error
    return elements
