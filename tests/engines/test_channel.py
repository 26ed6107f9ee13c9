"""One attempt on a worker: its channel while the front end is away or refuses it, and its end before it has begun."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx2
import msgspec
import pytest
from tests.patience import PATIENCE, until

from keephold import Call, tool
from keephold.engines import channel as channels
from keephold.engines.body import Body
from keephold.engines.channel import SPOOL_BYTES, UNSENT_BYTES, Channel, Ends
from keephold.engines.wire import (
    REFUSES,
    Emitting,
    Ended,
    EngineCall,
    Frame,
    Given,
    Line,
    Lost,
    Output,
    Progressed,
    Showing,
    Suspended,
    Taking,
    Talk,
    TalkAnswer,
    origin,
)
from keephold.handles.state import Failure, Ok
from keephold.tools.guard import Guard


class Front:
    """A front end that is away, takes everything, or refuses with a status."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.heads = {REFUSES: "1"}
        self.epoch = "e"
        self.output = b""
        self.frames = list[Frame]()
        self.received = 0
        self.values: dict[str, Any] = {}

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if not self.status:
            raise httpx2.ConnectError("away")
        if self.status != 200:
            return httpx2.Response(self.status, text="no", headers=self.heads)
        talk = msgspec.json.decode(request.content, type=Talk)
        if talk.fetch is not None:
            return self._says(TalkAnswer(value=self.values[talk.fetch]))
        if talk.value is not msgspec.UNSET:
            self.values[str(len(self.values))] = talk.value
            return self._says(TalkAnswer(stored=str(len(self.values) - 1)))
        for number, frame in enumerate(talk.frames, talk.first):
            if number > self.received:
                assert number == self.received + 1
                self.received = number
                self.frames.append(frame)
                *_, content = origin(0, 0, frame)
                self.output += content.data if isinstance(content, Output) else b""
        if talk.wait and not talk.frames:
            await asyncio.sleep(0.01)
        return self._says(TalkAnswer(self.received, self.epoch))

    @staticmethod
    def _says(said: TalkAnswer) -> httpx2.Response:
        return httpx2.Response(200, content=msgspec.json.encode(said))

    def channel(self, call: EngineCall, attempt: int = 1) -> Channel:
        return Channel(httpx2.AsyncClient(transport=httpx2.MockTransport(self)), call, attempt)


class Recorder:
    """A journal in memory; its pages may never come."""

    def __init__(self, lines: Sequence[Line] = (), *, stuck: bool = False) -> None:
        self.lines = list(lines)
        self._stuck = stuck

    async def record(self, line: Line) -> bool:
        self.lines.append(line)
        return False

    async def events(self, known: int) -> dict[str, Any]:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def journal(self) -> Sequence[Line]:
        if self._stuck:
            await asyncio.get_running_loop().create_future()
        return self.lines


def call_of(url: str | None = "http://front") -> EngineCall:
    return EngineCall(
        uid="u", id="h", tool="t", arguments={}, call_id="1", conversation="c", turn="t", stateful=True, secret_id="s",
        secret="00" * 32, url=url,
    )  # fmt: skip


async def test_of_output_that_no_front_end_takes_the_middle_is_missing_and_counted() -> None:
    front = Front(0)
    channel = front.channel(call_of())
    channel.open(listens=False)
    lines = [f"line {number:06}".encode() + b" " * 1012 for number in range(20 << 10)]  # 20 MB
    for at, line in enumerate(lines):
        channel.say(Output(line))
        if at % 1000 == 0:
            await asyncio.sleep(0)  # it tries to send
    assert channel._size <= SPOOL_BYTES
    front.status = 200
    await asyncio.wait_for(channel.flush(60), 60)
    await channel.close()
    head, _, rest = front.output.partition(b"\n[")
    count, said, tail = rest.partition(b" bytes are missing: no front end took them]\n")
    assert said and head == b"".join(lines)[: len(head)] and b"".join(lines).endswith(tail)
    assert len(head) + int(count) + len(tail) == sum(map(len, lines))
    assert len(head) > SPOOL_BYTES // 4 and len(tail) > SPOOL_BYTES // 4


