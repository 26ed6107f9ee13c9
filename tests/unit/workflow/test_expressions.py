"""Expressions (W10): CEL over JSON, refused before anything runs, and bounded, because a model wrote them."""

from typing import Any

import pytest

from keephold import ToolError
from keephold.tools.workflow.expressions import BadExpression, Expression, growth, reads

DATA = {
    "n": 3,
    "f": 2.5,
    "s": "héllo",
    "none": None,
    "list": [1, 2, 3],
    "deep": [{"a": {"b": True}}],
    "big": 2**53 + 1,
    "two": [0] * 200,
}


def value(source: str, **values: Any) -> Any:
    return Expression(source, in_loop=True).evaluate({"data": DATA, **values})


@pytest.mark.parametrize(
    ("source", "gives"),
    [
        ("data.n + 1", 4),
        ("data.f * 2.0", 5.0),
        ("double(data.n) * 1.5", 4.5),
        ("data.n == 3.0 && data.n > 2.5", True),
        ("data.big + 1", 2**53 + 2),
        ("uint(3) + 2u", 5),
        ("size(data.s)", 5),
        ("data.s.startsWith('hé') && data.s.endsWith('o') && data.s.contains('ll')", True),
        ("data.s.matches('^h.*o$')", True),
        ("has(data.n) && !has(data.nope)", True),
        ("data.none == null", True),
        ("data.list.all(x, x > 0) && data.list.exists(x, x == 2) && data.list.exists_one(x, x == 3)", True),
        ("data.list.map(x, x * 2)", [2, 4, 6]),
        ("data.list.filter(x, x > 1)", [2, 3]),
        ("data.deep[0].a.b", True),
        ("{'a': data.n, 'b': [1, null, {'c': 1.5}]}", {"a": 3, "b": [1, None, {"c": 1.5}]}),
        ("data.n > 2 ? 'yes' : 'no'", "yes"),
        ("data.?nope.orValue('else')", "else"),
        ("'b,a'.split(',').join('-').upperAscii()", "B-A"),
        ("' ÀB '.trim().lowerAscii() + 'abc'.substring(1) + 'abc'.substring(0, 1)", "Àbbca"),
        ("'a b'.replace(' ', '')", "ab"),
        ("data.list.map(x, string(x)).join(',')", "1,2,3"),
        ("timestamp('2026-01-01T00:00:00Z') + duration('90s')", "2026-01-01T00:01:30Z"),
        ("duration('1h')", "3600s"),
        ("int('12') + int(1.9)", 13),
    ],
)
def test_what_expressions_give(source: str, gives: Any) -> None:
    made = value(source)
    assert made == gives and type(made) is type(gives)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("nope", "undeclared reference to 'nope', at character 1. Known here are input, data,"),
        ("1 +", "Syntax error"),
        ("data.n + shout(1)", "'shout', at character 15"),
        ("'a' + 1", "no matching overload"),
        ("", "Syntax error"),
        ("data." * 300 + "x" + " " * 800, "at most 2,000 characters"),
        ("(" * 40 + "1" + ")" * 40, "nested too deeply"),
        ("[data.s]" + ".map(a, a + a)" * 12, "multiply"),
        ("[data.s]" + ".map(a, [a, a])" * 12, "multiply"),
        ("__import__('os')", "undeclared reference"),
    ],
)
def test_a_bad_expression_is_refused_before_it_runs(source: str, why: str) -> None:
    with pytest.raises(BadExpression) as caught:
        Expression(source)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("data.nope", "nope"),
        ("data.s.x", "is no object"),
        ("data.list[7]", "index=7"),
        ("data.n * 1.5", "No matching overloads"),
        ("data.n && true", "No matching overloads"),
        ("1 / (data.n - 3)", "divide by zero"),
        ("9223372036854775807 + data.n", "overflow"),
        ("data.s.matches('(')", "regular expression"),
        ("1.0 / 0.0", "a number that is inf"),
        ("b'x'", "bytes"),
        ("{1: 2}", "keys that are not strings"),
        ("type(1)", "not JSON"),
        ("data.?nope", "orValue"),
        ("data.list.join(',')", "`join` takes strings"),
        ("input.all(x, x >= 0)", "10,000 rounds"),
        ("data.two.map(x, data.two.map(y, 1)).size()", "10,000 rounds"),
        ("input.map(x, x)", "at most 2,000 elements"),
        ("steps.s.split('')", "at most 2,000 parts"),
        ("error", "not JSON"),
        ("item", "more than 1 MiB"),
        ("index", "1 MiB"),
        ("'ab'.split('').join(steps.s)", "more than 1 MiB"),
        ("steps.s.replace('x', steps.s)", "more than 1 MiB"),
        ("[steps.s, steps.s]", "gives more than 1 MiB"),
    ],
)
def test_what_fails_says_why_and_which(source: str, why: str) -> None:
    deep: Any = 1
    for _ in range(50_000):
        deep = [deep]
    values: dict[str, Any] = {"input": list(range(10_001)), "error": deep, "item": "x" * 1_100_000, "index": 2**70}
    values["steps"] = {"s": "x" * 700_000}
    expression = Expression(source, in_loop=True)
    if source == "index":
        values["index"] = ["x" * 1_100_000]
    with pytest.raises(ToolError) as caught:
        expression.evaluate({"data": DATA, **{name: values[name] for name in expression.reads.names if name in values}})
    assert why in caught.value.message and source in caught.value.message


def test_an_integer_beyond_64_bits_is_an_error_not_another_number() -> None:
    with pytest.raises(ToolError, match="out of range"):
        value("input", input=2**70)


def test_item_and_index_are_known_in_loops_only() -> None:
    assert Expression("item + index", in_loop=True).evaluate({"item": 1, "index": 2}) == 3
    with pytest.raises(BadExpression, match="undeclared reference to 'item'"):
        Expression("item")


@pytest.mark.parametrize(
    ("source", "read"),
    [
        ("steps.a.x + steps['b-c'].y", {"a", "b-c"}),
        ('has(steps.a) ? steps["b"] : 1', {"a", "b"}),
        ("steps.?a.orValue(1)", {"a"}),
        ("steps[data.name]", None),
        ("steps.map(k, k)", None),
        ("steps == {}", None),
        ("data.steps.a", "not read"),
        ("'steps.a' + data.s", "not read"),
        ("'it\\'s steps.a' + \"x\" // steps.b", "not read"),
    ],
)
def test_which_results_an_expression_reads_is_known_from_its_text(source: str, read: Any) -> None:
    names = reads(source, ("data", "steps")).names
    assert names.get("steps", "not read") == read


def test_what_could_grow_is_estimated_by_counting() -> None:
    assert growth("data.filter(x, x.ok).map(x, {'a': x.a, 'b': x.b, 'c': x.c})") < 10
    assert growth("data.a + ', ' + data.b") == 3
    assert growth("[s]" + ".map(a, a + a)" * 8) == 256
    assert growth("data.map(x, '+,+,+,+')") == 1
