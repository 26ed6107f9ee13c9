"""Expressions (W10): CEL over JSON, refused before anything runs, and bounded, because a model wrote them.

Most tests run here what the worker runs. `tests/attacks` has expressions that only a worker survives."""

from typing import Any

import pytest

from keephold import KeepholdError, ToolError
from keephold.tools import cel
from keephold.tools.cel import answer, compiled, evaluate
from keephold.tools.workflow.expressions import Expression, Expressions

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
    [(ok, made)] = evaluate({"data": DATA, **values}, (), [(source, True)])
    assert ok, made
    return made


def failure(source: str, **values: Any) -> str:
    [(ok, why)] = evaluate({"data": DATA, **values}, (), [(source, True)])
    assert not ok, why
    return str(why)


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
        (
            "{'a': [data.?n.orValue(1), {'b': null}], ?'c': data.?s, ?'d': data.?nope}",
            {"a": [3, {"b": None}], "c": "héllo"},
        ),
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
        ("(" * 40 + "1" + ")" * 40, "nested too deeply"),
        ("__import__('os')", "undeclared reference"),
    ],
)
def test_a_bad_expression_is_refused_before_it_runs(source: str, why: str) -> None:
    problem, _ = answer(["compile", [(source, False)]])[0]
    assert why in problem


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("data.nope", "nope"),
        ("data.s.x", "is not an object"),
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
        ("{'k': data.?nope}", "orValue"),
        ("[1, [optional.of(1)]]", "orValue"),
        ("data.list.join(',')", "`join` takes strings"),
        ("input.all(x, x >= 0)", "10,000 rounds"),
        ("data.two.map(x, data.two.map(y, 1)).size()", "10,000 rounds"),
        ("input.map(x, x)", "at most 2,000 elements"),
        ("steps.s.split('')", "at most 2,000 parts"),
        ("item", "more than 1 MiB"),
        ("index", "1 MiB"),
        ("'ab'.split('').join(steps.s)", "more than 1 MiB"),
        ("steps.s.replace('x', steps.s)", "more than 1 MiB"),
        ("[steps.s, steps.s]", "gives more than 1 MiB"),
    ],
)
def test_what_fails_says_why_and_which(source: str, why: str) -> None:
    values: dict[str, Any] = {"input": list(range(10_001)), "item": "x" * 1_100_000, "index": ["x" * 1_100_000]}
    values["steps"] = {"s": "x" * 700_000}
    said = failure(source, **{name: values[name] for name in compiled(source, True).reads if name in values})
    assert why in said and source in said


def test_item_and_index_are_known_in_loops_only() -> None:
    assert value("item + index", item=1, index=2) == 3
    assert "undeclared reference to 'item'" in answer(["compile", [("item", False)]])[0][0]


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
    names = compiled(source, False).reads
    found = names.get("steps", "not read")
    assert (set(found) if isinstance(found, list) else found) == read


def test_guards_decide_whether_the_others_are_evaluated() -> None:
    sources = [("data.n > 2", False), ("data.n > 5", False), ("data.n + 1", False)]
    assert evaluate({"data": DATA}, (True, False), sources) == [(True, True), (True, False), (True, 4)]
    assert evaluate({"data": DATA}, (True, True), sources) == [(True, True), (True, False)]
    assert evaluate({"data": DATA}, (True,), [("data.n", False), ("1", False)]) == [(True, 3)]
    [(ok, _)] = evaluate({"data": DATA}, (True,), [("data.nope", False), ("1", False)])
    assert not ok


def test_each_of_several_expressions_sees_what_it_reads_and_all_together_are_bounded() -> None:
    data = {"a": "x" * 700_000, "b": "y" * 700_000}
    sources = [("data.a", False), ("data.b", False), ("data", False)]
    (one, other, whole) = evaluate({"data": data}, (), sources)
    assert one == (True, data["a"]) and other == (True, data["b"])
    assert not whole[0] and "reads more than 1 MiB" in whole[1]
    together = evaluate({"data": data}, (), [("data.a", False)] * 8)
    assert [ok for ok, _ in together] == [True] * 5 + [False] * 3 and "4 MiB together" in together[-1][1]


def test_compiled_expressions_are_kept_within_a_limit() -> None:
    sources = [f"{number} + {' ' * 1900}1" for number in range(300)]
    for source in sources:
        compiled(source, False)
    kept = compiled(sources[-1], False)
    assert compiled(sources[-1], False) is kept
    assert sum(len(source) for source, _ in cel._compiled) == cel._kept <= 250_000


async def test_a_runtime_has_one_worker_for_them_which_ends_with_it() -> None:
    expressions = Expressions()
    bad, good = Expression("data.", False), Expression("data.n + steps.a", True)
    assert [why is None for why in await expressions.compile([bad, good])] == [False, True]
    assert good.reads == {"data": {"n"}, "steps": {"a"}}

    def values(reads: Any) -> dict[str, Any]:
        assert reads == good.reads
        return {"data": {"n": 1}, "steps": {"a": 2}}

    assert (await expressions.evaluate([good], values))(good) == 3
    expressions.close()
    with pytest.raises(KeepholdError) as caught:
        await expressions.evaluate([good], values)
    assert caught.value.code == "runtime_closing"


@pytest.mark.parametrize(
    ("read", "why"),
    [
        ("x" * 5_000_000, "more than 4 MiB are read"),
        ("\ud800", "surrogates not allowed"),
        (2**70, "can't serialize ints"),
        ([[]], "deep"),
    ],
)
async def test_what_cannot_be_sent_to_the_worker_is_the_expressions_error(read: Any, why: str) -> None:
    for _ in range(50_000 if why == "deep" else 0):
        read = [read]
    expressions = Expressions()
    guard, own = Expression("input", False), Expression("data", False)

    def values(reads: Any) -> dict[str, Any]:
        return {name: {"input": False, "data": read}[name] for name in reads}

    try:
        await expressions.compile([guard, own])
        alone = await expressions.evaluate([own], values)
        with pytest.raises(ToolError, match="recursion" if why == "deep" else why):
            alone(own)
        both = await expressions.evaluate([guard, own], values, (True,))
        assert both(guard) is False
        with pytest.raises(ToolError):
            both(own)
    finally:
        expressions.close()
