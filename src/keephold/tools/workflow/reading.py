"""From the arguments of `execute_workflow_async` to a `Workflow`, or to one error that lists every mistake.

Everything is checked before anything runs: types, configs, ids, jumps, expressions and the steps they read. The JSON
schema (`PARAMETERS`) does not describe a `config`: `read_workflow` checks it, and reports all mistakes at once.

The `config` of each type of step has a reader, which gets the fields and a function that reads nested lists of steps.
It notes mistakes and makes the kind of step.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from keephold.errors import ToolError
from keephold.handles.state import LONGEST_LABEL
from keephold.tools.cel import shortened
from keephold.tools.workflow import definition
from keephold.tools.workflow.definition import (
    END,
    MAX_DEFINED,
    MAX_NESTING,
    Mode,
    Retry,
    Step,
    StepKind,
    Steps,
    Value,
    Workflow,
    expressions_of,
)
from keephold.tools.workflow.expressions import MAX_EXPRESSIONS, MAX_SOURCE, Expression, Expressions
from keephold.tools.workflow.fields import Fields, Problems, TooManyProblems, instead_of, some

COMMON = ("preserveData", "continueOnError", "timeoutMs")
"""Fields of every type."""
RETRIED = ("agent", "tool", "api")
"""Types with a `retry`."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
AGENT_PARAMETERS = (
    "prompt", "model", "temperature", "maxTokens", "topP", "systemPrompt", "context", "tools", "documents",
)  # fmt: skip


Lists: TypeAlias = "_Reading"
"""Reads lists of steps inside a config."""
_API_SECS = 30.0
"""Seconds for a request without `timeoutMs`."""
Reader = Callable[[Fields, Lists], StepKind]


def _agent(fields: Fields, _: Lists) -> StepKind:
    if not fields.has("prompt"):
        fields.problems.add(fields.at("prompt"), "is missing; it is the agent's task")
    given = {key: fields.value(key) for key in AGENT_PARAMETERS if fields.has(key)}
    return definition.AgentStep(_text(fields, "agentId"), _together(given))


def _tool(fields: Fields, _: Lists) -> StepKind:
    return definition.ToolStep(_text(fields, "name"), fields.value("arguments", dict, {}))


def _api(fields: Fields, _: Lists) -> StepKind:
    url = _text(fields, "url")
    if isinstance(url.given, str) and url.given and not url.given.lower().startswith(("http://", "https://")):
        fields.problems.add(fields.at("url"), "must begin with http:// or https://")
    given = {"method": Value(fields.choice("method", METHODS)), "url": url}
    given["headers"] = fields.value("headers", dict, {})
    if "body" in fields.given:
        given["body"] = fields.value("body")
    return definition.ApiStep(_together(given), fields.seconds("timeoutMs") or _API_SECS)


def _condition(fields: Fields, lists: Lists) -> StepKind:
    expression = _expression(fields)
    return definition.Condition(expression, _optional(fields, "then", lists), _optional(fields, "else", lists))


def _transform(fields: Fields, _: Lists) -> StepKind:
    return definition.Transform(_expression(fields))


def _delay(fields: Fields, _: Lists) -> StepKind:
    if fields.has("ms") and fields.has("duration"):
        fields.problems.add(fields.path, "has both `ms` and `duration`; they are the same, give one")
    key = "duration" if fields.has("duration") else "ms"
    ms = fields.value(key, int, 1000)
    if isinstance(fields.given.get(key), int):
        fields.number(key, 1000, least=0, most=definition.MAX_DELAY_MS)
    return definition.Delay(ms)


def _parallel(fields: Fields, lists: Lists) -> StepKind:
    branches, path, most = fields.array("branches"), fields.at("branches"), definition.MAX_BRANCHES
    if fields.has("branches") and not 1 <= len(branches) <= most:
        fields.problems.add(path, f"has {len(branches)}; from 1 to {most} are allowed")
    read = [lists(each, f"{path}[{at}]", in_loop=fields.in_loop) for at, each in enumerate(branches)]
    return definition.Parallel(tuple(read), fields.number("concurrency", 8, least=1, most=definition.MAX_CONCURRENCY))


