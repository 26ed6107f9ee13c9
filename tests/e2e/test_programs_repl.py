"""A Python session, as a model would hold one: what comes back reads like the screen of a person (C4–C6)."""

import re
import sys

from tests.e2e.terminals import Said, Session, at_work

from keephold import Tool, terminal

PYTHON = {"TERM": "xterm-256color", "PYTHON_BASIC_REPL": "1", "PYTHONSTARTUP": "", "INPUTRC": "/dev/null"}
"""The session of Python 3.12 and before, also in later ones; `TERM` is what makes it edit its lines."""
PROMPT = ">>> "
FUNCTION = """\
def double(x):
    return 2 * x

double(21)
"""
SPINNING = """\
def spin():
    print("spinning")
    while True: pass

spin()
"""
WHOLE = """\
>>> 6 * 7
42
>>> def double(x):
...     return 2 * x
... 
>>> double(21)
42
>>> 1 / 0
Traceback (most recent call last):
  File "<stdin>", line 1, in <module>
ZeroDivisionError: division by zero
>>> def spin():
...     print("spinning")
...     while True: pass
... 
>>> spin()
spinning
^CTraceback (most recent call last):
  File "<stdin>", line 1, in <module>
  File "<stdin>", line N, in spin
KeyboardInterrupt
>>> "still here"
'still here'
>>> 
"""  # noqa: W291 (prompts end in a blank)


def repl() -> Tool:
    return terminal([sys.executable, "-q"], name="python", env=PYTHON)


def as_told(text: str) -> str:
    """Without what differs between versions of Python, and the line that an interrupt happened to hit."""
    text = re.sub(r'"<stdin>(-\d+)?", line [23], in spin', '"<stdin>", line N, in spin', text)
    return re.sub(r"^    .*\n", "", re.sub(r'"<stdin>-\d+"', '"<stdin>"', text), flags=re.MULTILINE)


async def ask(session: Session, text: str, **more: list[str]) -> str:
    """Type a text, and what is shown until the next prompt."""
    await session.apply(text, **more)
    return as_told(await session.reads(f"\n{PROMPT}"))


async def test_C4_a_session_reads_like_one() -> None:
    async with at_work(repl()) as assistant:
        session = await assistant.spawn("python")
        assert await session.reads(PROMPT) == PROMPT
        assert await ask(session, "6 * 7", keys=["ENTER"]) == "6 * 7\n42\n>>> "
        assert await ask(session, FUNCTION) == WHOLE[WHOLE.index("def d") : WHOLE.index("1 / 0")]
        assert await ask(session, "1 / 0\n") == WHOLE[WHOLE.index("1 / 0") : WHOLE.index("def spin")]
        await session.apply(SPINNING)
        await session.reads("spin()\nspinning\n")
        await session.apply(keys=["C-c"])
        assert as_told(await session.reads(PROMPT)).splitlines()[-2:] == ["KeyboardInterrupt", PROMPT]
        assert await ask(session, '"still here"', keys=["ENTER"]) == "\"still here\"\n'still here'\n>>> "
        await session.apply(keys=["C-d"])
        ended = await session.stops()
        assert ended == {"id": "python", "state": "stopped", "result": ended["result"]}
        assert as_told((await session.output())["content"]) == WHOLE
        assert as_told(session.text) == WHOLE, "what the replies showed, one after the other"


async def test_C4_a_line_that_is_edited_is_shown_as_it_was_sent() -> None:
    """Where the cursor goes meanwhile, and what is typed over, is how it came about."""
    async with at_work(repl()) as assistant:
        session = await assistant.spawn("python")
        await session.reads(PROMPT)
        await session.apply("prnt('one two')", keys=["HOME", "RIGHT", "RIGHT", "i"])
        await session.apply(keys=["END", "LEFT", "LEFT", "BACKSPACE", "BACKSPACE", "BACKSPACE"])
        await session.apply(keys=["2", "ENTER"])
        await session.reads(f"\n{PROMPT}")
        assert (await session.output())["content"] == f">>> print('one 2')\none 2\n{PROMPT}"
        await session.apply(keys=["UP", "ENTER"])
        await session.reads(f"\n{PROMPT}")
        assert (await session.output())["content"].endswith(f">>> print('one 2')\none 2\n{PROMPT}")


async def test_A6_a_session_at_its_prompt_is_known_to_wait() -> None:
    """It edits its lines, but waits for nothing but the keyboard. While it works it is not waited for in vain."""
    async with at_work(repl()) as assistant:
        session = await assistant.spawn("python")
        await session.reads(PROMPT)
        waited: Said = await assistant.call("await", all=["python"])
        pending = [{"id": "python", "state": "running", "waiting_for_input": True}]
        assert waited == {"completed": [], "pending": pending, "needs_input": True}
        await session.apply("while True: pass\n\n")
        await session.reads("... \n")
        waited = await assistant.call("await", all=["python"], timeout_secs=1)
        assert waited == {"completed": [], "pending": [{"id": "python", "state": "running"}], "timed_out": True}


async def test_S3_a_session_that_ends_in_an_error_says_so() -> None:
    async with at_work(repl()) as assistant:
        session = await assistant.spawn("python")
        await session.reads(PROMPT)
        await session.apply("raise SystemExit(3)", keys=["ENTER"])
        ended = await session.stops()
        assert ended["is_error"] is True
        assert ended["result"].startswith("The command ended with exit code 3.")
