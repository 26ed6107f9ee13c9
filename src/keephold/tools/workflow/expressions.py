"""Expressions of a workflow: CEL, compiled when the workflow is read, so that an invalid one is refused before the run.

Expressions read and return JSON. They cannot be interrupted, so they are bounded: in length and nesting, in the rounds
of their macros, and in the size of the data they read and return.

A model writes the expressions, so their text is checked before it is compiled: which variables it reads, and how its
data could grow. CEL has no loops, and the library stops at 32 levels and 10,000 rounds of its macros. Only text and
lists that double with every macro remain: `[s].map(a, a + a)` twenty times over is a million times `s`. Counting bounds
that here.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec

from keephold.errors import ToolError

MAX_LENGTH = 2000
"""Characters of an expression."""
MAX_GROWTH = 256
"""How many times larger than its input an expression may make its data, by the estimate of `growth`."""

MACROS = frozenset({"all", "exists", "exists_one", "existsOne", "filter", "map", "optMap", "optFlatMap"})

_TOKEN = re.compile(
    r"(?P<text>[rRbB]{0,2}(?:'''.*?'''|\"\"\".*?\"\"\"|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"))"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<blank>\s+|//[^\n]*)"
    r"|(?P<sign>.)",
    re.DOTALL,
)
_KEY = re.compile(r"'([^'\\]*)'|\"([^\"\\]*)\"")


@dataclass(frozen=True, slots=True)
class Read:
    """The variables that an expression reads; for an object the keys, or None for all of it."""

    names: dict[str, frozenset[str] | None]


def reads(source: str, variables: Sequence[str]) -> Read:
    """Return which of these variables the expression reads. A macro's own variable of that name counts, too."""
    tokens = _tokens(source)
    found: dict[str, set[str] | None] = {}
    for at, (kind, text) in enumerate(tokens):
        if kind != "name" or text not in variables or (at and tokens[at - 1][1] == "."):
            continue
        key = _key(tokens[at + 1 : at + 4])
        keys = found.setdefault(text, set())
        if key is None:
            found[text] = None
        elif keys is not None:
            keys.add(key)
    return Read({name: None if keys is None else frozenset(keys) for name, keys in found.items()})


def growth(source: str) -> float:
    """Return an upper bound of how often one value of the data can be repeated in the result.

    Within one macro a value is repeated by `+` and by the commas of lists and maps; a macro in or behind another
    multiplies.
    """
    tokens = _tokens(source)
    macros = sum(text in MACROS and after == "(" for (_, text), (_, after) in pairwise(tokens))
    repeats = sum(kind == "sign" and text in "+," for kind, text in tokens)
    if not macros:
        return 1 + repeats
    return float((1 + max(0, repeats - macros) / macros) ** macros)


def builds_lists(source: str) -> bool:
    """Whether it makes lists of lists; the library needs the square of the length for that."""
    return any(text in ("map", "filter") and after == "(" for (_, text), (_, after) in pairwise(_tokens(source)))


def _tokens(source: str) -> list[tuple[str, str]]:
    return [(match.lastgroup or "", match[0]) for match in _TOKEN.finditer(source) if match.lastgroup != "blank"]


def _key(after: list[tuple[str, str]]) -> str | None:
    """Return the key behind a variable: `.key`, `["key"]`, or None if it is unknown."""
    match after:
        case [(_, "."), ("name", _), (_, "(")]:
            return None
        case [(_, "."), ("name", key), *_]:
            return key
        case [(_, "."), (_, "?"), ("name", key)]:
            return key
        case [(_, "["), ("text", text), (_, "]")] if (key_match := _KEY.fullmatch(text)) is not None:
            return key_match[1] if key_match[1] is not None else key_match[2]
    return None