def _loop(fields: Fields, lists: Lists) -> StepKind:
    return definition.Loop(
        fields.value("items", list) if fields.has("items") else None,
        lists(fields.array("steps"), fields.at("steps"), in_loop=True),
        fields.number("maxIterations", 100, least=1, most=definition.MAX_ITERATIONS),
        fields.number("concurrency", 1, least=1, most=definition.MAX_CONCURRENCY),
    )


def _try_catch(fields: Fields, lists: Lists) -> StepKind:
    return definition.TryCatch(_steps(fields, "try", lists), _steps(fields, "catch", lists))


def _switch(fields: Fields, lists: Lists) -> StepKind:
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


def _merge(fields: Fields, _: Lists) -> StepKind:
    if not fields.has("values"):
        fields.problems.add(fields.at("values"), "is missing; it is an array of what is merged")
    mode = fields.choice("mode", ("object", "array"))
    return definition.Merge(fields.value("values", list, []), "array" if mode == "array" else "object")


def _set_variable(fields: Fields, _: Lists) -> StepKind:
    if "value" not in fields.given:
        fields.problems.add(fields.at("value"), 'is missing; any value, or {"cel": "…"}')
    return definition.SetVariable(fields.text("name"), fields.value("value"))


def _get_variable(fields: Fields, _: Lists) -> StepKind:
    return definition.GetVariable(fields.text("name"), fields.value("default") if "default" in fields.given else None)


def _wait(fields: Fields, _: Lists) -> StepKind:
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


def _expression(fields: Fields) -> Expression:
    """Read the field `expression`. For an invalid one, which is noted, return one that is never evaluated."""
    if not fields.has("expression"):
        fields.problems.add(fields.at("expression"), "is missing; it is a CEL expression")
    return fields.expression("expression") or Expression("", in_loop=False)


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


_FIELDS = ("workflowId", "name", "steps", "input", "context", "timeoutMs", "priority")
_STEP_FIELDS = ("id", "type", "config", "onSuccess", "onError", "condition", "skipIf")
_SHOWN = 20
"""Number of problems that an error names; a model would not read more."""


async def read_workflow(arguments: Mapping[str, Any], expressions: Expressions) -> Workflow:
    """Return the workflow of these arguments. Raises `ToolError` with the code `invalid_arguments`."""
    problems = Problems()
    reading = _Reading(problems)
    workflow = None
    try:
        workflow = _workflow(arguments, problems, reading)
        wrong = await _wrong(problems, expressions)
        reading.check_references()
    except TooManyProblems:
        wrong = {}
    found = problems.listed(wrong)
    if workflow is None or found:
        raise ToolError(_listed(found), code="invalid_arguments")
    return workflow


def _workflow(arguments: Mapping[str, Any], problems: Problems, reading: "_Reading") -> Workflow:
    fields = Fields(arguments, "", problems)
    fields.only(*_FIELDS)
    given = fields.array("steps")
    if fields.has("steps") and not given:
        problems.add("steps", "is empty; a workflow has at least one step")
    limited = fields.has("timeoutMs") and arguments["timeoutMs"] != 0
    return Workflow(
        id=fields.text("workflowId"),
        name=fields.text("name"),
        steps=reading(given, "steps", in_loop=False),
        straight=not reading.nested and not reading.jumps,
        input=arguments.get("input"),
        context=fields.object("context"),
        timeout=fields.seconds("timeoutMs") if limited else None,
        priority=fields.number("priority", 0, least=-(2**31), most=2**31),
    )


