"""CEL, the language of a workflow's expressions, compiled and evaluated. A worker process runs this (`worker.py`).

Expressions read and return JSON. A model writes them, and the library cannot be interrupted, so the worker's memory and
time are limited. Most limits here are counted instead: a counted limit has a better message, and a replay reaches it at
the same place. The library itself stops at 32 levels and at 10,000 rounds of its macros.

The module imports almost nothing, so that the worker starts quickly.
"""

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec

MAX_LENGTH = 2000
"""Characters of an expression."""
MAX_BYTES = 1024 * 1024
"""Bytes of JSON that an expression reads or returns."""
MAX_STEP_BYTES = 4 * MAX_BYTES
"""Bytes that the expressions of a step read or return together."""
MAX_LIST = 2000
"""Elements of a list that `map` and `filter` may process and `split` may return: a tenth of a second."""
VARIABLES = ("input", "data", "context", "vars", "steps", "error")
"""Variables of every expression."""
LOOP_VARIABLES = ("item", "index")
"""Further variables of an expression inside a loop."""
_CACHED = 250_000
"""Characters of the compiled expressions that are kept; each takes up to a hundred bytes."""

Source = tuple[str, bool]
"""An expression, and whether it is inside a loop."""
Reads = dict[str, list[str] | None]
"""The variables that an expression reads; for an object the keys, or None for all of it."""


def answer(request: Any) -> Any:
    """Answer a request of `workflow/expressions.py`."""
    match request:
        case ["compile", sources]:
            return [_checked(source, in_loop) for source, in_loop in sources]
        case ["evaluate", values, guards, sources]:
            return evaluate(values, guards, sources)
    raise ValueError(f"no request: {request!r:.80}")


def _checked(source: str, in_loop: bool) -> tuple[str | None, Reads]:
    """Return why an expression cannot be used, and what it reads."""
    try:
        return None, compiled(source, in_loop).reads
    except MemoryError:
        raise
    except Exception as error:
        return str(error), {}


def evaluate(values: Mapping[str, Any], guards: Sequence[bool], sources: Sequence[Source]) -> list[tuple[bool, Any]]:
    """Return for each expression true and its value, or false and why it has none.

    The first expressions are guards: if one is not as it must be, the others are not evaluated.
    """
    results: list[tuple[bool, Any]] = []
    left = MAX_STEP_BYTES
    for at, (source, in_loop) in enumerate(sources):
        try:
            expression = compiled(source, in_loop)
            value, size = expression.evaluate(_seen(values, expression.reads) if len(sources) > 1 else values)
            left -= size
            if left < 0:
                raise Failed("the expressions of this step give more than 4 MiB together")
            results.append((True, value))
        except MemoryError:  # the process must end: the library may be in any state
            raise
        except Exception as error:
            results.append((False, f"the expression `{shortened(source)}` failed: {error}"))
        if at < len(guards) and results[-1] != (True, guards[at]):
            break
    return results


def _seen(values: Mapping[str, Any], reads: Reads) -> dict[str, Any]:
    """Return the values that one of several expressions reads."""
    seen = {}
    for name, keys in reads.items():
        value = values[name]
        seen[name] = value if keys is None or not isinstance(value, dict) else {k: value[k] for k in keys if k in value}
    return seen


class BadExpression(ValueError):
    """The expression is invalid; the message says why."""


class Failed(Exception):
    """The expression has no value; the message says why."""


_compiled: OrderedDict[Source, "Compiled"] = OrderedDict()
_kept = 0


def compiled(source: str, in_loop: bool) -> "Compiled":
    """Return a compiled expression; the last ones are kept. Raises `BadExpression`."""
    global _kept
    found = _compiled.get((source, in_loop))
    if found is not None:
        _compiled.move_to_end((source, in_loop))
        return found
    made = _compiled[source, in_loop] = Compiled(source, in_loop)
    _kept += len(source)
    while _kept > _CACHED:
        (dropped, _), _ = _compiled.popitem(last=False)
        _kept -= len(dropped)
    return made


