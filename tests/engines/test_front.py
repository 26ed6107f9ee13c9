"""The front end of calls on an engine, against workers that repeat, come late or lie, and an engine that is away."""

import asyncio
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from starlette.requests import Request
from tests.engines.site import spawn
from tests.patience import until
from tests.serve.pages import Page, browser

from keephold import Call, Runtime, ToolCall, tool
from keephold.cli import ps, show
from keephold.cli.printing import state_words
from keephold.control.control import Control
from keephold.durable.keys import make_key
from keephold.durable.waits import open_keys
from keephold.engines import following, front
from keephold.engines.base import EngineUnavailable, patiently
from keephold.engines.following import Following
from keephold.engines.front import FrontEnd
from keephold.engines.temporal.client import Place
from keephold.engines.temporal.worker import TemporalWorker
from keephold.engines.wire import (
    ENDS_AT_ONCE,
    Asking,
    Carried,
    Ended,
    EngineCall,
    Frame,
    Output,
    Reading,
    Report,
    Suspending,
    Taking,
    Talk,
    TalkAnswer,
    Waiting,
)
from keephold.errors import KeepholdError
from keephold.handles.state import Ok
from keephold.policies import QuestionPolicy
from keephold.serve.engine_channel import EngineChannel
from keephold.serve.screens import Screens
from keephold.store.base import ENGINE_AT
from keephold.testing import VirtualClock
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
        self.ends: defaultdict[str, asyncio.Future[Report]] | None = None
        """How each call ends, instead of all."""
        self.asked: Counter[str] = Counter()
        """Open requests for the outcome of each call."""
        self.most_asked = 0
        self.away = self.deaf = False
        self.refusals = 0
        """How many events are refused first."""

    def _answer(self) -> None:
        if self.away:
            raise EngineUnavailable("away")

    async def start(self, call: EngineCall) -> None:
        if self.deaf:
            self.calls[call.uid] = call  # and its answer is lost
        self._answer()
        self.calls[call.uid] = call

    async def result(self, uid: str, *, wait: bool = True) -> Report | None:
        self._answer()
        ended = self.ended if self.ends is None else self.ends[uid]
        if not wait:
            return ended.result() if ended.done() else None
        self.asked[uid] += 1
        self.most_asked = max(self.most_asked, self.asked.total())
        try:
            return await asyncio.shield(ended)
        finally:
            self.asked[uid] -= 1

    async def resolve(self, uid: str, event: str, resolution: dict[str, Any]) -> None:
        self._answer()
        self.refusals -= 1
        if self.refusals >= 0:
            raise ValueError("refused")
        self.events[event] = resolution

    async def cancel(self, uid: str) -> None:
        self._answer()
        self.cancelled.append(uid)

    def link(self, uid: str) -> str | None:
        return f"https://engine.example/{uid}"

    async def close(self) -> None:
        return None


async def talked(front_end: FrontEnd, uid: str, bearer: str, talk: Talk) -> Any:
    async def read() -> Talk:
        return talk

    return await front_end.talk(uid, bearer, read)


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
        return await talked(self.front, call.uid, call.bearer, Talk(attempt, first, list(frames), **options))

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
    assert (await site.says(1, 1, Output(b"one "), Output(b"two "))).received == 2
    assert (await site.says(1, 1, Output(b"one "), Output(b"two "), Output(b"three "))).received == 3
    assert (await site.says(1, 2, Output(b"two "))).received == 3
    assert "one two three " in await site.output()


@_site
async def test_E6_an_earlier_attempt_is_refused(site: Site) -> None:
    await site.begin()
    await site.says(1, 1, Output(b"first"), Reading(True))
    await site.says(2, 1, Output(b"second"))
    assert (await site.says(1, 3, Output(b"stale")))[0] == 409
    assert (await site.says(1, 1, value="stale"))[0] == 409
    assert "stale" not in await site.output()
    assert not site.reading, "the attempt that read its input is over"


@_site
async def test_E6_a_message_that_is_stale_when_the_store_answers_takes_no_number_of_the_next_attempt(
    site: Site,
) -> None:
    await site.begin()
    registry, may_write = site.rt.registry, asyncio.Event()
    write = registry.write

    async def slowly(ops: Any, **options: Any) -> Any:
        await may_write.wait()
        return await write(ops, **options)

    registry.write = slowly  # type: ignore[method-assign, assignment]
    (followed,) = site.front.calls.values()
    sent = ((1, 1, b"one "), (2, 1, b"two "), (1, 2, b"stale"))
    talks = [asyncio.ensure_future(followed.talk(Talk(attempt, at, [Output(text)]))) for attempt, at, text in sent]
    await asyncio.sleep(0)
    may_write.set()
    *_, stale = await asyncio.gather(*talks)
    assert isinstance(stale, tuple) and stale[0] == 409
    await site.says(2, 2, Output(b"three"))
    assert "one --- attempt 2 ---two three" in (await site.output()).replace("\\n", "")


