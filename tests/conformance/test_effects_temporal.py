"""Durable effects promise the same on Temporal, with a real server and real HTTP."""

import logging
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio import activity
from temporalio.exceptions import ActivityError, ApplicationError
from tests.engines.site import front_end, working
from tests.soak import SOAK
from tests.temporal import Place

pytest.register_assert_rewrite("keephold.testing.conformance")

from keephold.engines.temporal.worker import TemporalWorker  # noqa: E402
from keephold.engines.temporal.workflow import ACTIVITY, LOST, CallWorkflow  # noqa: E402
from keephold.errors import ConfigError  # noqa: E402
from keephold.runtime import Runtime  # noqa: E402
from keephold.testing.conformance import EffectsConformance, Site  # noqa: E402
from keephold.testing.conformance.site import code_of  # noqa: E402
from keephold.tools.base import Tool  # noqa: E402
from keephold.tools.call import Call  # noqa: E402

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

    def __init__(self, place: Place) -> None:
        self._place = place

    @asynccontextmanager
    async def make(self, tools: Sequence[Tool]) -> AsyncIterator[Site]:
        workers, served = working(self._place, tools, kind=MortalWorker), front_end(self._place, tools)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CallWorkflow, "_broken", _died)
            async with workers as (worker,), served as runtime:
                assert isinstance(worker, MortalWorker)
                yield TemporalSite(runtime, worker)


@pytest.mark.parametrize("check", OnTemporal.checks())
async def test_temporal(check: str, temporal: Place, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL):  # a traceback that pytest keeps would keep the worker's connection open
        await OnTemporal(temporal).run(check)


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
@pytest.mark.parametrize("round", range(50))
async def test_more_random_programs(round: int, temporal: Place, caplog: pytest.LogCaptureFixture) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    with caplog.at_level(logging.CRITICAL):
        await OnTemporal(temporal).play(seed=seed, count=16, crashes=2)