VARIABLES = ("input", "data", "context", "vars", "steps", "error")
"""Variables of every expression."""
LOOP_VARIABLES = ("item", "index")
"""Further variables of an expression inside a loop."""
MAX_BYTES = 1024 * 1024
"""Bytes of JSON that an expression reads or returns."""
MAX_LIST = 2000
"""Elements of a list that `map` and `filter` may process and `split` may return: a tenth of a second."""

_REASON = re.compile(r"^(?:[A-Z_]+: )?(?:ERROR: <input>:(\d+):(\d+): )?(.*?)(?: \[[A-Z_]+\])?$")
_NO_FIELD = "Applying SELECT to non-message type"


class BadExpression(ValueError):
    """The expression is invalid; the message says why."""


class Expression:
    """A compiled expression."""

    __slots__ = ("_builds", "_program", "reads", "source")

    def __init__(self, source: str, *, in_loop: bool = False) -> None:
        """Raises `BadExpression`."""
        if len(source) > MAX_LENGTH:
            raise BadExpression(f"an expression has at most {MAX_LENGTH:,} characters, this one {len(source):,}")
        if growth(source) > MAX_GROWTH:
            raise BadExpression(
                "its macros (map, filter, …) could multiply what they are given too often; use fewer of them, or fewer "
                "`+` and `,` in them, or several steps"
            )
        names = VARIABLES + LOOP_VARIABLES if in_loop else VARIABLES
        self.source = source
        self._builds = builds_lists(source)
        self.reads = reads(source, names)
        """The variables it reads, as far as its text shows."""
        try:
            self._program = _environment(in_loop).compile(source)
        except Exception as error:  # any exception of the library
            raise BadExpression(_refusal(str(error), names)) from None

    def __repr__(self) -> str:
        return f"Expression({self.source!r})"

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Return its value as JSON. `values` has the variables it reads. Raises `ToolError`."""
        try:
            read = len(msgspec.json.encode(values))
        except Exception as error:  # not JSON, not Unicode, too deep: the library would crash
            raise self._failed(f"what it reads is not JSON ({error})") from None
        if read > MAX_BYTES:
            raise self._failed(f"it reads more than 1 MiB ({read:,} bytes); name the part that is needed")
        if self._builds and read > MAX_LIST and _longest(values) > MAX_LIST:
            raise self._failed(f"`map` and `filter` go over lists of at most {MAX_LIST:,} elements; use a `loop` step")
        try:
            value = self._program.eval(data=values)
            kind, made = value.type().name(), value.plain_value()
        except Exception as error:
            raise self._failed(_words(str(error))) from None
        if kind == "ERROR":
            raise self._failed(_words(made))
        return self._json(made)

    def _json(self, made: Any) -> Any:
        try:
            made = _plain(made)
        except TypeError as error:
            raise self._failed(f"it gives {error}, which is not JSON") from None
        if type(made) in _SMALL:
            return made
        if (size := len(msgspec.json.encode(made))) > MAX_BYTES:
            raise self._failed(f"it gives more than 1 MiB ({size:,} bytes)")
        return made

    def _failed(self, why: str) -> ToolError:
        return ToolError(f"the expression `{shortened(self.source)}` failed: {why}")


def shortened(text: str, length: int = 120) -> str:
    """Return text for a message."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


@cache
def _environment(in_loop: bool) -> Any:
    from cel_expr_python import cel  # fifty megabytes: loaded when there is a workflow
    from cel_expr_python.ext import ext_optional

    kinds = {"string": cel.Type.STRING, "int": cel.Type.INT, "strings": cel.Type.List(cel.Type.STRING)}
    functions: dict[str, list[Any]] = {}
    for name, takes, gives, function in _FUNCTIONS:
        id = "_".join(("keephold", name, *takes))
        overload = cel.Overload(id, kinds[gives], [kinds[each] for each in takes], True, function)
        functions.setdefault(name, []).append(overload)
    return cel.NewEnv(
        variables=dict.fromkeys(VARIABLES + LOOP_VARIABLES if in_loop else VARIABLES, cel.Type.DYN),
        extensions=[ext_optional.ExtOptional()],
        functions=[cel.FunctionDecl(name, overloads) for name, overloads in functions.items()],
    )


