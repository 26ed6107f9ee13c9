"""The steps of a workflow as a model wrote them: JSON that may be wrong in any way."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

EACH = "each"
"""The key of a loop's list."""
_SHOWN = 200
"""Characters of a text of the definition."""


@dataclass(frozen=True)
class NestedList:
    """A list of steps in a step: what its entries are named by, and what it is called."""

    key: str
    name: str
    steps: list[dict[str, Any]]


def nested_lists(step: Mapping[str, Any]) -> list[NestedList]:
    """Return the lists in a step."""
    config = config_of(step)
    match step["type"]:
        case "condition":
            given = [key for key in ("then", "else") if config.get(key) is not None]
            return [NestedList(key, key, steps_of(config[key])) for key in given]
        case "parallel":
            branches = config.get("branches")
            found = branches if isinstance(branches, list) else []
            return [NestedList(str(at), f"branch {at + 1}", steps_of(each)) for at, each in enumerate(found)]
        case "loop":
            return [NestedList(EACH, "for each item", steps_of(config.get("steps")))]
        case "try_catch":
            return [NestedList(key, key, steps_of(config.get(key))) for key in ("try", "catch")]
        case "switch":
            cases = config.get("cases")
            found_cases = [
                NestedList(str(at), f"= {text_of(each.get('equals'))}", steps_of(each.get("steps")))
                for at, each in enumerate(cases if isinstance(cases, list) else ())
                if isinstance(each, Mapping)
            ]
            default = config.get("default")
            return found_cases + ([] if default is None else [NestedList("default", "otherwise", steps_of(default))])
    return []


def steps_of(given: Any) -> list[dict[str, Any]]:
    """Return the steps of a list that have an id and a type."""
    if not isinstance(given, list):
        return []
    return [
        each for each in given if isinstance(each, dict) and all(isinstance(each.get(k), str) for k in ("id", "type"))
    ]


def all_steps(given: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a list, and those inside them."""
    for step in steps_of(given):
        yield step
        for inner in nested_lists(step):
            yield from all_steps(inner.steps)


def config_of(step: Mapping[str, Any]) -> Mapping[str, Any]:
    config = step.get("config")
    return config if isinstance(config, Mapping) else {}


def text_of(value: Any) -> str:
    """Return a text of the definition, or an expression's, for people."""
    if isinstance(value, Mapping) and isinstance(value.get("cel"), str):
        value = value["cel"]
    text = "" if value is None else value if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
