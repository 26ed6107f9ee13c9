"""Commands as tools, with real processes (F1, F3, S7, C6, C8)."""

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE

from keephold.durable.deferred import Pending
from keephold.errors import ToolError
from keephold.handles.question import Question
from keephold.handles.state import Failure, Ok, Outcome, PrintedOutput
from keephold.tools.base import Invocation, SpawnPolicy, Tool
from keephold.tools.command import OPEN_QUESTIONS, Command, Tail
from keephold.tools.guard import Guard
from keephold.tools.template import CommandLine

SURE = {"id": "sure", "text": "Sure?", "answer_type": "Boolean"}
WAITING = json.dumps({"type": "waiting", "question": SURE})
FAILED = json.dumps({"type": "error", "message": "no"})


class Recorder:
    """A sink that keeps what it is told. `answer` answers questions at once, as a fixed answer would."""

    def __init__(self, answer: Callable[[Question], Outcome] | None = None) -> None:
        self.printed = b""
        self.asked: list[tuple[Question, Callable[[Outcome], None]]] = []
        self.stops: list[tuple[Outcome, int | None, int | None]] = []
        self.releases = 0
        self._answer = answer
        self._news = asyncio.Event()

    def output(self, data: bytes) -> None:
        self.printed += data
        self._news.set()

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None: ...

    def resized(self, rows: int, cols: int) -> None: ...
    def reading(self, yes: bool) -> None: ...
    def abandon(self) -> None: ...

    def park(self, pending: Pending) -> None: ...
    def ask(self, question: Question, then: Callable[[Outcome], None], record: object = None) -> None:
        self.asked.append((question, then))
        self._news.set()
        if self._answer is not None:
            then(self._answer(question))

    def withdraw(self) -> None:
        raise AssertionError("a command never takes a question back")

    def stop(self, outcome: Outcome, *, exit_code: int | None = None, signal: int | None = None) -> None:
        self.stops.append((outcome, exit_code, signal))

    def released(self) -> None:
        assert self.stops
        self.releases += 1
        self._news.set()

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def question(self, number: int) -> tuple[Question, Callable[[Outcome], None]]:
        await self.until(lambda: len(self.asked) >= number)
        return self.asked[number - 1]

    async def end(self) -> tuple[Outcome, int | None, int | None]:
        """How it stopped; it did so once, and let go once."""
        await self.until(lambda: self.releases)
        assert (len(self.stops), self.releases) == (1, 1)
        return self.stops[0]


Start = Callable[..., tuple[Any, Recorder]]


@pytest.fixture
def guard() -> Iterator[Guard]:
    guard = Guard()
    yield guard
    guard.close()


@pytest.fixture
def start(guard: Guard, tmp_path: Path) -> Start:
    """Starts a command and returns its live end and its recorder."""

    def begin(
        line: Any,
        arguments: dict[str, Any] | None = None,
        *,
        answer: Callable[[Question], Outcome] | None = None,
        stateful: bool = False,
        sink: Recorder | None = None,
        **settings: Any,
    ) -> tuple[Any, Recorder]:
        defaults: dict[str, Any] = {"env": {}, "stdin": False, "input": "line", "wire": False, "options": {}}
        parsed = CommandLine.parse(line, "command")
        command = Command(line=parsed, cwd=str(tmp_path), root="/root", guard=guard, **{**defaults, **settings})
        tool = Tool(name="t", runtime=command, spawn=SpawnPolicy(abort_grace_ms=500))
        call: dict[str, Any] = {"uid": "u1", "call_id": "call-1", "conversation": "main", "turn": "turn-1"}
        invocation = Invocation(tool=tool, arguments=arguments or {}, stateful=stateful, **call)
        recorder = sink or Recorder(answer)
        return command.start(invocation, recorder), recorder

    return begin


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


