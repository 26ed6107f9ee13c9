"""What a chat shows of events and handles, as text (G1, K4)."""

import asyncio
from typing import Any

import pytest
from tests.turn.calls import STATEFUL

import keephold
from keephold import Call, Response, Runtime, ToolCall
from keephold.agent.events import (
    Answered,
    Called,
    Compacted,
    Event,
    Interjected,
    NotificationsDelivered,
    Restarted,
    Retrying,
    Text,
    Thought,
    TurnAnswer,
    TurnFinished,
    TurnStarted,
    Usage,
    Used,
)
from keephold.cli.chat_lines import (
    END,
    Piece,
    Teller,
    answered_line,
    call_words,
    ended_line,
    last_line,
    running_line,
    usage_words,
)
from keephold.handles.handle import Handle
from keephold.handles.output import Output
from keephold.handles.spool import Spool
from keephold.turn.notifications import Notification
from keephold.turn.prompts import Decision, Denied, Prompt

NOTHING = Usage()


def told(*events: Event) -> list[Piece]:
    teller = Teller()
    return [piece for event in events for piece in teller.hear(event)]


def lines(*events: Event) -> list[str]:
    return [piece.text for piece in told(*events) if piece.kind == "line"]


def finished(reason: Any = "end_turn", error: str | None = None, usage: Usage = NOTHING) -> TurnFinished:
    return TurnFinished(TurnAnswer(text="", stop_reason=reason, turn="t", usage=usage, error=error))


# Events


def test_G1_text_flows_and_thoughts_are_dim() -> None:
    pieces = told(TurnStarted("t"), Thought("Hm."), Text("Hel"), Text("lo"), Used(NOTHING), finished())
    assert pieces == [END, Piece("thought", "Hm.", "dim"), END, Piece("answer", "Hel"), Piece("answer", "lo"), END]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_K4_control_sequences_in_any_pieces_are_left_out(size: int) -> None:
    text = "a\x1b]0;title\x07b\x1b[31mc\x9b2Jd\r\ne\u202ef\x1b[5"
    pieces = told(*(Text(text[at : at + size]) for at in range(0, len(text), size)), finished())
    assert "".join(piece.text for piece in pieces) == "abcd\ne<U+202E>f"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Interjected("and\x1b[2J\nthen"), ["> and\n  then"]),
        (Retrying(2, 3.2, "HTTP 529:\x1b[2J overloaded"), ["HTTP 529: overloaded; attempt 2 in 3 s"]),
        (Restarted(), ["The last answer is void: the model is asked again."]),
        (Compacted("…"), ["The conversation had grown long: a summary stands for its beginning now."]),
        (NotificationsDelivered("Results:\x1b[2J\n{}"), ["· the model is notified: Results: {}"]),
        (NotificationsDelivered("…", (Notification("deploy.done", "warning", "It is\x1b[2J up"),)), ["· It is up"]),
        (NotificationsDelivered("…", (Notification("tool.content", "info", "it prints"),)), []),
        (finished("error", "no\x1b[2J money"), ["Error: no money"]),
        (finished("cancelled"), ["Cancelled."]),
        (finished("end_turn"), []),
        (finished(usage=Usage(requests=1, input_tokens=5)), ["1 request · 5 tokens in · 0 out"]),
    ],
)
def test_G1_what_is_said_of_an_event(event: Event, words: list[str]) -> None:
    assert lines(event) == words


@pytest.mark.parametrize("reason", ["max_tokens", "max_turn_requests", "refusal"])
def test_G1_a_turn_that_ends_early_says_why(reason: str) -> None:
    (line,) = lines(finished(reason, "because"))
    assert line.endswith(" because")


def test_G1_usage_is_one_line() -> None:
    usage = Usage(
        requests=12, input_tokens=1234, output_tokens=56, cache_read_tokens=1000, cost=0.01234,
        context_tokens=50_000, context_window=200_000,
    )  # fmt: skip
    assert usage_words(usage) == "12 requests · 1,234 tokens in (1,000 cached) · 56 out · $0.0123 · context 25 % full"


