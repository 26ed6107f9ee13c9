"""Reads an object that a model has sent: every field is checked, every mistake is noted with its path, none is fatal.

A wrong field reads as a harmless value; the workflow is refused in the end, so that value is never used.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from keephold.tools.workflow.definition import Value
from keephold.tools.workflow.expressions import BadExpression, Expression

_NAMES = {str: "a string", bool: "true or false", int: "an integer", list: "an array", dict: "an object"}


class Problems(list[str]):
    """Mistakes with their paths, and the expressions that were compiled on the way, with theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.expressions: list[tuple[str, Expression]] = []

    def add(self, path: str, what: str) -> None:
        self.append(f"{path}: {what}")


class Fields:
    """One object and its path."""

    def __init__(self, given: Mapping[str, Any], path: str, problems: Problems, *, in_loop: bool = False) -> None:
        self.given = given
        self.path = path
        self.problems = problems
        self.in_loop = in_loop
        """Whether expressions may read `item` and `index`."""

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def has(self, key: str) -> bool:
        return self.given.get(key) is not None

    def only(self, *known: str) -> None:
        """Note every other field as a mistake."""
        for key in self.given:
            if key in known:
                continue
            near = get_close_matches(key, known, n=1, cutoff=0.75)
            right = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}"
            self.problems.add(self.at(key), f"is not known here; {right}")

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
            self.problems.add(self.at(key), f"is {_shown(self.given[key])}, and must be one of {', '.join(choices)}")
            return choices[0]
        return self.given[key] if self.has(key) else choices[0]

    def object(self, key: str) -> dict[str, Any]:
        return dict(self.given[key]) if self.has(key) and self._is(key, dict) else {}

    def array(self, key: str) -> list[Any]:
        if not self.has(key):
            self.problems.add(self.at(key), "is missing; it is an array")
            return []
        return list(self.given[key]) if self._is(key, list) else []

    def expression(self, key: str, *, required: bool = False) -> Expression | None:
        """Read a string of CEL."""
        if required and not self.has(key):
            self.problems.add(self.at(key), "is missing; it is a CEL expression")
        if not self.has(key) or not self._is(key, str):
            return None
        return self._compiled(self.given[key], self.at(key))

    def value(self, key: str, kind: type | None = None, default: Any = None) -> Value:
        """Read any value, or one of a kind, with an expression for each `{"cel": "…"}`."""
        given = self.given.get(key, default)
        if key in self.given and kind is not None and not _is_expression(given) and not self._is(key, kind):
            given = default
        made = self._with_expressions(given, self.at(key))
        return Value(made, literal=made is given)

    def _with_expressions(self, given: Any, path: str) -> Any:
        """Replace each `{"cel": "…"}`; return the same object if there is none."""
        if _is_expression(given):
            return self._compiled(given["cel"], path) or given
        if isinstance(given, dict):
            made = {key: self._with_expressions(each, f"{path}.{key}") for key, each in given.items()}
            return given if all(made[key] is given[key] for key in given) else made
        if isinstance(given, list):
            listed = [self._with_expressions(each, f"{path}[{at}]") for at, each in enumerate(given)]
            return given if all(one is other for one, other in zip(listed, given, strict=True)) else listed
        return given

    def _compiled(self, source: str, path: str) -> Expression | None:
        try:
            expression = Expression(source, in_loop=self.in_loop)
        except BadExpression as error:
            self.problems.add(path, f"is no expression that can be used: {error}")
            return None
        self.problems.expressions.append((path, expression))
        return expression

    def _is(self, key: str, kind: type) -> bool:
        given = self.given[key]
        if isinstance(given, kind) and not (kind is int and isinstance(given, bool)):
            return True
        self.problems.add(self.at(key), f"must be {_NAMES[kind]}, not {_shown(given)}")
        return False


def _is_expression(given: Any) -> bool:
    return isinstance(given, dict) and set(given) == {"cel"} and isinstance(given["cel"], str)


def _shown(given: Any) -> str:
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