async def test_a_refused_attempt_does_not_wait_until_its_output_is_taken() -> None:
    front = Front(410)
    channel = front.channel(call_of())
    channel.open(listens=False)
    for _ in range(100):
        channel.say(Output(b"x" * (UNSENT_BYTES // 10)))
    await asyncio.wait_for(channel.flush(0.01), 60)
    await channel.close()


async def test_a_worker_learns_that_it_is_refused_although_its_message_was_not_read() -> None:
    async def front(request: httpx2.Request) -> httpx2.Response:
        if len(request.content) > 1 << 20:
            raise httpx2.ReadError("the connection was closed before all was sent")
        return httpx2.Response(403, headers={REFUSES: "1"})

    channel = Channel(httpx2.AsyncClient(transport=httpx2.MockTransport(front)), call_of(), 1)
    with pytest.raises(Lost):
        await asyncio.wait_for(channel.store("x" * (2 << 20)), PATIENCE)


async def test_after_a_failed_message_the_front_end_does_not_repeat_the_inputs() -> None:
    inputs = ["a", "b"]
    brought: list[list[str]] = []

    async def front(request: httpx2.Request) -> httpx2.Response:
        talk = msgspec.json.decode(request.content, type=Talk)
        if len(brought) == 1:
            brought.append([])
            return httpx2.Response(503)
        brought.append(inputs[talk.inputs :])
        return Front._says(TalkAnswer(talk.first + len(talk.frames) - 1, "e", brought[-1]))

    channel = Channel(httpx2.AsyncClient(transport=httpx2.MockTransport(front)), call_of(), 1)
    channel.open(listens=False)
    channel.say(Output(b"x"))
    await until(lambda: brought)
    channel.say(Output(b"y"))
    await until(lambda: len(brought) >= 4)
    await channel.close()
    assert brought == [inputs, [], [], []]


async def test_only_a_refusal_by_a_front_end_ends_an_attempt() -> None:
    front = Front(403)
    front.heads = {}  # a proxy says so
    channel = front.channel(call_of())
    storing = asyncio.ensure_future(channel.store("value"))
    await asyncio.sleep(0.3)
    assert not storing.done()
    front.status = 200
    assert await asyncio.wait_for(storing, PATIENCE) == "0"


async def test_a_frame_that_no_front_end_could_read_holds_up_no_other_one() -> None:
    front = Front()
    channel = front.channel(call_of())
    channel.open(listens=False)
    bad: Any = [5]
    for frame in (
        Progressed(float("nan")), Progressed(bad), Progressed(1, message="\ud800"), Emitting("1", bad),
        Showing("file", None, bad), Taking("event", bad),
    ):  # fmt: skip
        channel.say(frame)
    channel.say(Output(b"x"))
    await asyncio.wait_for(channel.flush(PATIENCE), PATIENCE)
    await channel.close()
    assert front.frames == [Output(b"x")]


async def test_diffs_and_events_without_a_name_are_bounded_too() -> None:
    for frame in Showing("file", None, "x" * 100_000), Emitting(None, "type", "x" * 100_000):
        channel = Front(0).channel(call_of())
        for _ in range(200):
            channel.say(frame)
        assert SPOOL_BYTES // 2 < channel._size <= SPOOL_BYTES
        channel.say(Emitting("1", "type"))
        unsent = channel.unsent()
        assert len(msgspec.json.encode(unsent)) < 2 * UNSENT_BYTES
        assert unsent[-1][2]["name"] == "1", "this one is in the journal"
        assert sum(frame["frame"] == "out" for *_, frame in unsent) == 1, "it says how much is missing"
    channel = Front().channel(call_of(None))
    channel.say(Showing("file", None, "x" * 3_000_000))
    assert len(msgspec.json.encode(channel.unsent())) < UNSENT_BYTES


async def test_without_a_front_end_output_travels_with_the_end_and_is_bounded() -> None:
    channel = Front().channel(call_of(None), 3)
    for _ in range(100):
        channel.say(Output(b"x" * (UNSENT_BYTES // 10)))
    frames = channel.unsent()
    assert {attempt for attempt, _, _ in frames} == {3}
    assert len(msgspec.json.encode(frames)) < 2 * UNSENT_BYTES


def test_what_is_missing_of_frames_that_were_carried_is_said_in_their_order() -> None:
    channel = Front().channel(call_of(None), 3)
    channel.carry([[2, number, msgspec.to_builtins(Output(b"x" * (UNSENT_BYTES // 10)))] for number in range(20, 40)])
    channel.say(Output(b"own"))
    places = [(attempt, number) for attempt, number, _ in channel.unsent()]
    assert places == sorted(set(places)) and {attempt for attempt, _ in places} == {2, 3}
    assert sum("missing" in str(msgspec.convert(frame, Output).data) for *_, frame in channel.unsent()) == 1


@pytest.mark.parametrize(
    ("answers", "last"),
    [
        (["away", "busy", ["b"], []], {"b"}),  # the front end comes back; another one has `b`
        (["away"] * 25, {"a", "b"}),
        ([["a", "b"]] * 25, {"a", "b"}),
    ],
    ids=["in the end", "away", "elsewhere"],
)
async def test_ends_are_told_until_a_front_end_has_them_or_many_times(
    answers: list[Any], last: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "_AT_LAST_SECS", 0.001)
    told = list[set[str]]()

    async def front(request: httpx2.Request) -> httpx2.Response:
        told.append(set(msgspec.json.decode(request.content, type=dict[str, str])))
        answer = answers[len(told) - 1]
        if answer == "away":
            raise httpx2.ConnectError("away")
        return httpx2.Response(503) if answer == "busy" else httpx2.Response(200, content=msgspec.json.encode(answer))

    ends = Ends(httpx2.AsyncClient(transport=httpx2.MockTransport(front)))
    for uid in ("a", "b"):
        ends.say(msgspec.structs.replace(call_of(), uid=uid))
    await until(lambda: not ends._tasks)
    assert len(told) == min(len(answers), channels._TRIES) and told[0] == {"a", "b"} and told[-1] == last


started: list[str] = []


@tool(engine="temporal", on_crash="replay")
async def begins(call: Call) -> str:
    started.append(call.id)
    return "done"


async def test_C7_an_attempt_that_is_ended_lost_or_suspended_while_it_loads_never_starts_its_tool() -> None:
    started.clear()
    for way in ("end", "lost", "suspend"):
        body = Body(begins, call_of(), Given(2, None), Recorder(stuck=True), Front().channel(call_of(), 2), Guard())
        running = asyncio.ensure_future(body.run())
        await asyncio.sleep(0)
        if way == "suspend":
            await body.suspend()
            assert isinstance(await asyncio.wait_for(running, 60), Suspended)
        elif way == "end":
            body.end(0)
            report = await asyncio.wait_for(running, 60)
            assert isinstance(report, Ended) and isinstance(report.outcome, Failure)
        else:
            body.lost()
            assert isinstance((await asyncio.wait_for(asyncio.wait({running}), 60))[0].pop().exception(), Lost)
    assert started == []


@tool(engine="temporal", on_crash="replay")
async def makes(call: Call, count: int = 30, size: int = 50_000) -> str:
    fx = call.durable()

    async def make(number: int) -> str:
        return str(number) * (size // len(str(number)))

    for number in range(count):
        await fx.run_json(f"s{number}", number, make)
    return "r" * 200_000


async def test_all_values_that_the_engine_keeps_of_a_call_are_bounded_and_a_large_result_is_stored() -> None:
    front, recorder = Front(), Recorder()
    report = await Body(makes, call_of(), Given(1), recorder, front.channel(call_of()), Guard()).run()
    assert isinstance(report, Ended) and report.stored is not None
    assert front.values[report.stored] == msgspec.to_builtins(Ok("r" * 200_000))
    assert len(msgspec.json.encode(recorder.lines)) < 600_000 and len(recorder.lines) == 30
    recorded = list(recorder.lines)
    again = Body(makes, call_of(), Given(2, recorded), recorder, front.channel(call_of(), 2), Guard())
    assert isinstance(await again.run(), Ended) and recorder.lines == recorded, "all of it is replayed"
