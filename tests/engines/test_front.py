"""The front end of calls on an engine, against workers that repeat, come late or lie, and an engine that is away."""

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.requests import Request
from tests.engines.site import spawn
from tests.patience import until

from keephold import Call, Runtime, ToolCall, tool
from keephold.cli.printing import state_words
from keephold.control.control import Control
from keephold.durable.waits import open_keys
from keephold.engines import following
from keephold.engines.base import EngineUnavailable
from keephold.engines.front import FrontEnd
from keephold.engines.wire import (
    Asking,
    Ended,
    EngineCall,
    Frame,
    Printed,
    Reading,
    Report,
    Said,
    Suspending,
    Taking,
    Talk,
)
from keephold.errors import KeepholdError
from keephold.handles.state import Ok
from keephold.policies import QuestionPolicy
from keephold.serve.engine_channel import EngineChannel
from keephold.tools.base import Action

ALL: tuple[Action, ...] = ("spawn", "fetch", "apply", "abort")


@tool(engine="held", on_crash="replay", actions=ALL, questions={"sure": QuestionPolicy(target="assistant")})
async def held(call: Call) -> str:
    raise AssertionError("it runs on the engine")


class Held:
    """An engine whose calls end when the test says so."""

    def __init__(self) -> None:
        self.calls: dict[str, EngineCall] = {}
        self.events: dict[str, Any] = {}
        self.cancelled: list[str] = []
        self.ended: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self.away = self.deaf = False

    def _answer(self) -> None:
        if self.away:
            raise EngineUnavailable("away")

    async def start(self, call: EngineCall) -> None:
        if self.deaf:
            self.calls[call.uid] = call  # and its answer is lost
        self._answer()
        self.calls[call.uid] = call

    async def result(self, uid: str) -> Report:
        self._answer()
        return await asyncio.shield(self.ended)

    async def resolve(self, uid: str, event: str, resolution: dict[str, Any]) -> None:
        self._answer()
        self.events[event] = resolution

    async def cancel(self, uid: str) -> None:
        self._answer()
        self.cancelled.append(uid)

    async def closed(self, uids: Collection[str]) -> set[str]:
        return set()

    def link(self, uid: str) -> str | None:
        return f"https://engine.example/{uid}"

    async def close(self) -> None:
        return None


class Site:
    """A runtime with one call, and the worker's part of it."""

    def __init__(self, rt: Runtime, turn: Any, engine: Held) -> None:
        self.rt, self.turn, self.engine = rt, turn, engine
        assert rt.front_end is not None
        self.front: FrontEnd = rt.front_end
        self.front.url = "http://127.0.0.1:1"

    async def begin(self) -> EngineCall:
        await self.turn.run([spawn("held", "h")])
        return await until(lambda: next(iter(self.engine.calls.values()), None))  # type: ignore[no-any-return]

    async def says(self, attempt: int, first: int, *frames: Frame, **options: Any) -> Any:
        (call,) = self.engine.calls.values()
        return await self.front.talk(call.uid, call.bearer, Talk(attempt, first, list(frames), **options))

    @property
    def reading(self) -> Any:
        (following,) = self.front.calls.values()
        return bool(following._handle.reading)

    async def output(self) -> str:
        (response,) = await self.turn.run([ToolCall("r", "read_output", {"id": "h"})])
        return str(response.result)

    async def result(self, report: Report) -> dict[str, Any]:
        self.engine.ended.set_result(report)
        waited = await self.turn.wait(all=["h"], timeout=60)
        return dict(waited["completed"][0])


def _site(test: Any) -> Any:
    async def run(tmp_path: Path) -> None:
        engine = Held()
        store = f"sqlite:///{tmp_path}/k.db"
        async with Runtime([held], store=store, engines={"held": engine}) as rt, rt.turn("c") as turn:
            site = Site(rt, turn, engine)
            await test(site)
            if not engine.ended.done():
                await site.result(Ended(Ok("over")))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@_site
