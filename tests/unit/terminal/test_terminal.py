"""Terminals as tools, with real programs: what is typed, shown and told of the end (C4, C6, C7)."""

import asyncio
import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.patience import until
from tests.unit.terminal.calls import Start, guard, python, sh, start

from keephold.errors import ToolError
from keephold.handles.state import Failure, Ok, PrintedOutput
from keephold.tools import marks
from keephold.tools.base import SupportsScreen
from keephold.tools.child import UNREAD_LIMIT

__all__ = ["guard", "start"]  # fixtures

ECHOES_KEYS = """
tty.setraw(0)
print("up", end="", flush=True)
while (data := os.read(0, 1000)) != b"q":
    os.write(1, b"<" + data.hex().encode() + b">")
"""
"""Takes single keys, and shows what came at once."""


# What a program is given


async def test_F1_the_call_is_in_the_environment_and_the_size_is_not(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("LINES", "99")
    script = "import shutil; print(json.dumps([os.environ['KEEPHOLD_CALL'], os.environ['TERM'], os.environ['OWN'], "
    script += "sorted({'COLUMNS', 'LINES'} & set(os.environ)), os.getcwd()]))"
    line = [*python(script), "{{ tool.arguments.path }}"]
    _, sink = start(line, {"path": "a b"}, env={"OWN": "x", "COLUMNS": "3"}, term="vt100", cols=1000)
    assert await sink.end() == (PrintedOutput(), 0, None)
    call, *rest, cwd = json.loads(sink.printed)
    assert json.loads(call)["tool"]["arguments"] == {"path": "a b"}
    assert rest == ["vt100", "x", []]
    assert Path(cwd).is_dir()


async def test_F1_a_large_call_is_in_a_file_that_goes_with_the_program(start: Start) -> None:
    script = "print(os.environ['KEEPHOLD_CALL_FILE']); print(len(open(os.environ['KEEPHOLD_CALL_FILE']).read()))"
    _, sink = start(python(script), {"text": "x" * 100_000})
    await sink.end()
    name, size = sink.printed.decode().split()
    assert int(size) > 100_000
    assert not Path(name).exists()


async def test_C9_a_program_that_cannot_start_is_an_error_and_the_sink_hears_nothing(start: Start) -> None:
    for argument in ("x", "x" * 100_000):
        with pytest.raises(ToolError, match="no program `no-such-program`") as caught:
            start(["no-such-program"], {"text": argument})
        assert caught.value.code == "command_not_started"


async def test_R2_the_program_bears_the_marks_of_its_runtime_and_call(start: Start, guard: Any) -> None:
    live, sink = start(sh('printf %s "$KEEPHOLD_MARK"; cat'))
    await sink.said(guard.mark.encode())
    assert len(marks.find(guard.mark)) >= 1
    live.end(0)
    await sink.end()
    assert marks.find(guard.mark) == []


# Its end


@pytest.mark.parametrize(
    ("script", "outcome", "code", "number"),
    [
        ("echo done", PrintedOutput(), 0, None),
        ("exit 3", Failure("The command ended with exit code 3.", "command_failed"), 3, None),
        ("kill -KILL $$", Failure("The command was killed by SIGKILL.", "command_failed"), None, signal.SIGKILL),
    ],
)
async def test_S3_how_it_ended_is_the_outcome(
    start: Start, script: str, outcome: Any, code: int | None, number: int | None
) -> None:
    _, sink = start(sh(script))
    assert await sink.end() == (outcome, code, number)


@pytest.mark.linux("whether a program reads is unknown")
async def test_C7_ended_is_ended_and_then_nothing_is_taken_any_more(start: Start) -> None:
    live, sink = start(["cat"])
    await until(live.probe)
    live.end(5)
    outcome, code, number = await sink.end()
    assert isinstance(outcome, Failure) and outcome.code == "command_failed"
    assert code is None and number in (signal.SIGHUP, signal.SIGTERM)
    size = {"size": {"rows": 5, "cols": 5}}
    for late in (partial(live.write, "x"), partial(live.type, b"x"), partial(live.apply, size)):
        with pytest.raises(ToolError) as caught:
            late()
        assert caught.value.code == "not_running"
    live.resize(3, 3)
    live.end(0)
    assert live.probe() is False


# What is typed


async def test_C6_raw_text_is_typed_as_it_is_and_line_text_gets_its_enter(start: Start) -> None:
    for mode, typed in [("raw", b"610d0a62"), ("line", b"610d620d")]:
        live, sink = start(python(ECHOES_KEYS), input=mode)
        await sink.said(b"up")
        live.write("a\r\nb")
        await sink.said(b"<" + typed + b">")
        live.end(0)
        await sink.end()


@pytest.mark.parametrize(
    ("mode", "text", "typed"),
    [
        ("raw", "two\nlines", "two\nlines"),
        ("raw", "", ""),
        ("line", "two\nlines", "two\rlines\r"),
        ("line", "ended\n", "ended\r"),
        ("line", "entered\r", "entered\r"),
        ("line", "", "\r"),
        ("raw", {"a": [1, None]}, '{"a":[1,null]}\r'),
        ("line", 7, "7\r"),
        ("raw", None, "\x04"),
        ("line", None, "\x04"),
    ],
)
async def test_C6_what_input_means_at_a_keyboard(start: Start, mode: str, text: Any, typed: str) -> None:
    live, sink = start(python(ECHOES_KEYS), input=mode)
    await sink.said(b"up")
    live.write(text)
    live.write("END") if mode == "raw" else live.type(b"END")
    await until(lambda: b"END".hex().encode() in sink.printed.replace(b"><", b""))
    assert bytes.fromhex(sink.printed.removeprefix(b"up").translate(None, b"<>").decode()) == typed.encode() + b"END"
    live.end(0)
    await sink.end()


async def test_C6_null_ends_the_input_of_a_program_that_reads_lines(start: Start) -> None:
    live, sink = start(["cat"])
    live.write("hello\n")
    await sink.said(b"hello\r\nhello\r\n")
    live.write(None)
    assert await sink.end() == (PrintedOutput(), 0, None)


@pytest.mark.linux("whether a program reads is unknown")
async def test_C6_text_comes_before_keys_and_they_are_typed_together_where_lines_are_read(start: Start) -> None:
    live, sink = start(["cat"])
    await until(live.probe)
    live.apply({"input": "hello", "keys": ["BACKSPACE", "ENTER", "C-d"]})
    assert await sink.end() == (PrintedOutput(), 0, None)
    assert sink.printed.endswith(b"hell\r\n")


@pytest.mark.linux("whether a program reads is unknown")
async def test_C6_where_keys_are_read_they_follow_a_text_by_themselves(start: Start) -> None:
    """A program that draws its own screen takes what comes at once for a paste, Enter included."""
    live, sink = start(python(ECHOES_KEYS))
    await sink.said(b"up")
    live.apply({"input": "hi", "keys": ["ENTER", "UP"]})
    assert (live.typing, live.probe()) == (True, False)
    await sink.said(b"<6869><0d1b5b41>")
    assert live.typing is False
    live.apply({"keys": ["ENTER", "C-c"]})
    await sink.said(b"<0d03>")
    live.end(0)
    await sink.end()


async def test_C6_what_is_typed_next_comes_after_keys_that_wait(start: Start) -> None:
    live, sink = start(python(ECHOES_KEYS))
    await sink.said(b"up")
    live.apply({"input": "a", "keys": ["ENTER"]})
    live.apply({"input": "b", "keys": ["TAB"]})
    live.type(b"c")
    await until(lambda: sink.printed.translate(None, b"<>") == b"up610d620963")
    live.apply({"input": "d", "keys": ["ENTER"]})
    live.end(0)
    await sink.end()


async def test_C6_cursor_keys_have_the_form_that_the_program_chose(start: Start) -> None:
    live, sink = start(python("os.write(1, b'\\x1b[?1h')\n" + ECHOES_KEYS))
    await sink.said(b"up")
    live.apply({"keys": ["UP"]})
    await sink.said(b"<1b4f41>")
    live.end(0)
    await sink.end()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "needs `input`, `keys` or `size`"),
        ({"keys": None, "size": None}, "needs `input`, `keys` or `size`"),
        ({"input": "x", "keys": ["ENTR"]}, "nearest is `ENTER`"),
        ({"input": "x", "keys": "ENTER"}, "list of names"),
        ({"input": "x", "keys": [7]}, "list of names"),
        ({"input": "\ud800"}, "surrogate"),
        ({"input": "x", "size": {"rows": 0, "cols": 80}}, "1 to 500 rows"),
        ({"input": "x", "size": {"rows": 24, "cols": 1001}}, "1 to 1000 columns"),
        ({"input": "x", "size": {"rows": 24}}, "`size` is"),
        ({"input": "x", "size": [24, 80]}, "`size` is"),
    ],
)
async def test_C9_a_wrong_apply_says_what_would_be_right_and_types_nothing(
    start: Start, arguments: dict[str, Any], words: str
) -> None:
    live, sink = start(python(ECHOES_KEYS))
    await sink.said(b"up")
    with pytest.raises(ToolError) as caught:
        live.apply(arguments)
    assert words in caught.value.message
    assert caught.value.code == "invalid_arguments"
    live.type(b"q")
    await sink.end()
    assert sink.printed == b"up"
    assert sink.sizes == [(24, 80)]