async def test_a_program_that_workers_cannot_reach_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    engine = Held()
    async with Runtime([held], engines={"held": engine}) as rt, rt.turn("c") as turn:
        assert rt.front_end is not None
        for url, id in (("http://127.0.0.1:1", "a"), (None, "b"), (None, "c")):
            rt.front_end.url = url
            await turn.run([spawn("held", id)])
        engine.ended.set_result(Ended(Ok("over")))
        await turn.wait(all=["a", "b", "c"])
    (said,) = (record.message for record in caplog.records if "[serve] url" in record.message)
    assert "workers cannot reach it" in said


@_site
async def test_D3_a_key_of_a_kind_that_does_not_exist_is_unknown(site: Site) -> None:
    """A worker signs the keys of its call."""
    call = await site.begin()
    for wait, outcome in (("nothing:x", "unknown_or_revoked"), ("event:x", "accepted")):
        key = make_key(call.conversation, call.uid, wait, call.secret_id, bytes.fromhex(call.secret))
        assert str(await site.rt.resolve(str(key), {"status": "ok"})) == outcome


@_site
async def test_only_the_authority_of_the_call_opens_its_channel(site: Site) -> None:
    call = await site.begin()
    for bearer in ("", "x", f"{call.secret_id}.", f"{call.secret_id}.{'0' * 64}", f"zz.{'0' * 64}", "é.é"):
        assert (await talked(site.front, call.uid, bearer, Talk(1, 1, [Output(b"evil")])))[0] == 403
    assert (await talked(site.front, "0" * 32, call.bearer, Talk(1)))[0] == 403
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
        await site.says(1, 1, Output(b"kept"))
    failing.clear()
    assert (await site.says(1, 1, Output(b"kept"))).received == 1
    record = await registry.store.handle(next(iter(site.engine.calls)))
    assert record is not None and record.output is not None and record.output.total == 4


@_site
async def test_the_store_has_the_attempt_whatever_its_first_batch_holds(site: Site) -> None:
    await site.begin()
    await site.says(2, 1, Output(b"a"), Output(b"b"), Output(b"c"))
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
    assert isinstance(said, TalkAnswer) and said.answer == Ok("yes")
    assert (await site.turn.handle("h")).state == "running"


@_site
async def test_not_more_calls_than_the_engine_takes_are_waited_for_at_once(site: Site) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(front, "_POLLS_AT_ONCE", 2)
        patch.setattr(front, "_LOOK_SECS", 3600.0)
        ids = [f"h{number}" for number in range(6)]
        await site.turn.run([spawn("held", id) for id in ids])
        await until(lambda: len(site.engine.calls) == 6 and site.engine.asked.total())
        site.engine.ended.set_result(Ended(Ok("done")))
        assert len((await site.turn.wait(all=ids, timeout=60))["completed"]) == 6
    assert site.engine.most_asked == 2


@_site
async def test_every_call_that_waits_has_its_turn(site: Site) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(front, "_POLLS_AT_ONCE", 2)
        patch.setattr(front, "_LOOK_SECS", 3600.0)
        patch.setattr(following, "_TURN_SECS", 0.01)
        await site.turn.run([spawn("held", f"h{number}") for number in range(6)])
        await until(lambda: len(site.engine.asked) == 6)
        assert site.engine.most_asked == 2 == len(site.front.polls)
        site.engine.ended.set_result(Ended(Ok("done")))
        await until(lambda: not site.front.calls)
    assert not site.front.polls and not site.front.unpolled


@_site
async def test_the_end_of_a_suspended_call_that_nobody_tells_is_found(site: Site) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "_TURN_SECS", 0.01)
        patch.setattr(front, "_LOOK_SECS", 0.01)
        await site.begin()
        await site.says(1, 1, Suspending())
        await until(lambda: not site.front.polls)
        assert (await site.result(Ended(Ok("done"))))["result"] == "done"
    assert site.engine.asked.total() == 0


