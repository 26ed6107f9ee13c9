"""The `config` of each type of step: its fields, and the kind that is made of them.

A reader gets the fields and a function that reads nested lists of steps. It notes mistakes and makes the kind.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from keephold.tools.workflow import definition
from keephold.tools.workflow.definition import Kind, Mode, Steps, Value
from keephold.tools.workflow.expressions import Expression
from keephold.tools.workflow.fields import Fields

COMMON = ("preserveData", "continueOnError", "timeoutMs")
"""Fields of every type."""
RETRIED = ("agent", "tool", "api")
"""Types with a `retry`."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
AGENT_PARAMETERS = (
    "prompt", "model", "temperature", "maxTokens", "topP", "systemPrompt", "context", "tools", "documents",
)  # fmt: skip


class Lists(Protocol):
    """Reads lists of steps inside a config."""

    def __call__(self, given: Any, path: str, *, in_loop: bool) -> Steps: ...


_API_SECS = 30.0
Reader = Callable[[Fields, Lists], Kind]


def _agent(fields: Fields, _: Lists) -> Kind:
    if not fields.has("prompt"):
        fields.problems.add(fields.at("prompt"), "is missing; it is what the agent is told")
    given = {key: fields.value(key) for key in AGENT_PARAMETERS if fields.has(key)}
    return definition.Agent(_text(fields, "agentId"), _together(given))


def _tool(fields: Fields, _: Lists) -> Kind:
    return definition.Tool(_text(fields, "name"), fields.value("arguments", dict, {}))


def _api(fields: Fields, _: Lists) -> Kind:
    url = _text(fields, "url")
    if isinstance(url.given, str) and url.given and not url.given.lower().startswith(("http://", "https://")):
        fields.problems.add(fields.at("url"), "must begin with http:// or https://")
    given = {"method": Value(fields.choice("method", METHODS)), "url": url}
    given["headers"] = fields.value("headers", dict, {})
    if "body" in fields.given:
        given["body"] = fields.value("body")
    return definition.Api(_together(given), fields.seconds("timeoutMs") or _API_SECS)


def _condition(fields: Fields, lists: Lists) -> Kind:
    expression = fields.expression("expression", required=True)
    return definition.Condition(_usable(expression), _optional(fields, "then", lists), _optional(fields, "else", lists))


def _transform(fields: Fields, _: Lists) -> Kind:
    return definition.Transform(_usable(fields.expression("expression", required=True)))


def _delay(fields: Fields, _: Lists) -> Kind:
    if fields.has("ms") and fields.has("duration"):
        fields.problems.add(fields.path, "has both `ms` and `duration`; they are the same, give one")
    key = "duration" if fields.has("duration") else "ms"
    ms = fields.value(key, int, 1000)
    if isinstance(fields.given.get(key), int):
        fields.number(key, 1000, least=0, most=definition.MAX_DELAY_MS)
    return definition.Delay(ms)


def _parallel(fields: Fields, lists: Lists) -> Kind:
    branches, path, most = fields.array("branches"), fields.at("branches"), definition.MAX_BRANCHES
    if fields.has("branches") and not 1 <= len(branches) <= most:
        fields.problems.add(path, f"has {len(branches)}; from 1 to {most} are allowed")
    read = [lists(each, f"{path}[{at}]", in_loop=fields.in_loop) for at, each in enumerate(branches)]
    return definition.Parallel(tuple(read), fields.number("concurrency", 8, least=1, most=definition.MAX_CONCURRENCY))


def _loop(fields: Fields, lists: Lists) -> Kind:
    return definition.Loop(
        fields.value("items", list) if fields.has("items") else None,
        lists(fields.array("steps"), fields.at("steps"), in_loop=True),
        fields.number("maxIterations", 100, least=1, most=definition.MAX_ITERATIONS),
        fields.number("concurrency", 1, least=1, most=definition.MAX_CONCURRENCY),
    )


def _try_catch(fields: Fields, lists: Lists) -> Kind:
    return definition.TryCatch(_steps(fields, "try", lists), _steps(fields, "catch", lists))