async def test_C6_what_there_is_no_room_for_is_refused_whole(start: Start) -> None:
    live, sink = start(sh("stty raw -echo; echo up; exec sleep 1001"))
    await sink.said(b"up")
    live.write("x" * (UNREAD_LIMIT - 2))
    for arguments in ({"input": "yy", "keys": ["ENTER"]}, {"size": {"rows": 5, "cols": 5}, "input": "yyy"}):
        with pytest.raises(ToolError) as caught:
            live.apply(arguments)
        assert caught.value.code == "input_not_read"
    assert sink.sizes == [(24, 80)]
    live.end(0)
    await sink.end()


# What it shows


async def test_the_screen_is_what_a_person_would_see(start: Start) -> None:
    live, sink = start(sh("printf 'one\\r\\ntwo\\033[5;7Hfive'; cat"), rows=10, cols=40)
    await sink.said(b"five")
    screen = live.screen()
    assert (screen.rows, screen.cols) == (10, 40)
    assert [line.rstrip() for line in screen.lines][:2] == ["one", "two"]
    live.end(0)
    await sink.end()
    assert live.screen().lines == screen.lines
    assert live.scrollback(5) == ()
    assert isinstance(live, SupportsScreen)


async def test_a_new_size_reaches_program_screen_and_sink(start: Start) -> None:
    script = "trap 'stty size' WINCH; stty size; while :; do sleep 0.01; done"
    live, sink = start(sh(script))
    await sink.said(b"24 80\r\n")
    live.apply({"size": {"rows": 30, "cols": 100}})
    await sink.said(b"30 100\r\n")
    live.resize(30, 100)
    live.resize(12, 50)
    await sink.said(b"12 50\r\n")
    assert (live.screen().rows, live.screen().cols) == (12, 50)
    assert sink.sizes == [(24, 80), (30, 100), (12, 50)]
    live.end(0)
    await sink.end()