async def test_frames_that_are_sent_again_count_once(site: Site) -> None:
    await site.begin()
    assert (await site.says(1, 1, Printed(b"one "), Printed(b"two "))).received == 2
    assert (await site.says(1, 1, Printed(b"one "), Printed(b"two "), Printed(b"three "))).received == 3
    assert (await site.says(1, 2, Printed(b"two "))).received == 3
    assert "one two three " in await site.output()


@_site
async def test_E6_an_earlier_attempt_is_refused(site: Site) -> None:
    await site.begin()
    await site.says(1, 1, Printed(b"first"), Reading(True))
    await site.says(2, 1, Printed(b"second"))
    assert (await site.says(1, 3, Printed(b"stale")))[0] == 409
    assert (await site.says(1, 1, value="stale"))[0] == 409
    assert "stale" not in await site.output()
    assert not site.reading, "the attempt that read its input is over"


@_site
async def test_only_the_authority_of_the_call_opens_its_channel(site: Site) -> None:
    call = await site.begin()
    for bearer in ("", "x", f"{call.secret_id}.", f"{call.secret_id}.{'0' * 64}", f"zz.{'0' * 64}", "é.é"):
        assert (await site.front.talk(call.uid, bearer, Talk(1, 1, [Printed(b"evil")])))[0] == 403  # type: ignore[index]
    assert (await site.front.talk("0" * 32, call.bearer, Talk(1)))[0] == 403  # type: ignore[index]
    assert "evil" not in await site.output()


@_site
async def test_R4_frames_whose_write_failed_are_written_before_they_are_acknowledged(site: Site) -> None:
    await site.begin()
    registry, failing = site.rt.registry, [True]
    write = registry.write

    async def fails(ops: Any, **options: Any) -> Any:
        if failing:
            raise KeepholdError("the disk is full", code="store_unavailable")
        return await write(ops, **options)

    registry.write = fails  # type: ignore[method-assign, assignment]
    with pytest.raises(KeepholdError):
        await site.says(1, 1, Printed(b"kept"))
    failing.clear()
    assert (await site.says(1, 1, Printed(b"kept"))).received == 1
    record = await registry.store.handle(next(iter(site.engine.calls)))
    assert record is not None and record.output is not None and record.output.total == 4


@_site
async def test_the_store_has_the_attempt_whatever_its_first_batch_holds(site: Site) -> None:
    await site.begin()
    await site.says(2, 1, Printed(b"a"), Printed(b"b"), Printed(b"c"))
    record = await site.rt.registry.store.handle(next(iter(site.engine.calls)))
    assert record is not None and record.attempt == 2


@_site
async def test_E10_the_next_attempt_gets_the_answer_that_an_earlier_one_got(site: Site) -> None:
    await site.begin()
    asking = Asking(1, "sure:1", {"id": "sure", "text": "Sure?"})
    await site.says(1, 1, asking)
    await until(lambda: _waits(site))
    await site.turn.send("h", "yes")
    assert (await site.says(1, 2, ask=1, wait=30)).answer == Ok("yes")
    said = await site.says(2, 1, asking, ask=1)
    assert isinstance(said, Said) and said.answer == Ok("yes")
    assert (await site.turn.handle("h")).state == "running"


@_site
async def test_not_more_calls_than_the_engine_takes_are_waited_for_at_once(site: Site) -> None:
    polls, most = set[str](), 0
    result = site.engine.result

    async def counted(uid: str) -> Report:
        nonlocal most
        polls.add(uid)
        most = max(most, len(polls))
        try:
            return await result(uid)
        finally:
            polls.discard(uid)

    site.engine.result = counted  # type: ignore[method-assign]
    limit, following._POLLS_AT_ONCE = following._POLLS_AT_ONCE, 2
    try:
        ids = [f"h{number}" for number in range(6)]
        await site.turn.run([spawn("held", id) for id in ids])
        await until(lambda: len(site.front.unpolled) == 4)
        site.engine.ended.set_result(Ended(Ok("done")))
        assert len((await site.turn.wait(all=ids, timeout=60))["completed"]) == 6
    finally:
        following._POLLS_AT_ONCE = limit
    assert most == 2


