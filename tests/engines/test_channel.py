"""One attempt on a worker: its channel while the front end is away or refuses it, and its end before it has begun."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx2
import msgspec

from keephold import Call, tool
from keephold.engines.body import Body
from keephold.engines.channel import SPOOL_BYTES, UNSENT_BYTES, Channel
from keephold.engines.wire import Ended, EngineCall, Given, Line, Lost, Printed, Said, Suspended, Talk
from keephold.handles.state import Failure, Ok
from keephold.tools.guard import Guard


class Front:
    """A front end that is away, takes everything, or refuses with a status."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.output = b""
        self.received = 0
        self.values: dict[str, Any] = {}

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if not self.status:
            raise httpx2.ConnectError("away")
        if self.status != 200:
            return httpx2.Response(self.status, text="no")
        talk = msgspec.json.decode(request.content, type=Talk)
        if talk.fetch is not None:
            return self._says(Said(value=self.values[talk.fetch]))
        if talk.value is not msgspec.UNSET:
            self.values[str(len(self.values))] = talk.value
            return self._says(Said(stored=str(len(self.values) - 1)))
        for number, frame in enumerate(talk.frames, talk.first):
            if number > self.received:
                assert number == self.received + 1
                self.received = number
                self.output += frame.data if isinstance(frame, Printed) else b""
        if talk.wait and not talk.frames:
            await asyncio.sleep(0.01)
        return self._says(Said(self.received, "e"))

    @staticmethod
    def _says(said: Said) -> httpx2.Response:
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


def _call(url: str | None = "http://front") -> EngineCall:
    return EngineCall(
        uid="u", id="h", tool="t", arguments={}, call_id="1", conversation="c", turn="t", stateful=True, secret_id="s",
        secret="00" * 32, url=url,
    )  # fmt: skip


async def test_of_output_that_no_front_end_takes_the_middle_is_missing_and_counted() -> None:
    front = Front(0)
    channel = front.channel(_call())
    channel.open(listens=False)
    lines = [f"line {number:06}".encode() + b" " * 1012 for number in range(20 << 10)]  # 20 MB
    for at, line in enumerate(lines):
        channel.say(Printed(line))
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
    channel = front.channel(_call())
    channel.open(listens=False)
    for _ in range(100):
        channel.say(Printed(b"x" * (UNSENT_BYTES // 10)))
    await asyncio.wait_for(channel.flush(0.01), 60)
    await channel.close()


async def test_without_a_front_end_output_travels_with_the_end_and_is_bounded() -> None:
    channel = Front().channel(_call(None), 3)
    for _ in range(100):
        channel.say(Printed(b"x" * (UNSENT_BYTES // 10)))
    frames = channel.unsent()
    assert {attempt for attempt, _, _ in frames} == {3}
    assert len(msgspec.json.encode(frames)) < 2 * UNSENT_BYTES


started: list[str] = []


@tool(engine="temporal", on_crash="replay")
async def begins(call: Call) -> str:
    started.append(call.id)
    return "done"


async def test_C7_an_attempt_that_is_ended_lost_or_suspended_while_it_loads_never_starts_its_tool() -> None:
    started.clear()
    for way in ("end", "lost", "suspend"):
        body = Body(begins, _call(), Given(2, None), Recorder(stuck=True), Front().channel(_call(), 2), Guard())
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
    report = await Body(makes, _call(), Given(1), recorder, front.channel(_call()), Guard()).run()
    assert isinstance(report, Ended) and report.stored is not None
    assert front.values[report.stored] == msgspec.to_builtins(Ok("r" * 200_000))
    assert len(msgspec.json.encode(recorder.lines)) < 600_000 and len(recorder.lines) == 30
    recorded = list(recorder.lines)
    again = Body(makes, _call(), Given(2, recorded), recorder, front.channel(_call(), 2), Guard())
    assert isinstance(await again.run(), Ended) and recorder.lines == recorded, "all of it is replayed"
