"""Durable effects promise the same on Temporal, with a real server and real HTTP."""

import logging
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from temporalio import activity
from temporalio.exceptions import ActivityError, ApplicationError
from tests.engines.site import front_end, working
from tests.soak import SOAK
from tests.temporal import Place

from keephold.engines import body as bodies
from keephold.engines import following
from keephold.engines.temporal import workflow
from keephold.engines.temporal.worker import TemporalWorker
from keephold.engines.temporal.workflow import ACTIVITY, LOST, CallWorkflow
from keephold.errors import ConfigError
from keephold.runtime import Runtime
from keephold.testing.conformance import EffectsConformance, Site
from keephold.testing.conformance.site import code_of
from keephold.tools.base import Tool
from keephold.tools.call import Call

pytestmark = pytest.mark.slow
DIED = "died"


class TemporalSite(Site):
    """A front end, and a worker that takes its calls from a real server. In a crash its attempts end, and the workflow
    is told that they died; until the server misses their heartbeats would take 15 s."""

    def __init__(self, runtime: Runtime, worker: "MortalWorker") -> None:
        super().__init__()
        self.runtime, self._worker = runtime, worker

    async def crash(self) -> None:
        for body in tuple(self._worker._bodies):
            self._worker.dying.add(body.call.uid)
            body.lost()


class MortalWorker(TemporalWorker):
    """A worker whose attempts can end as if it had died."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.dying: set[str] = set()

    @activity.defn(name=ACTIVITY)
    async def _attempt(self, given_call: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        try:
            return await super()._attempt(given_call, given)
        except ApplicationError as error:
            if error.type != LOST or given_call["uid"] not in self.dying:
                raise
            self.dying.discard(given_call["uid"])
            raise ApplicationError("it died", type=DIED, non_retryable=True) from None


_broken = CallWorkflow._broken


def _died(workflow: CallWorkflow, error: ActivityError) -> dict[str, Any]:
    """Take the report of a death for the server's own: a worker may not report that its heartbeats stopped."""
    died = isinstance(error.cause, ApplicationError) and error.cause.type == DIED
    return {"report": "died", "began": False} if died else _broken(workflow, error)


class OnTemporal(EffectsConformance):
    engine = "temporal"
    programs = 4
    suspend_secs = 600.0
    limits: ClassVar[Mapping[Any, Mapping[str, int]]] = {}
    """Limits that are smaller than usual, by module."""

    def __init__(self, place: Place) -> None:
        self._place = place

    @asynccontextmanager
    async def make(self, tools: Sequence[Tool]) -> AsyncIterator[Site]:
        workers = working(self._place, tools, kind=MortalWorker, suspend_secs=self.suspend_secs)
        served = front_end(self._place, tools)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CallWorkflow, "_broken", _died)
            for module, values in self.limits.items():
                for name, value in values.items():
                    patch.setattr(module, name, value)
            async with workers as (worker,), served as runtime:
                assert isinstance(worker, MortalWorker)
                yield TemporalSite(runtime, worker)


@pytest.mark.parametrize("check", OnTemporal.checks())
async def test_temporal(check: str, temporal: Place, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL):  # a traceback that pytest keeps would keep the worker's connection open
        await OnTemporal(temporal).run(check)


class Suspended(OnTemporal):
    """Calls are suspended as soon as they wait, read their journals in pages, and continue as new after few updates."""

    programs = 2
    suspend_secs = 0.05
    limits: ClassVar = {
        workflow: {"UPDATES": 8, "INLINE_BYTES": 200, "PAGE_BYTES": 300},
        bodies: {"INLINE_BYTES": 64, "ENGINE_BYTES": 2000},
        following: {"_EVENT_BYTES": 16, "_EVENTS_BYTES": 200},
    }


_COUNT = (
    "check_C7_an_abort_reaches_a_call_that_works_and_one_that_waits",
    "check_E5_an_event_finds_the_call_in_its_next_life",
)
"""Checks that count how often a tool begins: one that is suspended begins more often."""
_CHECKS = [check for check in Suspended.checks() if check not in _COUNT]


@pytest.mark.parametrize("check", _CHECKS if SOAK else _CHECKS[::5])
async def test_temporal_suspended(check: str, temporal: Place, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL):
        await Suspended(temporal).run(check)


async def test_an_engine_refuses_by_name_what_it_cannot_do(temporal: Place) -> None:
    suite, keys = OnTemporal(temporal), list[str]()

    @suite.tool()
    async def work(call: Call, key: str = "") -> list[str | None]:
        fx = call.durable()
        keys.append(await fx.external_event_key("mine"))
        return [await code_of(fx.await_event_json(key)), await code_of(_handles(call))] if key else []

    async def _handles(call: Call) -> None:
        await call.handles.wait(all=["x"])

    with pytest.raises(ConfigError, match='on_crash="external" is not possible'):
        suite.tool(on_crash="external", deadline_secs=60)(_handles)
    async with suite.make([work]) as site:
        await site.run("work")
        response = await site.run("work", key=keys[0])
    assert response.result == '["engine_unsupported","engine_unsupported"]'


@pytest.mark.skipif(not SOAK, reason="for the soak: the suite plays some")
@pytest.mark.parametrize("suite", [OnTemporal, Suspended])
@pytest.mark.parametrize("round", range(50))
async def test_more_random_programs(
    round: int, suite: type[OnTemporal], temporal: Place, caplog: pytest.LogCaptureFixture
) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    with caplog.at_level(logging.CRITICAL):
        await suite(temporal).play(seed=seed, count=16, crashes=2)