# The library has an extension with these, and more. There `join` and `replace` make text of any length.


def _join(parts: list[str], between: str = "") -> str:
    if any(not isinstance(part, str) for part in parts):
        raise TypeError("`join` takes strings; make them with `map(x, string(x))`")
    _check(sum(map(len, parts)) + len(between) * len(parts))
    return between.join(parts)


def _split(text: str, by: str) -> list[str]:
    if (text.count(by) if by else len(text)) >= MAX_LIST:
        raise ValueError(f"`split` gives at most {MAX_LIST:,} parts")
    return text.split(by) if by else list(text)


def _replace(text: str, old: str, new: str) -> str:
    _check(len(text) + text.count(old) * len(new))
    return text.replace(old, new)


def _check(length: int) -> None:
    if length > MAX_BYTES:
        raise ValueError("text of more than 1 MiB")


_Function = Callable[..., Any]
_FUNCTIONS: tuple[tuple[str, tuple[str, ...], str, _Function], ...] = (
    ("join", ("strings",), "string", _join),
    ("join", ("strings", "string"), "string", _join),
    ("lowerAscii", ("string",), "string", lambda text: text.encode().lower().decode()),
    ("replace", ("string", "string", "string"), "string", _replace),
    ("split", ("string", "string"), "strings", _split),
    ("substring", ("string", "int"), "string", lambda text, begin: text[max(0, begin) :]),
    ("substring", ("string", "int", "int"), "string", lambda text, begin, end: text[max(0, begin) : max(0, end)]),
    ("trim", ("string",), "string", str.strip),
    ("upperAscii", ("string",), "string", lambda text: text.encode().upper().decode()),
)
FUNCTIONS = tuple(sorted({name for name, *_ in _FUNCTIONS}))
"""Functions of text besides those of CEL itself."""

_SMALL = (bool, int, float, type(None))


def _plain(value: Any) -> Any:
    """Convert a value to JSON. Raises `TypeError` with its type."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if math.isfinite(value):
                return value
            raise TypeError(f"a number that is {value}")
        case list():
            return [_plain(each) for each in value]
        case dict():
            if any(not isinstance(key, str) for key in value):
                raise TypeError("a map with keys that are not strings")
            return {key: _plain(each) for key, each in value.items()}
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case timedelta():
            return f"{value.total_seconds():.15g}s"
    raise TypeError(f"a {'bytes' if isinstance(value, bytes | bytearray) else type(value).__name__} value")


def _longest(value: Any) -> int:
    """Return the length of the longest list in it."""
    match value:
        case list():
            return max(len(value), max(map(_longest, value), default=0))
        case Mapping():
            return max(map(_longest, value.values()), default=0)
    return 0


def _refusal(text: str, names: tuple[str, ...]) -> str:
    """Return the library's first reason why it cannot be compiled, and its position."""
    if "recursion" in text:
        return "it is nested too deeply: 32 levels are the most, and a chain of operators or of dots counts"
    reason = _words(text)
    if reason.startswith("undeclared reference"):
        reason = reason.replace(" (in container '')", "")
        return f"{reason}. Known here are {', '.join(names)}, the functions of CEL, and {', '.join(FUNCTIONS)}"
    return reason


def _words(text: str) -> str:
    line = text.split("\n", 1)[0].strip()
    match = _REASON.match(line)
    if match is None:
        return line
    row, column, reason = match.groups()
    if _NO_FIELD in reason:
        reason = "a field is read of something that is no object"
    elif "Iteration budget" in reason:
        reason = "its macros go more than 10,000 rounds"
    elif "Unable to convert function return value" in reason:
        reason = "it gives an optional; end it with `orValue(…)`"
    if column is None:
        return reason
    return f"{reason}, at character {column}" if row == "1" else f"{reason}, at line {row}, character {column}"