def python(script: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", "import json, os, sys, time\n" + script]


def say(*forms: dict[str, Any] | str) -> str:
    """A shell command that prints forms, one a line."""
    lines = (form if isinstance(form, str) else json.dumps(form) for form in forms)
    return "printf '%s\\n' " + " ".join(f"'{line}'" for line in lines)


def message(outcome: Outcome) -> str:
    assert isinstance(outcome, Failure)
    assert outcome.code == "command_failed"
    return outcome.message


# What a process is given


async def test_F1_the_whole_call_is_in_the_environment(start: Start) -> None:
    arguments = {"x": "ä\n$(id)", "n": None}
    _, recorder = start(["printenv", "KEEPHOLD_CALL"], arguments, options={"level": 3})
    assert await recorder.end() == (PrintedOutput(), 0, None)
    tool = {"name": "t", "arguments": arguments, "answers": {}, "options": {"level": 3}}
    ids = {"conversation_id": "main", "turn_id": "turn-1", "call_id": "call-1"}
    context = {"action": "run", "root": "/root", "cwd": "/root", **ids}
    assert json.loads(recorder.printed) == {"tool": tool, "context": context}


async def test_F1_a_large_call_is_in_a_private_file_that_goes_with_it(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    arguments = {"x": "y" * 65_536}
    script = 'printenv KEEPHOLD_CALL; stat -c %a "$KEEPHOLD_CALL_FILE"; cat "$KEEPHOLD_CALL_FILE"'
    _, recorder = start(sh(script), arguments)
    await recorder.end()
    mode, call = recorder.printed.split(b"\n", 1)
    assert mode == b"600"
    assert json.loads(call)["tool"]["arguments"] == arguments
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ToolError):
        start(["no-such-program"], arguments)
    assert list(tmp_path.iterdir()) == []


async def test_F1_nothing_of_a_call_around_us_is_handed_on(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEPHOLD_CALL_FILE", "outer")
    monkeypatch.setenv("KEPT", "kept")
    _, recorder = start(sh('echo "$KEEPHOLD_CALL_FILE,$KEPT,$MORE"'), env={"MORE": "more"})
    await recorder.end()
    assert recorder.printed == b",kept,more\n"


async def test_R2_a_process_bears_the_mark_of_its_call(start: Start, guard: Guard, tmp_path: Path) -> None:
    _, recorder = start(sh('echo "$KEEPHOLD_MARK"; pwd'))
    await recorder.end()
    mark, directory = recorder.printed.decode().splitlines()
    assert mark.split()[-1] == f"{guard.mark}/u1"
    assert os.path.samefile(directory, tmp_path)  # noqa: PTH121


async def test_K3_a_hostile_argument_is_echoed_and_not_run(start: Start, tmp_path: Path) -> None:
    x = "$(touch pwned); \"; rm -rf /; '"
    line = {"program": "sh", "args": ["-c", "echo {{ tool.arguments.x }}"]}
    _, recorder = start(line, {"x": x})
    assert await recorder.end() == (PrintedOutput(), 0, None)
    assert recorder.printed.decode() == x + "\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "code"), [(["no-such-program"], "command_not_started"), (["echo", "{{ nothing }}"], "template_failed")]
)
async def test_C9_what_cannot_start_raises_and_the_sink_hears_nothing(start: Start, line: list[str], code: str) -> None:
    sink = Recorder()
    with pytest.raises(ToolError) as raised:
        start(line, sink=sink)
    assert raised.value.code == code
    assert (sink.stops, sink.releases) == ([], 0)


# How it ends


async def test_F3_stdout_is_the_output_of_a_one_shot_command(start: Start) -> None:
    _, recorder = start(sh("echo out; echo err >&2"))
    assert await recorder.end() == (PrintedOutput(), 0, None)
    assert recorder.printed == b"out\n"


async def test_F3_stderr_is_interleaved_for_a_stateful_command(start: Start) -> None:
    _, recorder = start(sh("echo 1; echo 2 >&2; echo 3"), stateful=True)
    assert await recorder.end() == (PrintedOutput(), 0, None)
    assert recorder.printed == b"1\n2\n3\n"


async def test_F3_a_failed_one_shot_tells_code_and_stderr_and_keeps_stdout(start: Start) -> None:
    _, recorder = start(sh("echo out; echo why >&2; exit 3"))
    outcome, code, number = await recorder.end()
    assert (code, number) == (3, None)
    assert message(outcome) == "The command ended with exit code 3.\nwhy"
    assert recorder.printed == b"out\n"
    _, recorder = start(["false"])
    assert message((await recorder.end())[0]) == "The command ended with exit code 1."


async def test_F3_a_failed_stateful_command_keeps_stderr_in_its_output(start: Start) -> None:
    _, recorder = start(sh("echo out; echo why >&2; exit 3"), stateful=True)
    assert message((await recorder.end())[0]) == "The command ended with exit code 3."
    assert recorder.printed == b"out\nwhy\n"


async def test_F3_a_killed_process_is_never_success(start: Start) -> None:
    _, recorder = start(sh('echo \'{"type":"success"}\'; kill -KILL $$'))
    outcome, code, number = await recorder.end()
    assert (code, number) == (None, signal.SIGKILL)
    assert message(outcome) == "The command said that it succeeded, but was killed by SIGKILL."


async def test_F3_much_stderr_leaves_room_for_the_exit_code(start: Start) -> None:
    _, recorder = start(python("sys.stderr.write('é' * 50_000); print('é' * 50_000); sys.exit(3)"))
    text = message((await recorder.end())[0])
    assert text.startswith("The command ended with exit code 3.\n…\né")
    assert "\ufffd" not in text
    assert 10_000 < len(text.encode()) < 10_500


def test_F3_a_tail_is_cut_where_a_line_or_a_character_begins() -> None:
    tail = Tail(8, lines=3)
    assert tail.text() == ""
    tail.add(b"12345678")
    assert tail.text() == "12345678"
    tail.add(b"9")
    assert tail.text() == "…\n23456789"
    tail.add(b"\nab\ncd\n")
    assert tail.text() == "…\nab\ncd"
    tail.add("xéééé".encode())
    assert tail.text() == "…\néééé"
    tail.add(b"y")
    assert tail.text() == "…\néééy"
    few = Tail(100, lines=2)
    few.add(b"1\n2\n3\n")
    assert few.text() == "…\n2\n3"


async def test_C7_ending_ends_it_and_the_end_comes_through_the_sink(start: Start) -> None:
    live, recorder = start(["sleep", "60"], stateful=True)
    live.end(5)
    outcome, code, number = await recorder.end()
    assert (code, number) == (None, signal.SIGTERM)
    assert message(outcome) == "The command was killed by SIGTERM."


# Wire forms of a one-shot command


@pytest.mark.parametrize(
    ("form", "exit_code", "outcome"),
    [
        ({"type": "success", "content": "done"}, 0, Ok("done")),
        ({"type": "stopped", "result": {"Ok": "done"}}, 0, Ok("done")),
        ({"type": "error", "message": "no", "transient": True}, 0, Failure("no", transient=True)),
        ({"type": "error", "message": "no", "trace": ["a"]}, 4, Failure("no", trace=("a",))),
    ],
)
async def test_S7_a_wire_form_beats_the_exit_code(start: Start, form: Any, exit_code: int, outcome: Outcome) -> None:
    _, recorder = start(sh(f"{say(form)}; exit {exit_code}"))
    assert await recorder.end() == (outcome, exit_code, None)
    assert recorder.printed == b""


@pytest.mark.parametrize(
    ("form", "exit_code", "outcome"),
    [
        ({"type": "stopped", "result": {"Ok": "done"}}, 0, Ok("done")),
        ({"type": "error", "message": "no", "transient": True}, 0, Failure("no", transient=True)),
        ({"type": "running", "content": "half"}, 0, PrintedOutput()),
        ({"type": "needs_input", "question": {"id": "q", "text": "?", "answer_type": "Text"}}, 0, PrintedOutput()),
    ],
)
async def test_S7_the_whole_output_of_a_spawned_command_may_be_its_outcome_and_never_a_question(
    start: Start, form: Any, exit_code: int, outcome: Outcome
) -> None:
    """It is shown while it runs, as any output."""
    _, recorder = start(sh(f"{say(form)}; exit {exit_code}"), stateful=True)
    assert await recorder.end() == (outcome, exit_code, None)
    assert json.loads(recorder.printed) == form and not recorder.asked


async def test_S7_success_with_a_non_zero_exit_is_an_error(start: Start) -> None:
    _, recorder = start(sh(say({"type": "success", "content": "done"}) + "; echo why >&2; exit 4"))
    outcome, code, _ = await recorder.end()
    assert code == 4
    assert message(outcome).startswith("The command said that it succeeded, but ended with exit code 4.\nwhy")
    assert recorder.printed == b"done"


async def test_S7_a_process_that_said_running_and_exited_is_ok(start: Start) -> None:
    _, recorder = start(sh(say({"type": "running", "content": "half"})))
    assert await recorder.end() == (PrintedOutput(), 0, None)
    assert recorder.printed == b"half"


async def test_S7_with_wire_a_one_shot_command_may_print_forms_on_any_line(start: Start) -> None:
    forms = ({"type": "running", "content": "half\n"}, {"type": "error", "message": "no"})
    _, recorder = start(sh(f"echo text; {say(*forms)}"), wire=True)
    assert await recorder.end() == (Failure("no"), 0, None)
    assert recorder.printed == b"text\nhalf\n"


ASKS_TWICE = python("""
answers = json.loads(os.environ["KEEPHOLD_CALL"])["tool"]["answers"]
for id in ("a", "b"):
    if id not in answers:
        print(json.dumps({"type": "needs_input", "question": {"id": id, "text": "?", "answer_type": "Text"}}))
        sys.exit(0)
print("answered", answers["a"], answers["b"])
""")


@pytest.mark.parametrize("wire", [False, True])
async def test_C8_an_answer_runs_a_one_shot_command_again_with_all_answers(start: Start, wire: bool) -> None:
    _, recorder = start(ASKS_TWICE, wire=wire)
    for number, id in ((1, "a"), (2, "b")):
        question, then = await recorder.question(number)
        assert (question.id, recorder.stops) == (id, [])
        then(Ok(id.upper()))
    assert await recorder.end() == (PrintedOutput(), 0, None)
    assert recorder.printed == b"answered A B\n"


async def test_C8_fixed_answers_come_at_once(start: Start) -> None:
    _, recorder = start(ASKS_TWICE, answer=lambda question: Ok(question.id))
    assert (await recorder.end())[0] == PrintedOutput()
    assert recorder.printed == b"answered a b\n"


async def test_C8_more_than_eight_rounds_are_an_error(start: Start) -> None:
    _, recorder = start(sh(say(WAITING)), answer=lambda _: Ok(True))
    outcome = (await recorder.end())[0]
    assert isinstance(outcome, Failure)
    assert (outcome.code, len(recorder.asked)) == ("wire_rounds", 8)


async def test_C8_no_answer_ends_a_one_shot_command(start: Start) -> None:
    refused = Failure("nobody there", "question_unanswered")
    _, recorder = start(sh(say(WAITING)), answer=lambda _: refused)
    assert await recorder.end() == (refused, None, None)


async def test_C7_a_one_shot_command_can_be_ended_while_its_question_is_open(start: Start) -> None:
    live, recorder = start(sh(say(WAITING)))
    await recorder.until(lambda: recorder.asked)
    live.end(1)
    recorder.asked[0][1](Ok(True))
    outcome = (await recorder.end())[0]
    assert isinstance(outcome, Failure)
    assert outcome.code == "cancelled"


async def test_C8_a_second_run_that_cannot_start_is_the_end(start: Start) -> None:
    line = ["{% if tool.answers.sure is defined %}no-such-program{% else %}sh{% endif %}", "-c", say(WAITING)]
    _, recorder = start(line, answer=lambda _: Ok(True))
    outcome = (await recorder.end())[0]
    assert isinstance(outcome, Failure)
    assert outcome.code == "command_not_started"


# A live command


def echo_lines(times: int = 1) -> str:
    """Python that prints what it reads, so that a test sees what was written."""
    return f"for _ in range({times}): print(ascii(sys.stdin.readline()), flush=True)\n"


@pytest.mark.parametrize(
    ("mode", "data", "seen"),
    [
        ("line", "y", "y\\n"),
        ("line", "y\n", "y\\n"),
        ("line", "", "\\n"),
        ("raw", "é\n", "\\xe9\\n"),
        ("raw", {"a": [1, None]}, '{"a":[1,null]}\\n'),
        ("line", True, "true\\n"),
    ],
)
async def test_C6_text_is_written_as_text_the_rest_as_json(start: Start, mode: str, data: Any, seen: str) -> None:
    live, recorder = start(python(echo_lines()), stateful=True, stdin=True, input=mode)
    live.write(data)
    assert await recorder.end() == (PrintedOutput(), 0, None)
    assert recorder.printed.decode() == f"'{seen}'\n"


async def test_C6_null_closes_stdin_and_raw_text_gets_no_line_end(start: Start) -> None:
    live, recorder = start(["cat"], stateful=True, stdin=True, input="raw")
    live.write("a")
    live.write(None)
    assert (await recorder.end())[0] == PrintedOutput()
    assert recorder.printed == b"a"
    with pytest.raises(ToolError, match="has ended"):
        live.write("b")


async def test_C6_a_command_without_stdin_says_what_would_give_it_one(start: Start) -> None:
    live, recorder = start(["cat"], stateful=True)
    with pytest.raises(ToolError, match=r"takes no input; `stdin = true` in .*t\.spawn") as raised:
        live.write("a")
    assert raised.value.code == "not_running"
    assert (await recorder.end())[0] == PrintedOutput()


async def test_C4_the_probe_tells_whether_it_reads(start: Start) -> None:
    live, recorder = start(["cat"], stateful=True, stdin=True)
    async with asyncio.timeout(PATIENCE):
        while (reads := live.probe()) is False:  # noqa: ASYNC110 (nobody tells when a process begins to read)
            await asyncio.sleep(0)
    assert reads in (True, None)
    live.write(None)
    await recorder.end()
    assert live.probe() is False


async def test_S7_without_wire_a_shown_file_asks_nobody(start: Start) -> None:
    _, recorder = start(sh(say(WAITING)), stateful=True)
    assert await recorder.end() == (PrintedOutput(), 0, None)
    assert (recorder.printed.decode(), recorder.asked) == (WAITING + "\n", [])


async def test_S7_a_live_question_is_answered_on_stdin(start: Start) -> None:
    waiting = {"type": "waiting", "content": "diff\n", "question": SURE}
    again = {"type": "waiting", "question": {**SURE, "id": "really"}}
    script = f"print({json.dumps(waiting)!r}, {WAITING!r}, {json.dumps(again)!r}, sep='\\n', flush=True)\n"
    script += f"print('{FAILED}', file=sys.stderr)\n" + echo_lines(2)  # on stderr it is text
    _, recorder = start(python(script), stateful=True, wire=True)
    for number, id in ((1, "sure"), (2, "really")):  # one at a time, and the repeated one once
        question, then = await recorder.question(number)
        assert (question.id, len(recorder.asked)) == (id, number)
        then(Ok(True))
    assert await recorder.end() == (PrintedOutput(), 0, None)
    answers = [f"""'{{"type":"answer","id":"{id}","answer":true}}\\n'\n""" for id in ("sure", "really")]
    assert sorted(recorder.printed.decode().splitlines(True)) == sorted([*answers, "diff\n", FAILED + "\n"])


async def test_Q7_a_live_command_nobody_answers_is_ended(start: Start) -> None:
    refused = Failure("nobody there", "question_unanswered")
    _, recorder = start(sh(f"{say(WAITING)}; sleep 60"), stateful=True, wire=True, answer=lambda _: refused)
    assert await recorder.end() == (refused, None, None)


async def test_S7_a_live_command_that_exits_with_an_open_question_has_failed(start: Start) -> None:
    _, recorder = start(sh(say(WAITING)), stateful=True, wire=True)
    assert await recorder.end() == (Failure("The command ended before its question `sure` was answered."), 0, None)


async def test_S7_an_answer_that_cannot_be_delivered_ends_the_command(start: Start) -> None:
    script = f"exec <&-; {say(WAITING)}; sleep 60"
    _, recorder = start(sh(script), stateful=True, wire=True, answer=lambda _: Ok(True))
    outcome = (await recorder.end())[0]
    assert isinstance(outcome, Failure)
    assert "input is closed" in outcome.message


async def test_K6_a_command_may_not_ask_without_end(start: Start) -> None:
    forms = [{"type": "waiting", "question": {**SURE, "id": str(n)}} for n in range(OPEN_QUESTIONS + 1)]
    _, recorder = start(sh(f"{say(*forms)}; sleep 60"), stateful=True, wire=True)
    outcome = (await recorder.end())[0]
    assert isinstance(outcome, Failure)
    assert (outcome.code, len(recorder.asked)) == ("limit_exceeded", 1)


@pytest.mark.parametrize(
    ("form", "outcome"),
    [({"type": "stopped", "result": {"Ok": "done"}}, Ok("done")), ({"type": "error", "message": "no"}, Failure("no"))],
)
@pytest.mark.parametrize("then", ["sleep 60", "trap 'exit 7' TERM; sleep 60 & wait"])
async def test_S7_a_live_command_that_says_stopped_is_ended(
    start: Start, form: Any, outcome: Outcome, then: str
) -> None:
    _, recorder = start(sh(f"{say(form, {'type': 'running', 'content': 'late'})}; {then}"), stateful=True, wire=True)
    assert await recorder.end() == (outcome, None, None)
    assert recorder.printed == b""


async def test_S7_a_command_that_says_stopped_and_exits_has_its_exit_code(start: Start) -> None:
    _, recorder = start(sh(say({"type": "success", "content": "done"})), stateful=True, wire=True)
    assert await recorder.end() == (Ok("done"), 0, None)
    _, recorder = start(sh(say({"type": "success"}) + "; exit 4"), stateful=True, wire=True)
    outcome, code, _ = await recorder.end()
    assert (message(outcome), code) == ("The command said that it succeeded, but ended with exit code 4.", 4)


async def test_S7_a_form_without_line_end_counts_when_it_exits(start: Start) -> None:
    _, recorder = start(sh('printf \'text\\n{"type":"error","message":"no"}\''), stateful=True, wire=True)
    assert await recorder.end() == (Failure("no"), 0, None)
    assert recorder.printed == b"text\n"
