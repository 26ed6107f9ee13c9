"""Reads an object that a model has sent: every field is checked, every mistake is noted with its path, none is fatal.

A wrong field reads as a harmless value; the workflow is refused in the end, so that value is never used.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any

from keephold.text import to_json
from keephold.tools.cel import MAX_LENGTH, shortened
from keephold.tools.workflow.definition import OpenArray, OpenObject, Value
from keephold.tools.workflow.expressions import Expression

_NAMES = {str: "a string", bool: "true or false", int: "an integer", list: "an array", dict: "an object"}


_MOST = 100
"""Problems after which reading ends: nobody fixes more at once, and each takes time to word."""
_NAME = 100
"""Characters of an unknown name that is shown, and compared with known ones."""
_PARTS = 10_000
"""Arrays and objects in values with expressions."""


class TooManyProblems(Exception):
    """Reading ends early."""


class Problems:
    """Mistakes with their paths in the order of the text. Those of expressions are found later, in a worker."""

    def __init__(self) -> None:
        self._found: list[str | Located] = []
        self._mistakes = 0
        self.parts = 0
        """Arrays and objects that were searched for expressions."""

    def add(self, path: str, what: str) -> None:
        self._found.append(f"{path}: {what}")
        self._mistakes += 1
        if self._mistakes >= _MOST:
            raise TooManyProblems

    def expression(self, path: str, source: str, in_loop: bool) -> Expression:
        expression = Expression(source, in_loop)
        if len(source) <= MAX_LENGTH:
            self._found.append((path, expression))
        else:
            long = f"an expression has at most {MAX_LENGTH:,} characters, this one {len(source):,}"
            self.add(path, _unusable(long))
        return expression

    @property
    def expressions(self) -> "list[Located]":
        return [each for each in self._found if not isinstance(each, str)]

    def listed(self, wrong: Mapping[Expression, str]) -> list[str]:
        """Return all mistakes; `wrong` are those of expressions."""
        return [
            each if isinstance(each, str) else f"{each[0]}: {_unusable(wrong[each[1]])}"
            for each in self._found
            if isinstance(each, str) or each[1] in wrong
        ]


Located = tuple[str, Expression]
"""An expression with its path."""


def _unusable(why: str) -> str:
    return f"is not an expression that can be used: {why}"


class Fields:
    """One object and its path."""

    def __init__(self, given: Mapping[str, Any], path: str, problems: Problems, *, in_loop: bool = False) -> None:
        self.given = given
        self.path = path
        self.problems = problems
        self.in_loop = in_loop
        """Whether expressions may read `item` and `index`."""

    def at(self, key: str) -> str:
        return _inside(self.path, f".{shortened(key, _NAME)}" if self.path else shortened(key, _NAME))

    def has(self, key: str) -> bool:
        return self.given.get(key) is not None

    def only(self, *known: str) -> None:
        """Note every other field as a mistake."""
        for key in self.given:
            if key not in known:
                self.problems.add(self.at(key), f"is not known here; {instead_of(key, known, 0.75)}")

    def text(self, key: str, *, required: bool = True) -> str:
        """Read a string that is not empty."""
        if not self.has(key):
            if required:
                self.problems.add(self.at(key), "is missing; it is a string")
            return ""
        if not self._is(key, str):
            return ""
        if not self.given[key]:
            self.problems.add(self.at(key), "is empty")
        return str(self.given[key])

    def flag(self, key: str) -> bool:
        return self.has(key) and self._is(key, bool) and bool(self.given[key])

    def number(self, key: str, default: int, *, least: int, most: int) -> int:
        if not self.has(key) or not self._is(key, int):
            return default
        number = int(self.given[key])
        if not least <= number <= most:
            self.problems.add(self.at(key), f"is {number:,}, and must be from {least:,} to {most:,}")
            return default
        return number

    def seconds(self, key: str) -> float | None:
        """Read a time limit in ms, as seconds."""
        return self.number(key, 0, least=1, most=2**53) / 1000 if self.has(key) else None

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        """Read one of these, the first by default."""
        if self.has(key) and self.given[key] not in choices:
            self.problems.add(self.at(key), f"is {shown(self.given[key])}, and must be one of {', '.join(choices)}")
            return choices[0]
        return self.given[key] if self.has(key) else choices[0]

    def object(self, key: str) -> dict[str, Any]:
        return dict(self.given[key]) if self.has(key) and self._is(key, dict) else {}

    def array(self, key: str) -> list[Any]:
        if not self.has(key):
            self.problems.add(self.at(key), "is missing; it is an array")
            return []
        return list(self.given[key]) if self._is(key, list) else []

    def expression(self, key: str) -> Expression | None:
        """Read a string of CEL."""
        if not self.has(key) or not self._is(key, str):
            return None
        return self.problems.expression(self.at(key), self.given[key], self.in_loop)

    def value(self, key: str, kind: type | None = None, default: Any = None) -> Value:
        """Read any value, or one of a kind, with an expression for each `{"cel": "…"}`."""
        given = self.given.get(key, default)
        if key in self.given and kind is not None and not _is_expression(given) and not self._is(key, kind):
            given = default
        if type(given) not in _NESTS or b'"cel"' not in to_json(given):  # a hundredth of the time of a search
            return Value(given)
        found: list[Expression] = []
        try:
            return Value(self._with_expressions(given, self.at(key), found), tuple(found))
        except _TooManyParts:
            self.problems.add(self.at(key), f"has more than {_PARTS:,} arrays and objects beside its expressions")
            return Value(None)

    def _with_expressions(self, given: Any, path: str, found: list[Expression]) -> Any:
        """Replace each `{"cel": "…"}`; return the same object if there is none."""
        self.problems.parts += 1
        if self.problems.parts > _PARTS:
            raise _TooManyParts
        if _is_expression(given):
            found.append(self.problems.expression(path, given["cel"], self.in_loop))
            return found[-1]
        before = len(found)
        made: Any
        if isinstance(given, dict):
            made = OpenObject(given)
            for key, part in given.items():
                if type(part) in _NESTS:
                    made[key] = self._with_expressions(part, _inside(path, f".{shortened(key, _NAME)}"), found)
        else:
            made = OpenArray(given)
            for at, part in enumerate(given):
                if type(part) in _NESTS:
                    made[at] = self._with_expressions(part, _inside(path, f"[{at}]"), found)
        return given if len(found) == before else made

    def _is(self, key: str, kind: type) -> bool:
        given = self.given[key]
        if isinstance(given, kind) and not (kind is int and isinstance(given, bool)):
            return True
        self.problems.add(self.at(key), f"must be {_NAMES[kind]}, not {shown(given)}")
        return False


_NESTS = (dict, list)
_PATH = 300
"""Characters of a path; one is kept for each expression."""


def _inside(path: str, key: str) -> str:
    made = path + key
    return made if len(made) <= _PATH else f"…{made[-_PATH:]}"


class _TooManyParts(Exception):
    pass


def instead_of(name: str, known: Sequence[str], cutoff: float) -> str:
    """Return what an unknown name should be."""
    near = get_close_matches(name, known, n=1, cutoff=cutoff) if len(name) <= _NAME else None
    return f"did you mean `{near[0]}`?" if near else f"known are {some(known)}"


def some(names: Iterable[str], most: int = 20) -> str:
    """Return names for a message, the first of them if there are many."""
    first = list(islice(names, most + 1))
    return ", ".join([*first[:most], *(["…"] if len(first) > most else [])])


def _is_expression(given: Any) -> bool:
    return isinstance(given, dict) and set(given) == {"cel"} and isinstance(given["cel"], str)


def shown(given: Any) -> str:
    """Return a value in a few words."""
    match given:
        case None:
            return "null"
        case bool():
            return str(given).lower()
        case dict():
            return "an object"
        case list():
            return "an array"
        case str():
            return f"the string {given[:40]!r}"
    return repr(given)
