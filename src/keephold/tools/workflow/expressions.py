"""Expressions of a workflow: CEL, compiled when the workflow is read, so that an invalid one is refused before the run.

A model writes them, so nothing of them is compiled or evaluated here: the runtime sends them to its worker process,
which runs `tools/cel.py` with limits. All expressions of a step travel in one request, with the variables they read.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

from keephold.errors import KeepholdError, ToolError
from keephold.tools.cel import MAX_STEP_BYTES, shortened
from keephold.worker import RequestTooLarge, Worker, WorkerDied, WorkerUnavailable

MAX_EXPRESSIONS = 5000
"""Expressions of a workflow."""
MAX_SOURCE = 200_000
"""Characters of them all: two seconds of compiling."""
MEMORY = 512 * 1024 * 1024
"""Bytes of the worker's address space, 50 MB of which are its own."""
SECONDS = 0.5
"""Processor time of one request. A step that needs more is an error, and others wait for so long at most."""
_COMPILED = 5000
"""Characters that are compiled in one request: a twentieth of a second, a tenth of the limit."""
_AT_ONCE = 8
"""Requests under way. More would not be quicker, and each is a copy of its variables."""

_NOT_ENCODED = (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError)
"""Raised for text that is not Unicode, for values nested too deeply, for integers of more than 64 bits."""

Reads = Mapping[str, Set[str] | None]
"""The variables that an expression reads; for an object the keys, or None for all of it."""
Values = Callable[[Reads], Mapping[str, Any]]
"""Returns the variables that are read."""


@dataclass(slots=True, eq=False)
class Expression:
    """An expression. `Expressions.compile` tells whether it can be used, and what it reads."""

    source: str
    in_loop: bool
    """Whether it may read `item` and `index`."""
    reads: Reads = field(default_factory=dict)


class LimitHit(ToolError):
    """The worker reached a limit, which depends on the machine: another time the expression may have a value."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="limit_exceeded")


class Unavailable(ToolError):
    """There is no worker, and nothing was evaluated."""

    def __init__(self, why: object) -> None:
        super().__init__(f"expressions cannot be evaluated: {why}", transient=True)


class Evaluated:
    """The values of expressions, or why they have none."""

    __slots__ = ("results",)

    def __init__(self, results: Mapping[Expression, tuple[bool, Any]]) -> None:
        self.results = results

    def __call__(self, expression: Expression) -> Any:
        """Return the value of an expression. Raises `ToolError`."""
        ok, value = self.results[expression]
        if not ok:
            raise ToolError(value)
        return value


NOTHING = Evaluated({})


class Requests(Protocol):
    """A worker, as expressions need it."""

    async def request(self, body: Any) -> Any: ...

    def close(self) -> None: ...


class Expressions:
    """Compiles and evaluates the expressions of a runtime's workflows, in a worker that starts with the first one."""

    def __init__(self, worker: Requests | None = None) -> None:
        self._worker = worker or Worker("keephold.tools.cel", memory=MEMORY, seconds=SECONDS, most=MAX_STEP_BYTES)
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._worker.close()

    async def compile(self, expressions: Sequence[Expression]) -> list[str | None]:
        """Set what each of them reads, and return for each what is wrong with it. Raises `ToolError` at a limit."""
        problems: list[str | None] = []
        while rest := expressions[len(problems) :]:
            size, count = len(rest[0].source), 1
            while count < len(rest) and (size := size + len(rest[count].source)) <= _COMPILED:
                count += 1
            problems += await self._compiled(rest[:count])
        return problems

    async def _compiled(self, expressions: Sequence[Expression]) -> list[str | None]:
        try:
            answers = await self._asked("compile", _sources(expressions))
        except WorkerDied as died:
            raise LimitHit(f"{_named(expressions)} cannot be compiled: {died}") from None
        for expression, (_, reads) in zip(expressions, answers, strict=True):
            expression.reads = {name: None if keys is None else frozenset(keys) for name, keys in reads.items()}
        return [problem for problem, _ in answers]

    async def evaluate(
        self, expressions: Sequence[Expression], values: Values, guards: Sequence[bool] = ()
    ) -> Evaluated:
        """Evaluate the expressions of a step. Raises `LimitHit` if the worker reached a limit, and `Unavailable`.

        The first of them are its guards. If one is not as it must be, the others are not evaluated.
        """
        if not expressions:
            return NOTHING
        reads = expressions[0].reads if len(expressions) == 1 else _union(expressions)
        try:
            results = await self._asked("evaluate", values(reads), guards, _sources(expressions))
            return Evaluated(dict(zip(expressions, results, strict=False)))
        except WorkerDied as died:
            raise LimitHit(f"{_named(expressions)} failed: {died}") from None
        except RequestTooLarge:
            why = f"more than {MAX_STEP_BYTES // 1024**2} MiB are read; name the parts that are needed"
        except _NOT_ENCODED as error:
            why = f"what it reads is not JSON ({error})"
        failed = dict.fromkeys(expressions, (False, f"{_named(expressions)} failed: {why}"))
        if 0 < len(guards) < len(expressions):  # the guards may say that the others are not needed
            own = await self.evaluate(expressions[: len(guards)], values, guards)
            return Evaluated({**failed, **own.results})
        return Evaluated(failed)

    async def _asked(self, *body: Any) -> Any:
        async with self._gate:
            try:
                return await self._worker.request(body)
            except WorkerUnavailable as why:
                if self._closed:
                    raise KeepholdError("the runtime is being closed", code="runtime_closing") from None
                raise Unavailable(why) from None


def _sources(expressions: Sequence[Expression]) -> list[tuple[str, bool]]:
    return [(each.source, each.in_loop) for each in expressions]


def _union(expressions: Sequence[Expression]) -> Reads:
    reads: dict[str, set[str] | None] = {}
    for each in expressions:
        for name, keys in each.reads.items():
            known = reads.setdefault(name, set())
            if known is not None and keys is not None:
                known |= keys
            else:
                reads[name] = None
    return reads


def _named(expressions: Sequence[Expression]) -> str:
    first, count = f"`{shortened(expressions[0].source)}`", len(expressions)
    return f"the expression {first}" if count == 1 else f"one of {count} expressions, the first of which is {first},"