@pytest.mark.parametrize(
    ("printed", "draws"),
    [
        ("plain text\n", False),
        ("\033[31mred\033[0m \033[2K\r 50%\033[1A\033[10G", False),
        ("\033[H", True),
        ("\033[2J\033[1;1H", True),
        ("\033[12;40Hx", True),
        ("\033[3;fx", True),
        ("\033[7dx", True),
        ("\033[?1049h", True),
        ("\033[?1049h\033[?1049l", False),
    ],
)
async def test_what_moves_about_the_screen_is_meant_as_one(start: Start, printed: str, draws: bool) -> None:
    live, sink = start([*python("os.write(1, sys.argv[1].encode() + b'.'); os.read(0, 1)"), printed])
    await sink.said(b".")
    assert live.draws(0) is draws
    assert live.draws(len(sink.printed)) is ("1049h" in printed and draws)
    live.end(0)
    await sink.end()


async def test_only_the_last_of_much_output_is_looked_at(start: Start) -> None:
    live, sink = start(sh("printf '\\033[5;5Hhere\\n'; head -c 300000 /dev/zero | tr '\\0' x; printf '\\nend'; cat"))
    await sink.said(b"end")
    assert live.draws(0) is False
    live.end(0)
    await sink.end()


@pytest.mark.parametrize("beside", [False, True], ids=["here", "in a process of its own"])
async def test_a_program_that_asks_the_terminal_where_the_cursor_is_gets_an_answer(
    start: Start, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """By the emulator, which is usually in a process of its own."""
    if beside:
        monkeypatch.undo()
    _, sink = start(python("tty.setraw(0); os.write(1, b'abc\\x1b[6n'); os.write(1, os.read(0, 100)[1:])"))
    await sink.end()
    assert sink.printed.endswith(b"[1;4R")


# Whether it waits


@pytest.mark.linux("whether a program reads is unknown")
@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (["cat"], True),
        (["bash", "--norc", "-i"], True),
        (python(ECHOES_KEYS), None),
    ],
)
async def test_C4_the_probe_tells_what_is_known(start: Start, line: list[str], answer: bool | None) -> None:
    live, sink = start(line)
    await until(lambda: live.probe() is answer)
    live.end(0)
    await sink.end()


