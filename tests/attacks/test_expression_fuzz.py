"""Random expressions, right and wrong, in the worker (K6): each is answered, and none crashes it or hangs."""

import random
from typing import Any

import pytest
from tests.soak import tries

from keephold.tools.workflow.expressions import Expression, Expressions, LimitHit

BATCH = 50
DATA: dict[str, Any] = {
    "n": 3,
    "f": -2.5,
    "s": "héllo wörld 🙂",
    "long": "ab" * 2000,
    "none": None,
    "yes": True,
    "list": list(range(50)),
    "texts": ["a", "", "ß", "\\", "\n"],
    "deep": [{"a": {"b": [1, {"c": "d"}]}}] * 3,
    "empty": {},
    "big": 2**63 - 1,
}
NAMES = [*(f"data.{name}" for name in DATA), "data", "input", "steps.a", "vars.x", "error", "context.k", "x", "y"]
ATOMS = [
    "0", "1", "-1", "2u", "1.5", "1e308", "9223372036854775807", "-9223372036854775808", "0x7f", "true", "null", "''",
    "'a'", '"é"', "r'\\d+'", "b'\\xff'", "'''x'''", "'\\u0000'", "[]", "{}", "[1, 'a', null]", "{'a': 1}", "{1: 2}",
    "timestamp('2026-01-01T00:00:00Z')", "duration('1h')", "type(1)", "dyn(1)", "b''", "'(a+)+$'", "'[[:alpha:]]*'",
]  # fmt: skip
SIGNS = ["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "&&", "||", "in"]
CALLS = [
    "size({})", "string({})", "int({})", "uint({})", "double({})", "bytes({})", "bool({})", "dyn({})", "type({})",
    "has({}.a)", "duration({})", "timestamp({})", "{}.size()", "{}.trim()", "{}.lowerAscii()", "{}.upperAscii()",
    "{}.split({})", "{}.join({})", "{}.join()", "{}.replace({}, {})", "{}.substring({})", "{}.substring({}, {})",
    "{}.contains({})", "{}.startsWith({})", "{}.endsWith({})", "{}.matches({})", "{}.all(x, {})", "{}.exists(x, {})",
    "{}.exists_one(x, {})", "{}.map(x, {})", "{}.map(y, {}, {})", "{}.filter(x, {})", "{}[{}]", "{}.a", "{}.?a",
    "{}[?{}]", "optional.of({})", "{}.orValue({})", "{}.optMap(x, {})", "{}.getFullYear()", "{}.getHours({})",
    "[{}, {}]", "{{'k': {}}}", "{{{}: {}}}", "({})", "!{}", "-{}", "{} ? {} : {}", "cel.bind(x, {}, {})",
]  # fmt: skip
SOUP = [*"()[]{}.,?:+-*/%!<>=&|\"'\\ \n\t", "//", "in", "data", "map", "all", "\0", "é", "🙂", "1", "0x", "1e", "b'"]


def expression(dice: random.Random) -> str:
    """An expression: mostly well formed, sometimes with a piece changed, sometimes no expression at all."""
    if dice.random() < 0.1:
        return "".join(dice.choice(SOUP) for _ in range(dice.randrange(60)))
    source = _form(dice, dice.randrange(1, 7))[:2000]
    if dice.random() < 0.15 and source:
        at = dice.randrange(len(source))
        source = source[:at] + dice.choice(SOUP) + source[at + dice.randrange(3) :]
    return source[:2000]


def _form(dice: random.Random, depth: int) -> str:
    if depth == 0 or dice.random() < 0.2:
        return dice.choice(NAMES if dice.random() < 0.6 else ATOMS)
    if dice.random() < 0.3:
        return f"{_form(dice, depth - 1)} {dice.choice(SIGNS)} {_form(dice, depth - 1)}"
    form = dice.choice(CALLS)
    return form.format(*(_form(dice, depth - 1) for _ in range(3)))


def _values(_: Any) -> dict[str, Any]:
    other = {"a": DATA["deep"], "x": "x", "k": 1}
    names = ("input", "context", "vars", "steps", "error")
    return {"data": DATA, **dict.fromkeys(names, other), "item": [1], "index": 0}


async def _answered(expressions: Expressions, batch: list[Expression]) -> int:
    """Compile and evaluate expressions; return how many have a value."""
    problems = await expressions.compile(batch)
    good = [each for each, problem in zip(batch, problems, strict=True) if problem is None]
    results = (await expressions.evaluate(good, _values)).results
    assert list(results) == good
    return sum(ok for ok, _ in results.values())


@pytest.mark.parametrize("seed", range(tries(2, soak=100)))
async def test_K6_random_expressions_are_answered_and_none_crashes(seed: int) -> None:
    """A million of them in a soak. One that takes too much time or memory is an answer, too."""
    dice = random.Random(seed)
    expressions, hits, values = Expressions(), dict[str, str](), 0
    try:
        for _ in range(tries(20, soak=200)):
            batch = [Expression(expression(dice), in_loop=dice.random() < 0.5) for _ in range(BATCH)]
            try:
                values += await _answered(expressions, batch)
            except LimitHit:
                for each in batch:
                    try:
                        await _answered(expressions, [each])
                    except LimitHit as hit:
                        hits[each.source] = hit.message
    finally:
        expressions.close()
    assert [source for source, why in hits.items() if "crashed" in why] == []
    assert values > 100 and len(hits) <= values / 1000