# Calls


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (ToolCall("1", "deploy", {"env": "prod", "n": 2, "x": None}), "deploy env=prod n=2"),
        (ToolCall("1", "deploy", '{"env": "a\\nb"}'), "deploy env=a b"),
        (ToolCall("1", "deploy", ""), "deploy"),
        (ToolCall("1", "deploy", '{"env'), 'deploy {"env'),
        (ToolCall("1", "deploy", "[1]"), "deploy [1]"),
        (ToolCall("1", "shell", {"action": "apply", "id": "sh", "input": {"a": 1}}), 'shell apply sh input={"a":1}'),
        (ToolCall("1", "await", {"all": ["a"], "any": ["b", "c"], "timeout_secs": 5}), "await b, c, a timeout_secs=5"),
        (ToolCall("1", "await", {"all": "a"}), "await all=a"),
        (ToolCall("1", "x\x1b[2J", {"y\x1b[2J": "\x1b[2J"}), "x y="),
    ],
)
def test_a_call_in_few_words(call: ToolCall, words: str) -> None:
    assert call_words(call) == words


def test_long_arguments_are_cut() -> None:
    assert len(call_words(ToolCall("1", "write", {f"k{n}": "x" * 1000 for n in range(100)}))) <= 120


FETCH, AWAIT = ("shell", {"action": "fetch", "id": "sh"}), ("await", {"all": ["a"]})


@pytest.mark.parametrize(
    ("call", "response", "line"),
    [
        (FETCH, '{"id":"sh","state":"running"}', "· shell fetch sh  running"),
        (("f", {}), "a\nlast\n", "· f  last"),
        (("f", {}), "", "· f"),
        (AWAIT, '{"completed":[],"pending":[]}', None),
        (AWAIT, '{"completed":[],"pending":[],"timed_out":true}', "· await a  timed out"),
    ],
)
def test_what_a_call_was_answered(call: tuple[str, Any], response: str, line: str | None) -> None:
    assert answered_line(ToolCall("1", *call), Response("1", response)) == (line and Piece.line(line, "dim"))


def test_C9_an_error_of_a_call_is_told_once() -> None:
    call, response = ToolCall("1", "nothing"), Response("1", "unknown tool\x1b[2J `nothing`\nmore", is_error=True)
    assert lines(Called((call,)), Answered((response,))) == ["✗ nothing  unknown tool `nothing`  more"]


# Handles


@keephold.tool(actions=STATEFUL)
async def work(call: Call, end: str = "well") -> str:
    """Works."""
    call.emit("one\n\x1b[31mtwo\x1b[0m\n\n")
    call.progress(1, 3, "pieces")
    if end == "badly":
        raise keephold.ToolError("it broke\x1b[2J\nat the seam")
    if end == "never":
        await asyncio.Event().wait()
    return "first\nlast\n"


async def test_G1_a_handle_from_its_first_line_to_its_last() -> None:
    teller, pieces = Teller(), list[Piece]()
    seen: list[Handle] = []

    def followed(handle: Handle) -> None:
        seen.append(handle)
        if not handle.active:
            pieces.extend(teller.stopped(handle))

    async with Runtime([work], store="memory:") as rt:
        rt.registry.followers["main"] = [followed]
        async with rt.turn("main") as turn:
            spawn = ToolCall("1", "work", {"action": "spawn", "id": "w", "end": "never"})
            for event in (Called((spawn,)), Answered(tuple(await turn.run([spawn])))):
                pieces.extend(teller.hear(event))
            assert pieces[1:] == [Piece.line("· work spawn w end=never  running", "dim")]
            handle = seen[0]
            now = rt.registry.clock.now()
            assert running_line(handle, None, now).text == "● w (work)  0s  1/3 pieces  two"
            pieces.clear()
            abort = ToolCall("2", "work", {"action": "abort", "id": "w"})
            for event in (Called((abort,)), Answered(tuple(await turn.run([abort])))):
                pieces.extend(teller.hear(event))
    ended = [piece for piece in pieces if piece.text.startswith("■ w (work)")]
    assert [piece.style for piece in ended] == ["yellow"]
    assert ended[0].text.endswith("Aborted by the assistant.")
    news = NotificationsDelivered("…", (Notification("tool.failed", "error", "`w` (work) stopped: Aborted"),))
    assert [piece for piece in teller.hear(news) if piece.kind == "line"] == []


