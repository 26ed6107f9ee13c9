"""A model that knows nothing but the offered schemas, obeys them, and sends suggested calls back (G3, C9).

`call_of` makes calls from a tool list alone. `Judge` runs them: each runs, or is refused for a reason, and the call
that the refusal suggests has to work.
"""

import asyncio
import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from keephold import Response, Runtime, ToolCall
from keephold.turn.single_calls import CallQueue

Schema = Mapping[str, Any]

HANDLES = ("run", "ask", "pick", "over", "hook", "task", "a", "b")
"""Ids that an obedient model may have chosen or been shown."""
_NAMED = ("id", "spawn", "handleId", "handleIds", "taskId", "any", "all")
_TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
_FORMATS = {
    "date-time": st.datetimes().map(lambda at: at.isoformat() + "Z"),
    "date": st.dates().map(str),
    "time": st.times().map(lambda at: at.isoformat() + "Z"),
    "duration": st.integers(0, 10**6).map(lambda secs: f"PT{secs}S"),
    "uuid": st.uuids().map(str),
    "email": st.just("name@example.com"),
}
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | _TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_TEXT, inner, max_size=2),
    max_leaves=3,
)


def call_of(listed: Sequence[Mapping[str, Any]]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """Calls of these tools, each as often as any other."""
    return st.one_of([st.tuples(st.just(each["name"]), _calls(each["parameters"])) for each in listed])


def _calls(parameters: Schema) -> st.SearchStrategy[Any]:
    known: dict[str, st.SearchStrategy[Any]] = {}

    def followed(schema: Any) -> Any:
        """The schema with a strategy for each `$ref`, which only the canonical one has."""
        if isinstance(schema, list):
            return [followed(part) for part in schema]
        if not isinstance(schema, Mapping):
            return schema
        ref = schema.get("$ref")
        if not isinstance(ref, str):
            return {key: followed(value) for key, value in schema.items()}
        if ref not in known:
            target = parameters["$defs"][ref.rpartition("/")[2]]
            known[ref] = st.deferred(lambda: _value(followed(target), ""))
        return {"strategy": known[ref]}

    return _value(followed({key: value for key, value in parameters.items() if key != "$defs"}), "")


def _value(schema: Schema, name: str) -> st.SearchStrategy[Any]:
    """Values that fit a schema as the dialects write them: no `$ref` except in the canonical one."""
    if "strategy" in schema:
        return schema["strategy"]  # type: ignore[no-any-return]
    if "allOf" in schema:
        return _value(schema["allOf"][0], name)
    for union in ("anyOf", "oneOf"):
        if union in schema:
            rest = {key: value for key, value in schema.items() if key != union}
            return st.one_of([_value(_joined(rest, form), name) for form in schema[union]])
    if schema.get("nullable"):
        return st.none() | _value({key: value for key, value in schema.items() if key != "nullable"}, name)
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds = schema.get("type", "object" if "properties" in schema else None)
    if kinds is None:
        return _ANY
    if isinstance(kinds, list):
        return st.one_of([_value({**schema, "type": kind}, name) for kind in kinds])
    return _of_type(kinds, schema, name)


def _joined(rest: Schema, form: Schema) -> dict[str, Any]:
    properties = {**rest.get("properties", {}), **form.get("properties", {})}
    required = [*rest.get("required", ()), *form.get("required", ())]
    return {
        **rest,
        **form,
        **({"properties": properties} if properties else {}),
        **({"required": required} if required else {}),
    }


def _of_type(kind: str, schema: Schema, name: str) -> st.SearchStrategy[Any]:
    match kind:
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer" | "number":
            return _number(kind, schema)
        case "string":
            return _text(schema, name)
        case "array":
            most = min(schema.get("maxItems", 3), max(3, schema.get("minItems", 0)))
            order = re.search(r"In order: ([a-z, ]+)\.", schema.get("description", ""))
            if order is not None:  # a tuple, which no dialect but the canonical one can write
                return st.tuples(*(_of_type(kind, {}, name) for kind in order[1].split(", "))).map(list)
            if "prefixItems" in schema:
                return st.tuples(*(_value(each, name) for each in schema["prefixItems"])).map(list)
            key = repr if schema.get("uniqueItems") else None
            items = _value(schema.get("items", {}), name)
            return st.lists(items, min_size=schema.get("minItems", 0), max_size=most, unique_by=key)
    return _object(schema)


def _object(schema: Schema) -> st.SearchStrategy[Any]:
    properties = schema.get("properties", {})
    required = [name for name in properties if name in schema.get("required", ())]
    known = st.fixed_dictionaries(
        {name: _value(properties[name], name) for name in required},
        optional={name: _value(own, name) for name, own in properties.items() if name not in required},
    )
    others = schema.get("additionalProperties", False)
    if others is False or schema.get("maxProperties") is not None:
        return known
    further = st.dictionaries(_TEXT, _ANY if others is True else _value(others, ""), max_size=2)
    return st.builds(lambda more, own: {**more, **own}, further, known)


def _number(kind: str, schema: Schema) -> st.SearchStrategy[Any]:
    low, high, step = schema.get("minimum"), schema.get("maximum"), schema.get("multipleOf")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if kind == "integer" or step is not None:
        least = low if above is None else above + 1
        most = high if below is None else below - 1
        whole = st.integers(None if least is None else int(least), None if most is None else int(most))
        return whole if step is None else st.integers(0, 5).map(lambda n: n * step)
    least, most = low if above is None else above, high if below is None else below
    return st.floats(
        least,
        most,
        allow_nan=False,
        allow_infinity=False,
        exclude_min=above is not None,
        exclude_max=below is not None,
    )


def _text(schema: Schema, name: str) -> st.SearchStrategy[str]:
    text = re.search(r"JSON text of an object(?: whose values fit (\{.*\}))?\.", schema.get("description", ""))
    if text is not None:
        return st.dictionaries(_TEXT, _value(json.loads(text[1] or "{}"), ""), max_size=2).map(json.dumps)
    if "pattern" in schema:
        return st.from_regex(re.compile(schema["pattern"], re.ASCII), fullmatch=True)
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    plain = st.text(st.characters(codec="utf-8"), min_size=least, max_size=max(least, min(6, most or 6)))
    known = {"agentId": ("clerk",), **dict.fromkeys(_NAMED, HANDLES)}.get(name)
    return plain if known is None else st.sampled_from(known) | plain


REFUSED = {
    "bad_answer": "an answer of another type than the question's",
    "batch_rejected": "an id that is in use",
    "invalid_handle_id": "an id with characters that ids cannot have",
    "handle_not_found": "an unknown handle",
    "handle_expired": "an unknown handle",
    "handle_of_another_tool": "a handle that the tool is not for",
    "unknown_action": "a handle that the tool is not for",
    "unknown_tool": "an unknown tool in an argument",
    "already_stopped": "a handle that has stopped",
    "not_running": "a handle that takes no input now",
    "input_not_read": "a handle that takes no input now",
    "question_exclusive": "a question for the user",
    "limit_exceeded": "more than a limit allows",
    "await_event_unknown_or_revoked": "an unknown key",
}
MISTYPED = "a missing or mistyped argument"
_OWN_WORDS = "arguments that do not go together"
_NO_KEYWORD = "a rule for which the dialect has no keyword"
_TYPED = re.compile(r"missing `|must be (a|an|true|null)\b[^;]*, not |unknown argument|goes with another|needs `id`")


def reason(response: Response) -> str | None:
    """Why a call was refused; None if it ran."""
    shown = json.loads(response.model) if response.model.startswith("{") else {}
    code = response.code
    if code is None and shown.get("try"):  # a spawn that was refused is a handle that has stopped
        code = "invalid_arguments"
    if code == "invalid_arguments":
        if _TYPED.search(response.model):
            return MISTYPED
        return _NO_KEYWORD if "Invalid arguments for" in response.model else _OWN_WORDS
    return REFUSED.get(code or "") if response.is_error else None


def suggested(response: Response) -> tuple[str, dict[str, Any]] | None:
    """The call that the model's text ends with."""
    text = response.model
    if text.startswith("{"):
        text = f"\nTry: {json.loads(text).get('try', '')}"
    found = re.search(r"\nTry: (\S+) (\{.*\})$", text, re.DOTALL)
    return None if found is None else (found[1], json.loads(found[2]))


class Judge:
    """Runs calls, and counts why they were refused."""

    def __init__(self) -> None:
        self.ran = 0
        self.refused: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.stranded: Counter[str] = Counter()
        """Refusals without a suggestion."""
        self.twice: Counter[str] = Counter()
        """Refusals whose suggestion was refused for another reason, with a suggestion that worked."""
        self._labels = itertools.count(1)

    async def run(self, rt: Runtime, prepared: Sequence[tuple[str, dict[str, Any]]], calls: Any) -> None:
        """Run the calls in a conversation with the prepared handles."""
        queue = rt.call_queue(f"c{next(self._labels)}")
        for one in prepared:
            assert reason(await self._answered(queue, one)) is None, one
        for one in calls:
            response = await self._answered(queue, one)
            why = reason(response)
            if why is None:
                self.ran += 1
                continue
            self.refused[why] += 1
            if len(self.examples.setdefault(why, [])) < 5:
                self.examples[why].append(f"{one} got {response.model}")
            right = suggested(response)
            if right is None:
                self.stranded[why] += 1
                continue
            again = await self._answered(queue, right)
            if reason(again) not in (None, why):  # two mistakes: the second is found when the first is mended
                self.twice[why] += 1
                right = suggested(again)
                again = again if right is None else await self._answered(queue, right)
            assert reason(again) is None, f"{one} got {response.model}, and that got {again.model}"

    def table(self, title: str) -> str:
        """How many calls ran, and the refusals by reason."""
        rows = [("ran", self.ran), *self.refused.most_common()]
        return "\n".join(
            [f"\n{title}: {sum(count for _, count in rows):,} calls", *(f"{n:8,} {why}" for why, n in rows)]
        )

    async def _answered(self, queue: CallQueue, one: tuple[str, dict[str, Any]]) -> Response:
        """The answer; of a call that waits for long, that it does."""
        begun = await queue.begin(ToolCall(str(next(self._labels)), *one))
        answer = asyncio.ensure_future(begun.response())
        await asyncio.wait([answer], timeout=100)
        if not answer.done():
            begun.cancel()
        return await answer