class Compiled:
    __slots__ = ("_builds", "_optionals", "_program", "reads")

    def __init__(self, source: str, in_loop: bool) -> None:
        """Raises `BadExpression`."""
        names = VARIABLES + LOOP_VARIABLES if in_loop else VARIABLES
        tokens = _tokens(source)
        self._builds = any(text in ("map", "filter") and after == "(" for (_, text), (_, after) in pairwise(tokens))
        """It makes lists of lists; the library needs the square of the length for that."""
        self._optionals = any(text == "optional" for _, text in tokens) or any(
            before in (".", "[", "{", ",") and text == "?" for (_, before), (_, text) in pairwise(tokens)
        )
        self.reads = _reads(tokens, names)
        """The variables it reads, as far as its text shows."""
        try:
            self._program = _environment(in_loop).compile(source)
        except MemoryError:
            raise
        except Exception as error:  # any exception of the library
            raise BadExpression(_refusal(str(error), names)) from None

    def evaluate(self, values: Mapping[str, Any]) -> tuple[Any, int]:
        """Return its value as JSON, and about how many bytes that has. Raises `Failed`."""
        read = len(msgspec.json.encode(values))
        if read > MAX_BYTES:
            raise Failed(f"it reads more than 1 MiB ({read:,} bytes); name the part that is needed")
        if self._builds and read > MAX_LIST and _longest(values) > MAX_LIST:
            raise Failed(f"`map` and `filter` go over lists of at most {MAX_LIST:,} elements; use a `loop` step")
        try:
            value = self._program.eval(data=values)
            kind, made = value.type().name(), _converted(value) if self._optionals else value.plain_value()
        except MemoryError:
            raise
        except Exception as error:
            raise Failed(_words(str(error))) from None
        if kind == "ERROR":
            raise Failed(_words(made))
        return _json(made)


def _converted(value: Any) -> Any:
    """Return a value of the library as Python's, part by part. The library itself converts a whole value quicker, but
    crashes if there is an optional in a map."""
    kind = value.type().name()
    if kind.startswith("LIST"):
        return [_converted(part) for part in value.value()]
    if kind.startswith("MAP"):
        return {key: _converted(part) for key, part in value.value().items()}
    return value.plain_value()


def _json(made: Any) -> tuple[Any, int]:
    try:
        made = _plain(made)
    except TypeError as error:
        raise Failed(f"it gives {error}, which is not JSON") from None
    if type(made) in _SMALL:
        return made, 8
    if (size := len(msgspec.json.encode(made))) > MAX_BYTES:
        raise Failed(f"it gives more than 1 MiB ({size:,} bytes)")
    return made, size


def shortened(text: str, length: int = 120) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


# Tokens

_TOKEN = re.compile(
    r"(?P<text>[rRbB]{0,2}(?:'''.*?'''|\"\"\".*?\"\"\"|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"))"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<blank>\s+|//[^\n]*)"
    r"|(?P<sign>.)",
    re.DOTALL,
)
_KEY = re.compile(r"'([^'\\]*)'|\"([^\"\\]*)\"")

_Tokens = list[tuple[str, str]]


def _tokens(source: str) -> _Tokens:
    return [(match.lastgroup or "", match[0]) for match in _TOKEN.finditer(source) if match.lastgroup != "blank"]


def _reads(tokens: _Tokens, variables: Sequence[str]) -> Reads:
    """Return which of these variables an expression reads. A macro's own variable of that name counts, too."""
    found: Reads = {}
    for at, (kind, text) in enumerate(tokens):
        if kind != "name" or text not in variables or (at and tokens[at - 1][1] == "."):
            continue
        key = _key(tokens[at + 1 : at + 4])
        keys = found.setdefault(text, [])
        if key is None:
            found[text] = None
        elif keys is not None and key not in keys:
            keys.append(key)
    return found


def _key(after: _Tokens) -> str | None:
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


# The library


@cache
def _environment(in_loop: bool) -> Any:
    from cel_expr_python import cel
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

# Values and words

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


_REASON = re.compile(r"^(?:[A-Z_]+: )?(?:ERROR: <input>:(\d+):(\d+): )?(.*?)(?: \[[A-Z_]+\])?$")
_NO_FIELD = "Applying SELECT to non-message type"


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
    line = shortened(text.split("\n", 1)[0].strip(), 500)
    match = _REASON.match(line)
    if match is None:
        return line
    row, column, reason = match.groups()
    if _NO_FIELD in reason:
        reason = "a field is read of something that is not an object"
    elif "Iteration budget" in reason:
        reason = "its macros go more than 10,000 rounds"
    elif "Unable to convert function return value" in reason:
        reason = "it gives an optional; end it with `orValue(…)`"
    if column is None:
        return reason
    return f"{reason}, at character {column}" if row == "1" else f"{reason}, at line {row}, character {column}"