@_site
async def test_A6_a_call_that_has_not_fetched_its_input_does_not_wait_for_the_caller(site: Site) -> None:
    await site.begin()
    await site.turn.send("h", "sent")
    said = await site.says(1, 1, Reading(True))
    assert said.inputs == ["sent"] and not site.reading
    await site.says(1, 2, inputs=1)
    await site.says(1, 2, Reading(True), inputs=1)
    assert not site.reading, "it was said before the input came"
    await site.says(1, 3, Reading(False, 1), Reading(True, 1), inputs=1)
    assert site.reading
    assert (await site.says(2, 1, Reading(True))).inputs == ["sent"] and not site.reading


async def _waits(site: Site) -> bool:
    return bool((await site.turn.handle("h")).state == "waiting")


@_site
async def test_frames_of_all_attempts_that_nobody_took_come_with_the_end(site: Site) -> None:
    await site.begin()
    await site.says(1, 1, Printed(b"taken "))
    unsent = [(1, 2, Printed(b"one ")), (1, 3, Suspending()), (2, 1, Printed(b"two ")), (2, 2, Printed(b"three"))]
    frames = [[attempt, number, msgspec.to_builtins(frame)] for attempt, number, frame in unsent]
    assert (await site.result(Ended(Ok("done"), frames)))["result"] == "done"
    assert "taken one --- attempt 2 ---two three" in (await site.output()).replace("\\n", "")


@_site
async def test_a_large_payload_of_an_event_stays_in_the_store(site: Site) -> None:
    await site.begin()
    await site.says(1, 1, Taking("event", "go"))
    (key,) = (await open_keys(site.rt.registry.store, next(iter(site.engine.calls)))).values()
    payload = "x" * 100_000
    assert str(await site.rt.resolve(key, {"status": "ok", "payload": payload})) == "accepted"
    event = await until(lambda: site.engine.events.get("go"))
    assert len(str(event)) < 1000
    assert (await site.says(1, 2, fetch=event["stored"])).value == payload


@_site
async def test_C7_an_aborted_call_whose_start_may_have_arrived_is_cancelled_when_the_engine_answers(site: Site) -> None:
    site.engine.away = site.engine.deaf = True
    await site.turn.run([spawn("held", "h")])
    await until(lambda: site.engine.calls)
    await site.turn.run([ToolCall("x", "held", {"action": "abort", "id": "h"})])
    assert (await site.turn.handle("h")).state == "stopped"
    site.engine.away = False
    await until(lambda: site.engine.cancelled)


@_site
async def test_E6_a_front_end_that_lost_the_call_sends_the_worker_to_another_one(site: Site) -> None:
    call = await site.begin()

    async def lost(ops: Any, **options: Any) -> Any:
        raise KeepholdError("another process has it", code="lease_lost")

    write, site.rt.registry.write = site.rt.registry.write, lost  # type: ignore[method-assign, assignment]
    body = b'{"attempt":1,"frames":[{"frame":"out","data":"eA=="}]}'

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    scope = {"type": "http", "method": "POST", "path": f"/engines/{call.uid}", "headers": [], "query_string": b""}
    request = Request({**scope, "server": ("x", 1), "scheme": "http"}, receive)
    answer = await EngineChannel(site.front).answer(request, {"authorization": f"Bearer {call.bearer}"})
    assert (answer.status_code, answer.headers["connection"]) == (421, "close")
    site.rt.registry.write = write  # type: ignore[method-assign]


@_site
async def test_a_handle_as_json_says_that_it_is_suspended_and_where_its_engine_shows_it(site: Site) -> None:
    call = await site.begin()
    control = Control(site.rt)
    await site.says(2, 1, Suspending())
    found = await control.runtime_view.handle(call.uid)
    assert (found["suspended"], found["attempt"], found["ui"]) == (True, 2, f"https://engine.example/{call.uid}")
    assert state_words(found, 0) == "running, suspended, attempt 2"
    await site.says(3, 1, Printed(b"awake"))
    assert (await control.runtime_view.handle(call.uid))["suspended"] is False