def _switch(fields: Fields, lists: Lists) -> Kind:
    if "value" not in fields.given:
        fields.problems.add(fields.at("value"), 'is missing; it is what is compared with the cases: {"cel": "…"}, say')
    cases = []
    for at, each in enumerate(fields.array("cases")):
        path = f"{fields.at('cases')}[{at}]"
        if not isinstance(each, Mapping):
            fields.problems.add(path, 'must be an object: {"equals": …, "steps": […]}')
            continue
        case = Fields(each, path, fields.problems, in_loop=fields.in_loop)
        case.only("equals", "steps")
        if "equals" not in each:
            fields.problems.add(case.at("equals"), "is missing; the case is taken when the value equals it")
        cases.append((case.value("equals"), _steps(case, "steps", lists)))
    return definition.Switch(fields.value("value"), tuple(cases), _optional(fields, "default", lists))


def _merge(fields: Fields, _: Lists) -> Kind:
    if not fields.has("values"):
        fields.problems.add(fields.at("values"), "is missing; it is an array of what is merged")
    mode = fields.choice("mode", ("object", "array"))
    return definition.Merge(fields.value("values", list, []), "array" if mode == "array" else "object")


def _set_variable(fields: Fields, _: Lists) -> Kind:
    if "value" not in fields.given:
        fields.problems.add(fields.at("value"), 'is missing; any value, or {"cel": "…"}')
    return definition.SetVariable(fields.text("name"), fields.value("value"))


def _get_variable(fields: Fields, _: Lists) -> Kind:
    return definition.GetVariable(fields.text("name"), fields.value("default") if "default" in fields.given else None)


def _wait(fields: Fields, _: Lists) -> Kind:
    given = [key for key in ("handleId", "handleIds", "event") if fields.has(key)]
    if len(given) != 1:
        what = f"has {' and '.join(given)}" if given else "says not what to wait for"
        fields.problems.add(fields.path, f"{what}; give one of `handleId`, `handleIds`, `event`")
    if fields.has("mode") and "handleIds" not in given:
        fields.problems.add(fields.at("mode"), "goes with `handleIds`")
    mode = cast(Mode, fields.choice("mode", ("all", "any", "race")))
    if fields.has("event"):
        return definition.WaitEvent(fields.text("event"))
    if fields.has("handleIds"):
        ids = fields.value("handleIds", list, [])
        if ids.given == []:
            fields.problems.add(fields.at("handleIds"), "is empty; name at least one handle")
        return definition.WaitHandles(ids, mode)
    one = fields.value("handleId", str, "")
    return definition.WaitHandles(Value(definition.OpenArray([one.given]), one.expressions), mode)


def _text(fields: Fields, key: str) -> Value:
    """Read a required string, or an expression in its place."""
    if not fields.has(key) or isinstance(fields.given[key], str):
        return Value(fields.text(key))
    return fields.value(key, str, "")


def _together(values: Mapping[str, Value]) -> Value:
    """Return an object of these values as one value."""
    given = {key: value.given for key, value in values.items()}
    return Value(definition.OpenObject(given), tuple(each for value in values.values() for each in value.expressions))


def _steps(fields: Fields, key: str, lists: Lists) -> Steps:
    return lists(fields.array(key), fields.at(key), in_loop=fields.in_loop)


def _optional(fields: Fields, key: str, lists: Lists) -> Steps | None:
    return _steps(fields, key, lists) if fields.has(key) else None


_NOTHING = Expression("", in_loop=False)


def _usable(expression: Expression | None) -> Expression:
    """Return the expression; for an invalid one, which was noted, a placeholder that is never evaluated."""
    return _NOTHING if expression is None else expression


READERS: dict[str, tuple[Reader, tuple[str, ...]]] = {
    "agent": (_agent, ("agentId", *AGENT_PARAMETERS)),
    "tool": (_tool, ("name", "arguments")),
    "api": (_api, ("method", "url", "headers", "body")),
    "condition": (_condition, ("expression", "then", "else")),
    "transform": (_transform, ("expression",)),
    "delay": (_delay, ("ms", "duration")),
    "parallel": (_parallel, ("branches", "concurrency")),
    "loop": (_loop, ("items", "steps", "maxIterations", "concurrency")),
    "try_catch": (_try_catch, ("try", "catch")),
    "switch": (_switch, ("value", "cases", "default")),
    "merge": (_merge, ("values", "mode")),
    "set_variable": (_set_variable, ("name", "value")),
    "get_variable": (_get_variable, ("name", "default")),
    "wait": (_wait, ("handleId", "handleIds", "event", "mode")),
}
"""By type: its reader, and the fields it has besides `COMMON` and `retry`."""
