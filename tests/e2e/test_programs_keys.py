"""Typing as models do it: keys given as characters, texts of several lines, the end of input (C6)."""

from typing import Any

import pytest
from tests.e2e.terminals import at_work, patient, python, quick, shell

from keephold import terminal

ECHO = """
import tty
tty.setraw(0)
os.write(1, b"ready ")
while True:
    os.write(1, os.read(0, 1000).hex(" ").encode() + b" ")
"""
"""Takes single keys, and says which bytes they sent."""


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        ({"keys": ["q"]}, "q"),
        ({"keys": ["a", "B", "7", "?", " ", "é"]}, "aB7? é"),
        ({"keys": ["q", "ENTER"]}, "q\r"),
        ({"keys": ["Enter", "esc", "c-C", "Up"]}, "\r\x1b\x03\x1b[A"),
        ({"keys": ["C-d"]}, "\x04"),
        ({"input": "two\nlines\n"}, "two\nlines\n"),
        ({"input": ":wq\r"}, ":wq\r"),
        ({"input": "\x1b[B\x03"}, "\x1b[B\x03"),
        ({"input": None}, "\x04"),
        ({"input": None, "keys": ["x"]}, "x"),
        ({"input": "", "keys": ["x"]}, "x"),
        ({"input": 42}, "42\r"),
    ],
)
async def test_C6_what_is_typed_arrives(typed: dict[str, Any], sent: str) -> None:
    async with at_work(python(ECHO)) as assistant:
        session = await assistant.spawn("program")
        await session.reads("ready ")
        session.begin()
        await session.hears(action="apply", **typed)
        await session.until(lambda: len(session.new.split()) >= len(sent.encode()), lambda: session.new)
        assert bytes.fromhex(session.new) == sent.encode()


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ({"keys": ["RETURN"]}, "the nearest is `ENTER`"),
        ({"keys": ["Ctrl-C"]}, "the nearest is `C-c`"),
        ({"keys": ["ctrl+d"]}, "the nearest is `C-d`"),
        ({"keys": ["hello"]}, "Text is sent as `input`"),
        ({"keys": ["PgDn"]}, "PAGEDOWN"),
        ({"keys": 5}, "keys"),
        ({}, "needs `input`, `keys` or `size`"),
        ({"size": {"rows": 0, "cols": 80}}, "rows"),
        ({"input": "ls", "keys": ["ENTR"]}, "the nearest is `ENTER`"),
    ],
)
async def test_C9_what_cannot_be_typed_is_refused_and_says_what_can(typed: dict[str, Any], hint: str) -> None:
    async with at_work(quick(python(ECHO))) as assistant:
        session = await assistant.spawn("program")
        await session.reads("ready ")
        refused = await assistant.refused("program", action="apply", id="program", **typed)
        assert (refused.code, hint in refused.result) == ("invalid_arguments", True), refused.result
        await session.apply(keys=["z"])
        assert (await session.reads("7a ")) == "7a ", "nothing was typed before"


async def test_C6_a_program_that_reads_lines_gets_those_of_a_text() -> None:
    async with at_work(patient(terminal(["cat"], name="cat"))) as assistant:
        session = await assistant.spawn("cat")
        await session.apply("one\ntwo\n")
        assert sorted(session.new.split()) == ["one", "one", "two", "two"], "each as it is typed, and as it is printed"
        await session.apply("no line end")
        assert session.new == "no line end"
        await session.apply(keys=["BACKSPACE", "BACKSPACE", "BACKSPACE", "ENTER"])
        assert session.new.endswith("\nno line \n"), "what was taken back was never sent"
        ended = await session.apply(None)
        assert (ended["state"], ended["yielded_because"]) == ("stopped", "exited")


@pytest.mark.parametrize("character", ["é", "日", "👋"])
async def test_C6_backspace_takes_back_a_whole_character(character: str) -> None:
    async with at_work(patient(terminal(["cat"], name="cat"))) as assistant:
        session = await assistant.spawn("cat")
        await session.apply(f"n{character}", keys=["BACKSPACE", "o", "ENTER"])
        await session.apply(None)
        assert session.text.endswith("\nno\n")


async def test_C6_null_ends_the_input_and_nothing_else() -> None:
    async with at_work(quick(shell())) as assistant:
        session = await assistant.spawn("shell")
        await session.reads("$ ")
        await session.apply("sort\n")
        await session.waits()
        await session.apply("pear\napple\n")
        await session.waits()
        await session.apply(None)
        assert (await session.reads("$ ")).endswith("apple\npear\n$ "), "sort has seen the end, the shell has not"
        await session.apply(None)
        assert (await session.stops())["state"] == "stopped"


async def test_C6_a_script_is_typed_at_once_and_run_line_by_line() -> None:
    """As a person pastes it: a document within, a loop, quotes."""
    script = "for word in a b; do\n  echo \"<$word>\"\ndone\ncat <<'END' | tr a-z A-Z\nshout\nEND\n"
    async with at_work(shell()) as assistant:
        session = await assistant.spawn("shell")
        await session.reads("$ ")
        await session.apply(script)
        shown = await session.reads("SHOUT\n$ ")
        assert "<a>\n<b>\n" in shown


async def test_C6_a_job_is_suspended_and_goes_on() -> None:
    async with at_work(shell()) as assistant:
        session = await assistant.spawn("shell")
        await session.reads("$ ")
        await session.apply("cat\n")
        await session.reads("cat\n")
        await session.apply(keys=["C-z"])
        assert "Stopped" in await session.reads("$ ")
        await session.apply("fg\n")
        await session.reads("cat\n")
        await session.apply("back\n")
        await session.reads("back\nback\n")
        await session.apply(keys=["C-c"])
        await session.reads("$ ")
        await session.apply("echo $?\n")
        assert await session.reads("$ ") == "echo $?\n130\n$ "