@pytest.mark.parametrize(
    ("end", "glyph", "style", "said"), [("well", "✓", "green", "last"), ("badly", "✗", "red", "it broke  at the seam")]
)
async def test_G1_a_one_shot_call_has_one_line_at_its_end(end: str, glyph: str, style: str, said: str) -> None:
    teller, pieces = Teller(), list[Piece]()
    async with Runtime([work], store="memory:") as rt:
        rt.registry.followers["main"] = [lambda each: None if each.active else pieces.extend(teller.stopped(each))]
        async with rt.turn("main") as turn:
            call = ToolCall("1", "work", {"end": end})
            pieces += teller.hear(Called((call,)))
            pieces += teller.hear(Answered(tuple(await turn.run([call]))))
    (line,) = (piece for piece in pieces if piece.kind == "line")
    assert line.text.startswith(f"{glyph} work end={end}  ")
    assert line.text.endswith(f"s  {said}")
    assert line.style == style


@pytest.mark.parametrize(
    ("decision", "said"), [(Denied(), "Tool skipped by user."), (Denied("too dear"), "Tool skipped by user: too dear")]
)
async def test_P1_a_call_that_was_refused_is_not_shown_as_one_that_went_well(decision: Decision, said: str) -> None:
    @keephold.tool(run="ask")
    async def order() -> str:
        return "ordered"

    async def person(prompt: Prompt) -> Decision:
        return decision

    teller, pieces = Teller(), list[Piece]()
    async with Runtime([order], store="memory:", prompter=person) as rt:
        rt.registry.followers["main"] = [lambda each: None if each.active else pieces.extend(teller.stopped(each))]
        async with rt.turn("main") as turn:
            call = ToolCall("1", "order", {})
            pieces += teller.hear(Called((call,)))
            pieces += teller.hear(Answered(tuple(await turn.run([call]))))
    (line,) = (piece for piece in pieces if piece.kind == "line")
    assert (line.text[:7], line.style) == ("■ order", "yellow")
    assert line.text.endswith(said)


def test_B9_a_handle_that_crashed_before_is_shown_as_that() -> None:
    crashed = '{"id":"b","state":"stopped","result":"The process ended.","is_error":true}'
    spawn, wait = ToolCall("1", "build", {"action": "spawn", "id": "b"}), ToolCall("2", "await", {"all": ["b"]})
    waited = Response("2", f'{{"completed":[{crashed}],"pending":[]}}')
    assert answered_line(spawn, Response("1", crashed)) == Piece.line("✗ build spawn b  The process ended.", "red")
    assert answered_line(wait, waited) == Piece.line("✗ await b  The process ended.", "red")
    assert answered_line(wait, waited, {"b"}) is None


async def test_G1_an_await_is_told_by_what_it_waits_for() -> None:
    ends: list[Piece | None] = []
    async with Runtime([work], store="memory:") as rt:
        rt.registry.followers["main"] = [lambda each: None if each.active else ends.append(ended_line(each, None))]
        async with rt.turn("main") as turn:
            await turn.run(
                [ToolCall("1", "work", {"action": "spawn", "id": "w"}), ToolCall("2", "await", {"all": ["w"]})]
            )
            await turn.run([ToolCall("3", "await", {"all": ["nobody"]})])
    assert [None if line is None else line.text.split()[:2] for line in ends] == [["✓", "w"], None, ["✗", "await"]]


async def test_A5_an_await_that_timed_out_says_so() -> None:
    teller, pieces = Teller(), list[Piece]()
    async with Runtime([work], store="memory:") as rt:
        rt.registry.followers["main"] = [lambda each: None if each.active else pieces.extend(teller.stopped(each))]
        async with rt.turn("main") as turn:
            await turn.run([ToolCall("1", "work", {"action": "spawn", "id": "w", "end": "never"})])
            call = ToolCall("2", "await", {"all": ["w"], "timeout_secs": 0})
            pieces += teller.hear(Called((call,)))
            pieces += teller.hear(Answered(tuple(await turn.run([call]))))
            assert pieces[1:] == [Piece.line("· await w timeout_secs=0  timed out", "dim")]


@pytest.mark.parametrize(
    ("data", "terminal", "line"),
    [
        (b"", False, ""),
        (b"\n \n", False, ""),
        (b"one\ntwo\n\n", False, "two"),
        (b"one\ntw\xc3", False, "tw"),
        (b"x" * 10_000 + b"\nlast", False, "last"),
        (b"50%\r100%", True, "100%"),
        (b"50%\r100%", False, "100%"),
        (b"a\x1b]0;t\x07b\x1b[2J", True, "ab"),
    ],
)
def test_the_last_line_of_an_output(data: bytes, terminal: bool, line: str) -> None:
    output = Output(Spool(None), 1 << 20)
    output.terminal = terminal
    output.append(data)
    assert last_line(output) == line