@_site
async def test_ends_that_workers_tell_are_seen_in_any_order(site: Site) -> None:
    engine, front_end, ids = site.engine, site.front, [f"h{number}" for number in range(300)]
    engine.ends = defaultdict(asyncio.get_running_loop().create_future)
    await site.turn.run([spawn("held", id) for id in ids])
    await until(lambda: len(engine.calls) == len(ids))
    calls = list(engine.calls.values())
    for attempt, frame in (1, Suspending()), (2, Reading(False)):
        for call in calls:
            assert isinstance(await talked(front_end, call.uid, call.bearer, Talk(attempt, 1, [frame])), TalkAnswer)
    for call in reversed(calls):
        assert await front_end.ends({call.uid: call.bearer}) == []
        await until(lambda: engine.asked[call.uid])  # noqa: B023 (awaited here)
        engine.ends[call.uid].set_result(Ended(Ok(call.id)))
        waited = await site.turn.wait(all=[call.id], timeout=60)
        assert waited["completed"][0]["result"] == call.id
    engine.ended.set_result(Ended(Ok("over")))


@_site
async def test_only_the_authority_of_a_call_says_that_it_ends_and_only_its_front_end_asks(site: Site) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "_TURN_SECS", 0.01)
        call = await site.begin()
        front_end, authority = site.front, {call.uid: call.bearer}
        followed = front_end.calls[call.uid]
        await site.says(1, 1, Suspending())
        await until(lambda: not site.front.polls)
        assert await front_end.ends({call.uid: f"{call.secret_id}.{'0' * 64}", "0" * 32: call.bearer}) == []
        assert not front_end.told and followed.suspended and not site.engine.asked[call.uid]
        assert await front_end.ends(authority) == []
        await until(lambda: site.engine.asked[call.uid])
        await site.says(2, 1, Suspending())  # the worker had died before the engine knew that the call ends
        await until(lambda: not site.engine.asked[call.uid])
        del front_end.calls[call.uid]
        assert await front_end.ends(authority) == [call.uid]
        front_end.calls[call.uid] = followed
        assert await front_end.ends(authority) == []
        assert (await site.result(Ended(Ok("done"))))["result"] == "done"
        assert await front_end.ends(authority) == [], "no other front end has it"


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
    await site.says(1, 1, Output(b"taken "))
    unsent = [(1, 2, Output(b"one ")), (1, 3, Suspending()), (2, 1, Output(b"two ")), (2, 2, Output(b"three"))]
    frames = [[attempt, number, msgspec.to_builtins(frame)] for attempt, number, frame in unsent]
    assert (await site.result(Ended(Ok("done"), unsent=frames)))["result"] == "done"
    assert "taken one --- attempt 2 ---two three" in (await site.output()).replace("\\n", "")


@_site
async def test_frames_that_further_attempts_carry_count_once(site: Site) -> None:
    await site.begin()
    await site.says(1, 1, Output(b"A"), Output(b"B"))  # the answer is lost
    carried = [Carried(1, 2, Output(b"B")), Carried(1, 4, Output(b"C"))]
    await site.says(2, 1, *carried, Output(b"D"))  # this attempt dies before it reports
    await site.says(3, 1, *carried, Output(b"E"))
    left = [[*at, msgspec.to_builtins(frame)] for *at, frame in ((1, 4, Output(b"C")), (3, 4, Output(b"F")))]
    assert (await site.result(Ended(Ok("done"), unsent=left)))["result"] == "done"
    shown = (await site.output()).replace("\\n", "")
    assert "AB--- attempt 2 ---CD--- attempt 3 ---EF" in shown


@_site
async def test_frames_that_are_carried_count_once_when_the_call_is_followed_anew(site: Site) -> None:
    await site.begin()
    carried = Carried(1, 2, Output(b"B"))
    await site.says(1, 1, Output(b"A"), Output(b"B"))
    await site.says(2, 1, carried)
    (before,) = site.front.calls.values()
    before.release()
    Following(site.front, site.engine, before._invocation, before._sink, ())
    await site.says(3, 1, carried, Output(b"C"))
    assert "AB--- attempt 2 ------ attempt 3 ---C" in (await site.output()).replace("\\n", "")


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
async def test_a_store_that_cannot_be_read_for_a_moment_ends_no_call(site: Site) -> None:
    store, failing = site.rt.registry.store, list[str]()

    def fail_once(name: str) -> None:
        read = getattr(store, name)

        async def fails(*given: Any) -> Any:
            if name not in failing:
                failing.append(name)
                raise KeepholdError("it fails over", code="store_unavailable")
            return await read(*given)

        setattr(store, name, fails)

    fail_once("waits")
    await site.begin()
    kept = await site.says(1, 1, value=msgspec.to_builtins(Ok("kept")))
    fail_once("journal")
    assert (await site.result(Ended(Ok("lost"), stored=kept.stored)))["result"] == "kept"
    assert failing == ["waits", "journal"]