@pytest.mark.linux("whether a program reads is unknown")
async def test_C4_nobody_waits_for_the_caller_while_a_person_drives(start: Start) -> None:
    live, sink = start(["cat"])
    await until(live.probe)
    live.driven(True)
    assert live.probe() is False
    live.type(b"by hand\r")
    await sink.said(b"by hand\r\nby hand\r\n")
    live.driven(False)
    await until(live.probe)
    live.end(0)
    assert live.probe() is False
    await sink.end()


# One-shot calls


async def test_C8_a_one_shot_call_prints_and_ends(start: Start) -> None:
    _, sink = start(sh("test -t 1 && echo terminal"), stateful=False)
    assert await sink.end() == (PrintedOutput(), 0, None)
    assert sink.printed == b"terminal\r\n"


async def test_C8_a_one_shot_program_that_reads_is_told_that_the_input_has_ended(start: Start) -> None:
    """As often as it asks, and also when it was long in getting there."""
    _, sink = start(sh("read a || echo no a; sleep 0.4; read b || echo no b; cat; echo over"), stateful=False)
    assert await sink.end() == (PrintedOutput(), 0, None)
    assert sink.printed == b"no a\r\nno b\r\nover\r\n"


async def test_C8_a_one_shot_password_is_asked_for(start: Start) -> None:
    _, sink = start(sh("stty -echo; printf 'Pass: '; read word; printf %s $word | wc -c"), stateful=False)
    await until(lambda: sink.asked)
    question, then = sink.asked[0]
    assert question.text == "Pass:"
    then(Ok("hunter22"))
    assert await sink.end() == (PrintedOutput(), 0, None)
    assert sink.printed == b"Pass: 8\r\n"


# Costs


@pytest.mark.linux("whether a program reads is unknown")
@pytest.mark.slow
async def test_two_hundred_idle_terminals_wake_nobody(start: Start) -> None:
    calls = [start(["cat"]) for _ in range(200)]
    for live, _ in calls:
        await until(live.probe)
    live.screen()  # the emulator's process has started
    loop: Any = asyncio.get_running_loop()
    assert [timer for timer in loop._scheduled if not timer.cancelled()] == []
    assert loop._selector.select(0) == []
    for live, _ in calls:
        live.end(0)
    for _, sink in calls:
        await sink.end()
