"""The workflow of a call and the worker's requests to it, without a server."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import tests.temporal  # noqa: F401 (the runtime of the SDK opens descriptors that stay)
from google.protobuf.any_pb2 import Any as AnyMessage
from temporalio import workflow as sdk
from temporalio.api.common.v1 import GrpcStatus
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from tests.engines.test_channel import call_of
from tests.patience import PATIENCE
from tests.ports import free_port

from keephold import tool
from keephold.cli.worker import _measure
from keephold.engines.temporal import workflow
from keephold.engines.temporal.client import Place
from keephold.engines.temporal.worker import TemporalRecorder, TemporalWorker
from keephold.engines.temporal.workflow import CallWorkflow
from keephold.engines.wire import Line
from keephold.errors import ConfigError, KeepholdError

DIED = {"report": "died", "began": True}
BROKEN = {"report": "broken", "message": "The worker failed: x"}
SUSPENDED = {"report": "suspended"}
ENDED = {"report": "ended", "outcome": {"type": "ok", "value": 1}}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a workflow run without a server, and without sleeping."""

    async def at_once(*_: Any, **__: Any) -> None:
        return None

    info = SimpleNamespace(is_continue_as_new_suggested=lambda: False)
    for name, value in {
        "cancellation_reason": lambda: None,
        "info": lambda: info,
        "sleep": at_once,
        "wait_condition": at_once,
    }.items():
        monkeypatch.setattr(sdk, name, value)
    monkeypatch.setattr(CallWorkflow, "_suspended", at_once)


async def _run(*reports: dict[str, Any], repeats: bool = True) -> tuple[dict[str, Any], int]:
    """Run a workflow whose attempts end so. Return its result, and how many began."""
    made, left = CallWorkflow({}), list(reports)
    made._unsent = [[1, 1, {"frame": "out", "data": "eA=="}]]

    async def perform(*_: Any, **__: Any) -> dict[str, Any]:
        return left.pop(0)

    made._perform = perform  # type: ignore[method-assign]
    result = await made.run({"repeats": repeats})
    return result, len(reports) - len(left)


@pytest.mark.usefixtures("alone")
async def test_R8_only_deaths_in_a_row_stop_a_call() -> None:
    result, _ = await _run(DIED, DIED, DIED, ENDED)
    assert result["outcome"]["code"] == "crash_loop"
    for between in SUSPENDED, {"report": "again", "delay": 1}:
        assert (await _run(DIED, DIED, between, DIED, ENDED))[0]["outcome"]["type"] == "ok"


@pytest.mark.usefixtures("alone")
async def test_output_that_was_not_sent_comes_with_the_end_that_the_workflow_finds_itself() -> None:
    result, _ = await _run(DIED, repeats=False)
    assert result["outcome"]["code"] == "crashed" and result["unsent"][0][:2] == [1, 1]


@pytest.mark.usefixtures("alone")
async def test_frames_that_were_not_sent_keep_their_origin_in_every_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    given, unsent = list[Any](), [[1, 5, {"frame": "out", "data": "eA=="}]]
    reports: list[dict[str, Any]] = [{"report": "suspended", "unsent": unsent}, ENDED]

    async def outcome(attempt: Any) -> dict[str, Any]:
        given.append(attempt["args"][1]["unsent"])
        return reports[len(given) - 1]

    monkeypatch.setattr(sdk, "start_activity", lambda _, **options: options)
    monkeypatch.setattr(workflow, "_outcome", outcome)
    made = CallWorkflow({})
    for _ in reports:
        await made._perform({})
    assert given == [[], unsent]


@pytest.mark.usefixtures("alone")
async def test_R5_a_worker_that_fails_otherwise_is_tried_again_several_times() -> None:
    assert (await _run(*[BROKEN] * 5, ENDED))[0]["outcome"]["type"] == "ok"
    result, tries = await _run(*[BROKEN] * 100)
    assert result["outcome"]["code"] == "engine_failed" and 5 < tries < 20
    result, tries = await _run(BROKEN, repeats=False)
    assert result["outcome"]["code"] == "engine_failed" and tries == 1