@_site
async def test_an_event_whose_delivery_is_refused_is_delivered_later(site: Site) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "_AGAIN_SECS", 0.01)
        await site.begin()
        site.engine.refusals = 2
        await site.says(1, 1, Taking("event", "go"))
        (key,) = (await open_keys(site.rt.registry.store, next(iter(site.engine.calls)))).values()
        assert str(await site.rt.resolve(key, {"status": "ok", "payload": 7})) == "accepted"
        assert (await until(lambda: site.engine.events.get("go")))["payload"] == 7


@_site
async def test_many_small_payloads_of_events_stay_in_the_store_too(site: Site) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "_EVENTS_BYTES", 500)
        await site.begin()
        await site.says(1, 1, *(Taking("event", f"e{number}") for number in range(10)))
        for name, key in (await open_keys(site.rt.registry.store, next(iter(site.engine.calls)))).items():
            assert str(await site.rt.resolve(key, {"status": "ok", "payload": name * 60})) == "accepted"
        await until(lambda: len(site.engine.events) == 10)
    assert sum("stored" not in event for event in site.engine.events.values()) < 10
    assert any("stored" not in event for event in site.engine.events.values())


@_site
async def test_T1_a_call_that_waits_in_its_effects_says_so_before_it_is_suspended(site: Site) -> None:
    await site.begin()

    def waits() -> bool:
        (followed,) = site.front.calls.values()
        return followed.waits_in_effects

    for attempt, number, frame, waiting in (
        (1, 1, Waiting(True), True),
        (1, 2, Waiting(False), False),
        (1, 3, Suspending(), True),
        (2, 1, Reading(False), True),  # another worker has it now
        (2, 2, Waiting(False), False),
    ):
        await site.says(attempt, number, frame)
        assert waits() is waiting


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
async def test_C7_a_call_that_cannot_be_followed_does_not_run_on(site: Site) -> None:
    async def refuses(uid: str, *, wait: bool = True) -> Report | None:
        raise ValueError("not with this key")

    site.engine.result = refuses  # type: ignore[method-assign]
    await site.begin()
    await until(lambda: site.engine.cancelled)
    outcome = (await site.turn.handle("h")).outcome
    assert outcome.code == "engine_failed" and "not with this key" in outcome.message


