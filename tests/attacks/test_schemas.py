"""Schemas of foreign servers and arguments of models that would hold the loop up: refusing a call stays quick (C9)."""

from typing import Any

import pytest

from keephold.errors import ToolError
from keephold.schema.arguments import ArgumentCheck

PLACES = 20


def schema(of_x: dict[str, Any], **defs: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": of_x}, "required": ["x"], "$defs": defs}


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def tree() -> dict[str, Any]:
    """Every node needs four of its kind."""
    names = list("abcd")
    node = {"type": "object", "properties": dict.fromkeys(names, ref("n")), "required": names}
    return schema(ref("n"), n=node)


def union() -> dict[str, Any]:
    """The grammar of an expression, as ordinary tools have it: three kinds of objects that hold one another."""
    forms = [
        {"type": "object", "properties": {"k": {"const": kind}, "a": ref("n")}, "required": ["k", "a"]}
        for kind in range(3)
    ]
    return schema(ref("n"), n={"anyOf": forms})


def doubled() -> dict[str, Any]:
    defs: dict[str, Any] = {"d0": {"type": "string"}}
    defs |= {f"d{at}": {"anyOf": [ref(f"d{at - 1}"), ref(f"d{at - 1}")]} for at in range(1, PLACES)}
    return schema(ref(f"d{PLACES - 1}"), **defs)


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"k": "wrong"}
    for _ in range(depth):
        value = {"k": 0, "a": value}
    return value


@pytest.mark.timeout(60)  # they took hours, and all of the memory
@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        (schema({"type": "array", "items": {"type": "string"}, "minItems": 10**11}), {}),
        (tree(), {}),
        (union(), {"x": nested(40)}),
        (doubled(), {"x": 5}),
        (
            {"type": "object", "properties": {f"p{at}": {} for at in range(20_000)}, "required": ["p1"]},
            {f"q{at}": 1 for at in range(400)},
        ),
    ],
    ids=["items", "tree", "union", "doubled", "names"],
)
def test_C9_a_wrong_call_is_refused_in_bounded_time(given: dict[str, Any], arguments: dict[str, Any]) -> None:
    check = ArgumentCheck(given, tool="t")
    with pytest.raises(ToolError, match="Invalid arguments"):
        check(arguments)
    made = check.mended(arguments, 800)
    assert made is None or check(made)