def test_pages_of_events_and_lines_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = CallWorkflow({})
    for number in range(600):
        made.resolve(f"e{number}", {"status": "ok", "payload": "x" * 3900})
    pages, known = 0, 0
    while page := made.journal(known):
        assert len(msgspec.json.encode(page)) < 2 * workflow.PAGE_BYTES
        pages, known = pages + 1, known + len(page)
    assert known == 600 and pages > 2


async def test_E5_a_sleep_that_is_longer_than_any_timer_waits_for_years(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[timedelta] = []

    async def wait(_: Any, *, timeout: timedelta) -> None:
        waited.append(timeout)

    monkeypatch.setattr(sdk, "time", lambda: 1e9)
    monkeypatch.setattr(sdk, "wait_condition", wait)
    await CallWorkflow({})._suspended({"report": "suspended", "due": 1e300})
    assert timedelta(days=365) < waited[0] < timedelta(days=36500), "the server counts nanoseconds in 64 bits"


def _not_ready() -> RPCError:
    details = [AnyMessage(type_url="type.googleapis.com/temporal.api.errordetails.v1.WorkflowNotReadyFailure")]
    status = GrpcStatus(code=RPCStatusCode.FAILED_PRECONDITION, message="not ready", details=details)
    return RPCError("not ready", RPCStatusCode.FAILED_PRECONDITION, status.SerializeToString())


class _Handle:
    def __init__(self, *answers: Any) -> None:
        self.ids: list[str] = []
        self._answers = list(answers)

    async def execute_update(self, name: str, *, args: list[Any], id: str) -> Any:
        self.ids.append(id)
        return await self.query(name, 0)

    async def query(self, name: str, start: int) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_E2_steps_with_long_ids_are_recorded_each() -> None:
    handle = _Handle(False, False, False)
    recorder = TemporalRecorder(cast(Any, handle), 1)
    for number in range(3):
        await recorder.record(Line("step", "s" * 500 + str(number)))
    assert len(set(handle.ids)) == 3 and all(len(id) < 250 for id in handle.ids)


async def test_a_workflow_that_is_not_ready_is_asked_again() -> None:
    handle = _Handle(_not_ready(), [{"kind": "step", "name": "s"}], [], _not_ready(), True)
    recorder = TemporalRecorder(cast(Any, handle), 1)
    assert await recorder.journal() == [Line("step", "s")]
    assert await recorder.record(Line("step", "t")) is True


async def test_a_call_that_this_version_cannot_read_waits_for_another_worker() -> None:
    @tool(engine="temporal")
    async def t() -> None:
        return None

    call = msgspec.to_builtins(call_of())
    for given_call, given in ({"uid": 5}, {"attempt": 1}), (call, {"attempt": "later"}):
        with pytest.raises(ApplicationError) as refused:
            await TemporalWorker(Place(), [t])._attempt(given_call, given)
        assert refused.value.type == workflow.UNKNOWN


async def test_R6_a_call_that_comes_after_the_signal_to_stop_is_left_to_another_worker() -> None:
    @tool(engine="temporal")
    async def t() -> None:
        raise AssertionError("it has not begun")

    working = TemporalWorker(Place(), [t])
    working._stopping = True
    unsent = [[1, 1, {"frame": "out", "data": "eA=="}]]
    report = await working._attempt(msgspec.to_builtins(call_of()), {"attempt": 2, "unsent": unsent})
    assert report["report"] == "suspended" and report["due"] > 0 and report["unsent"] == unsent


async def test_R6_a_worker_that_finds_no_server_ends_when_it_is_told_to() -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    factory = loop.get_task_factory()
    loop.call_later(0.2, stop.set)
    await asyncio.wait_for(TemporalWorker(Place(address=f"127.0.0.1:{free_port()}"), []).run(stop), PATIENCE)
    loop.set_task_factory(factory)


def test_L4_a_bad_address_is_told_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="invalid port number"):
        asyncio.run(Place(address="127.0.0.1:99999").connect())
    for address in ("x", "127.0.0.1:x", ":99999"):
        with pytest.raises(KeepholdError, match="give HOST:PORT"):
            _measure(None, address)