def posted(path: str, body: bytes) -> Request:
    """Return a worker's request."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    return Request({**scope, "server": ("x", 1), "scheme": "http"}, receive)


@_site
async def test_K6_a_message_about_more_ends_than_a_worker_sends_is_refused_before_a_call_is_looked_up(
    site: Site,
) -> None:
    call = await site.begin()
    for more, status in (ENDS_AT_ONCE - 1, 200), (ENDS_AT_ONCE, 400):
        authorities = {**{f"{number:032}": "" for number in range(more)}, call.uid: call.bearer}
        site.front.told = False
        answer = await EngineChannel(site.front).answer(posted("/engines/", msgspec.json.encode(authorities)), {})
        assert (answer.status_code, site.front.told) == (status, status == 200)
    assert (await site.result(Ended(Ok("done"))))["result"] == "done"


@_site
async def test_without_authority_no_more_is_read_than_a_message_about_ends(site: Site) -> None:
    call, piece, read = await site.begin(), b'{"' + bytes(1 << 16).replace(b"\0", b"x"), list[int]()

    async def endless() -> dict[str, Any]:
        read.append(len(piece))
        assert sum(read) < 1 << 20
        return {"type": "http.request", "body": piece, "more_body": True}

    async def answered(uid: str, bearer: str = "", length: str | None = None) -> tuple[int, str | None]:
        heads = [] if length is None else [(b"content-length", length.encode())]
        scope = {"type": "http", "method": "POST", "path": f"/engines/{uid}", "headers": heads}
        answer = await EngineChannel(site.front).answer(Request(scope, endless), {"authorization": f"Bearer {bearer}"})
        return answer.status_code, answer.headers.get("connection")

    assert await answered(call.uid, f"{call.secret_id}.{'0' * 64}") == (403, "close")
    assert await answered("0" * 32, call.bearer) == (403, "close")
    assert await answered("", length="9" * 5000) == (413, "close")
    assert read == []
    assert await answered("") == (413, "close")


@_site
async def test_a_worker_that_dies_in_the_middle_of_its_request_is_no_error(site: Site) -> None:
    call = await site.begin()

    async def leaves() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    for uid in (call.uid, ""):
        scope = {"type": "http", "method": "POST", "path": f"/engines/{uid}", "headers": []}
        request = Request(scope, leaves)
        answer = await EngineChannel(site.front).answer(request, {"authorization": f"Bearer {call.bearer}"})
        assert answer.status_code == 499


@_site
async def test_E6_a_front_end_that_lost_the_call_sends_the_worker_to_another_one(site: Site) -> None:
    call = await site.begin()

    async def lost(ops: Any, **options: Any) -> Any:
        raise KeepholdError("another process has it", code="lease_lost")

    write, site.rt.registry.write = site.rt.registry.write, lost  # type: ignore[method-assign, assignment]
    request = posted(f"/engines/{call.uid}", b'{"attempt":1,"frames":[{"frame":"out","data":"eA=="}]}')
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
    shown = "\n".join(show._lines(found, 0))
    async with browser(control, Screens(site.rt)) as http:
        page = Page((await http.get(f"/handles/{call.uid}")).text)
    where = "its engine: it only waits, and no worker has it"
    assert where in shown and where in page.texts("dd")
    assert ENGINE_AT in found["metadata"] and ENGINE_AT not in shown and "metadata" not in page.texts("dt")
    await site.says(3, 1, Output(b"awake"))
    assert (await control.runtime_view.handle(call.uid))["suspended"] is False


@_site
async def test_ps_says_that_a_call_on_an_engine_needs_a_front_end(site: Site) -> None:
    call = await site.begin()
    await site.says(1, 1, Output(b"begun"))
    looking: Any = Control(site.rt).runtime_view
    (note,) = await ps._notes(looking, [await looking.handle(call.uid)])
    assert note.startswith("1 call of `held`: the front end is gone;") and "a worker is not enough" in note


class Away:
    """An engine that does not answer for a while."""

    def __init__(self, secs: float) -> None:
        self._back = asyncio.get_running_loop().time() + secs

    async def ask(self) -> str:
        if asyncio.get_running_loop().time() < self._back:
            raise EngineUnavailable("it is away")
        return "here"


async def test_the_log_says_once_that_an_engine_is_away_and_once_that_it_is_back(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for secs in (60, 0.05, 60):  # a short absence is not worth a line
        away = Away(secs)
        assert await asyncio.gather(*(patiently(away.ask, "Temporal") for _ in range(5))) == ["here"] * 5
    assert [each.getMessage() for each in caplog.records] == [
        "Temporal does not answer: it is away",
        "Temporal answers again",
    ] * 2


async def test_the_log_does_not_take_turns_while_one_request_fails_and_others_are_answered(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    away, here = Away(600), Away(0)
    failing = asyncio.ensure_future(patiently(away.ask, "Temporal"))
    for _ in range(50):
        assert await patiently(here.ask, "Temporal") == "here"
        await asyncio.sleep(10)
    assert [each.getMessage() for each in caplog.records] == ["Temporal does not answer: it is away"]
    await failing


async def test_the_calls_of_an_engine_that_is_away_share_a_warning(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Held()
    async with Runtime([held], engines={"held": engine}, clock=clock) as rt, rt.turn("c") as turn:
        engine.away = True
        await turn.run([spawn("held", "a"), spawn("held", "b")])
        await asyncio.sleep(60)
        engine.away = False
        await asyncio.sleep(60)
        engine.ended.set_result(Ended(Ok("over")))
        await turn.wait(all=["a", "b"])
    said = [each.getMessage() for each in caplog.records if "answer" in each.getMessage()]
    assert said == ["the engine `held` does not answer: away", "the engine `held` answers again"]


async def test_one_who_gave_up_leaves_the_warning_to_the_next(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        away = Away(3600)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(patiently(away.ask, "Temporal"), 60)
    assert [each.getMessage() for each in caplog.records] == ["Temporal does not answer: it is away"] * 2


async def test_a_worker_without_calls_says_when_temporal_is_away_and_back(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    away, idle = Away(60), TemporalWorker(Place(), [])

    async def check_health(**options: Any) -> str:
        return await away.ask()

    idle._client = SimpleNamespace(service_client=SimpleNamespace(check_health=check_health))  # type: ignore[assignment]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(idle._watch(), 600)
    assert [each.getMessage() for each in caplog.records] == [
        "Temporal does not answer: it is away",
        "Temporal answers again",
    ]
    idle._guard.close()