async def _wrong(problems: Problems, expressions: Expressions) -> dict[Expression, str]:
    """Return what is wrong with expressions, and note if they are too many to be compiled."""
    found = [expression for _, expression in problems.expressions]
    size = sum(len(each.source) for each in found)
    if len(found) > MAX_EXPRESSIONS or size > MAX_SOURCE:
        what = f"have {len(found):,} expressions with {size:,} characters together"
        problems.add("steps", f"{what}; at most {MAX_EXPRESSIONS:,} with {MAX_SOURCE:,} characters are allowed")
        return {}
    said = await expressions.compile(found)
    return {expression: why for expression, why in zip(found, said, strict=True) if why is not None}


def _listed(problems: Sequence[str]) -> str:
    head = "The workflow cannot be run; nothing was started."
    lines = [head, *(f"- {each}" for each in problems[:_SHOWN])]
    if len(problems) > _SHOWN:
        lines.append(f"- and {len(problems) - _SHOWN} more")
    return "\n".join(lines)


class _Reading:
    """Reads lists of steps, nested ones included, and collects every id."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._ids: dict[str, str] = {}
        self._depth = self._count = 0
        self.nested = False
        self.jumps = False

    def __call__(self, given: Any, path: str, *, in_loop: bool) -> Steps:
        if not isinstance(given, list):
            self._problems.add(path, "must be an array of steps")
            return Steps((), {})
        if self._depth > MAX_NESTING:
            self._problems.add(path, f"is nested too deeply; steps may stand {MAX_NESTING} deep")
            return Steps((), {})
        self.nested |= self._depth > 0
        self._depth += 1
        read = [self._step(each, f"{path}[{at}]", in_loop) for at, each in enumerate(given)]
        self._depth -= 1
        steps = tuple(step for step in read if step is not None)
        ids = (each["id"] for each in given if isinstance(each, Mapping) and isinstance(each.get("id"), str))
        targets = dict.fromkeys(ids)
        for at, step in enumerate(read):
            if step is not None:
                self._check_jumps(step, targets, f"{path}[{at}]")
        return Steps(steps, {step.id: at for at, step in enumerate(steps)})

    def _step(self, given: Any, path: str, in_loop: bool) -> Step | None:
        if not isinstance(given, Mapping):
            self._problems.add(path, 'must be an object: {"id": "a", "type": "transform", "config": {…}}')
            return None
        self._count += 1
        if self._count > MAX_DEFINED:
            self._problems.add(path, f"is step {self._count:,}; a workflow has at most {MAX_DEFINED:,}")
            raise TooManyProblems
        fields = Fields(given, path, self._problems, in_loop=in_loop)
        fields.only(*_STEP_FIELDS)
        id, type = self._id(fields), fields.text("type")
        condition, skip_if = fields.expression("condition"), fields.expression("skipIf")
        config = Fields(fields.object("config"), fields.at("config"), self._problems, in_loop=in_loop)
        if type not in READERS:
            if type:
                what = f"no step is of type `{shortened(type)}`; {instead_of(type, tuple(READERS), 0.8)}"
                self._problems.add(fields.at("type"), what)
            return None
        reader, known = READERS[type]
        config.only(*known, *COMMON, *(("retry",) if type in RETRIED else ()))
        kind = reader(config, self)
        return Step(
            id=id,
            type=type,
            kind=kind,
            expressions=tuple(expressions_of(kind)),
            on_success=fields.text("onSuccess", required=False) or None,
            on_error=fields.text("onError", required=False) or None,
            condition=condition,
            skip_if=skip_if,
            preserve_data=config.flag("preserveData"),
            continue_on_error=config.flag("continueOnError"),
            timeout=None if type == "api" else config.seconds("timeoutMs"),  # `api` measures it itself
            retry=self._retry(config) if type in RETRIED else Retry(max_attempts=1),
        )

    def _id(self, fields: Fields) -> str:
        id = fields.text("id")
        if id and (len(id) > 128 or not id.isprintable() or any(map(str.isspace, id)) or "/" in id or id == END):
            self._problems.add(
                fields.at("id"), "must be 1 to 128 characters, no spaces, controls or `/`, and not `$end`"
            )
        if id in self._ids and id:
            what = f"`{shortened(id)}` is the id of {self._ids[id]}, too; an id is given once"
            self._problems.add(fields.at("id"), what)
        self._ids.setdefault(id, fields.path)
        return id

    def _retry(self, config: Fields) -> Retry:
        if not config.has("retry"):
            return Retry(max_attempts=1)
        fields = Fields(config.object("retry"), config.at("retry"), self._problems)
        fields.only("maxAttempts", "baseDelayMs", "maxDelayMs")
        return Retry(
            fields.number("maxAttempts", 3, least=1, most=100),
            fields.number("baseDelayMs", 200, least=0, most=86_400_000),
            fields.number("maxDelayMs", 5000, least=0, most=86_400_000),
        )

    def _check_jumps(self, step: Step, targets: Mapping[str, None], path: str) -> None:
        for key, target in (("onSuccess", step.on_success), ("onError", step.on_error)):
            if target is None:
                continue
            self.jumps = True
            if target == END or target in targets:
                continue
            elsewhere = self._ids.get(target)
            why = f"stands in another list, at {elsewhere}" if elsewhere else "is the id of no step"
            known = some((*targets, END))
            self._problems.add(f"{path}.{key}", f"`{shortened(target)}` {why}; from here a jump may go to {known}")

    def check_references(self) -> None:
        """Note expressions that read the result of an unknown step, which could only fail."""
        for path, expression in self._problems.expressions:
            for id in sorted(id for id in expression.reads.get("steps") or () if id not in self._ids):
                known = some(each for each in self._ids if each)
                what = f"reads the result of step `{shortened(id)}`, which is not there; there are {known}"
                self._problems.add(path, what)


_CEL = "A CEL expression over input, data, context, vars, steps.<id>, error and, in a loop, item and index."

_CONFIGS = "; ".join(
    f"{name}: {', '.join(keys[:2] if name == 'agent' else keys)}" for name, (_, keys) in READERS.items() if keys
)

_STEP: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "Unique in the workflow. The result is steps.<id> in expressions."},
        "type": {"type": "string", "description": f"One of {', '.join(READERS)}."},
        "config": {
            "type": "object",
            "description": f"The step's settings. Keys by type: {_CONFIGS}. In every type: preserveData, "
            'continueOnError (booleans, default false), timeoutMs. Anywhere in it, {"cel": "…"} stands for the value '
            "of an expression. then, else, try, catch and default are lists of steps, branches a list of lists.",
        },
        "onSuccess": {
            "type": "string",
            "description": f"Id of the step to continue with; {END} ends the list. Default: the next one.",
        },
        "onError": {"type": "string", "description": "The same for when the step fails. Default: the workflow fails."},
        "condition": {
            "type": "string",
            "description": f"The step is skipped unless this is true. Default: true. {_CEL}",
        },
        "skipIf": {"type": "string", "description": "The step is skipped if this expression is true. Default: false."},
    },
    "required": ["id", "type"],
}

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "workflowId": {
            "type": "string",
            "maxLength": LONGEST_LABEL,
            "description": "Names the workflow; part of the id of its handle.",
        },
        "name": {"type": "string", "maxLength": LONGEST_LABEL, "description": "The workflow's name, for people."},
        "steps": {
            "type": "array",
            "items": _STEP,
            "minItems": 1,
            "description": "Run in order, unless a step jumps.",
            "examples": [[{"id": "pause", "type": "delay", "config": {"ms": 1000}}]],
        },
        "input": {"description": "Any value: `input` in expressions, and the first `data`. Default: null."},
        "context": {"type": "object", "description": "Further values: `context` in expressions. Default: {}."},
        "timeoutMs": {
            "type": "integer",
            "minimum": 0,
            "description": "Milliseconds after which it fails; 0 is never. Default: 0.",
        },
        "priority": {"type": "integer", "description": "Of those that queue, the highest starts first. Default: 0."},
    },
    "required": ["workflowId", "name", "steps"],
}
