"""What programs print, of all kinds: characters come whole, and what controls a terminal reaches nobody (C5, K4)."""

import asyncio
from pathlib import Path

import pytest
from tests.e2e.terminals import Assistant, at_work, patient, python, quick
from tests.patience import PATIENCE

TEXT = "Grüße, 日本語, 👋🏽 and Ω≈ç√; e\u0301 is one letter of two."

RUDE = (
    b"before\x1b[31m red\x1b[0m \x1b]0;a title\x07"  # colours, a title
    b"\x1b]52;c;cm0gLXJmIC8=\x07\x1b]8;;http://example.com\x1b\\a link\x1b]8;;\x1b\\ "  # the clipboard, a link
    b"\x1bP1$r0m\x1b\\\x1b_private\x1b\\\x1b^message\x1b\\"  # DCS, APC, PM
    b"\xc2\x9b31m\xc2\x9d0;c1\xc2\x9c\x07\x0e\x0f\x00\x7f"  # controls of eight bits, bell, shifts, NUL, DEL
    b"\x1b(0\x1b(B\x1b7\x1b8\x1b=\x1b>\x1b[?25l\x1b[?25hafter\r\n"
)


async def piece_by_piece(directory: Path, *pieces: bytes) -> list[str]:
    """A program prints these, with pauses, and is fetched from in each: the replies. The last tells of its end."""
    script = f"""
for number, piece in enumerate({pieces!r}):
    os.write(1, piece)
    while not os.path.exists(str(number)): time.sleep(0.002)
"""
    async with at_work(quick(python(script, cwd=str(directory)))) as assistant:
        session = await assistant.spawn("program")
        replies = []
        for number in range(len(pieces)):
            await printed(assistant, len(b"".join(pieces[: number + 1])))
            await session.fetch("stream")
            replies.append(session.new)
            session.begin()
            (directory / str(number)).touch()
        await session.stops()
        return [*replies, session.new]


async def printed(assistant: Assistant, count: int) -> None:
    """Until the program has printed so many bytes."""
    async with asyncio.timeout(PATIENCE):
        while (info := await assistant.runtime.handle("program", conversation="main")).output_bytes < count:
            assert info.state == "running"
            await asyncio.sleep(0.002)


async def test_C5_characters_come_whole_however_slowly_they_are_printed(tmp_path: Path) -> None:
    replies = await piece_by_piece(tmp_path, *(bytes([byte]) for byte in TEXT.encode()))
    assert [reply for reply in replies if reply] == list(TEXT), "each when its last byte has come, and not before"


async def test_C5_a_screen_shows_whole_characters_as_well() -> None:
    script = f"""
for byte in {TEXT.encode()!r}:
    os.write(1, bytes([byte]))
    time.sleep(0.005)
sys.stdin.read()
"""
    async with at_work(quick(python(script))) as assistant:
        session = await assistant.spawn("program")
        seen: list[str] = []
        while not seen or TEXT not in seen[-1]:
            seen.append((await session.fetch("screen"))["content"])
        assert not [text for text in seen if "\ufffd" in text]


@pytest.mark.parametrize(
    ("text", "columns"),
    [("plain", 5), ("Grüße", 5), ("日本語", 6), ("e\u0301e", 2), ("한국어!", 7), ("\t|", 9)],
)
async def test_C5_wide_characters_take_two_columns(text: str, columns: int) -> None:
    script = f"sys.stdout.write({text!r}); sys.stdout.flush(); sys.stdin.read()"
    async with at_work(patient(python(script))) as assistant:
        session = await assistant.spawn("program")
        assert session.said["content"] == text
        seen = await session.fetch("screen")
        assert seen["screen"]["cursor"] == [1, columns + 1]
        assert seen["content"].split() == text.split()


async def test_C5_bytes_that_are_no_text_are_shown_as_such_and_break_nothing() -> None:
    noise = b"\xff\xfe a \xc3( b \xe2\x82 c \xf0\x9f\x98 d \xed\xa0\x80 e\n" + b"cut off: \xe2\x82"
    async with at_work(patient(python(f"os.write(1, {noise!r})"))) as assistant:
        session = await assistant.spawn("program")
        first, last = session.text.split("\n")
        assert [word for word in first.split() if "\ufffd" not in word] == ["a", "b", "c", "d", "e"]
        assert "(" in first
        assert last == "cut off: \ufffd"
        assert (await session.output())["content"] == session.text


async def test_C5_the_rest_of_a_character_is_waited_for_until_the_end(tmp_path: Path) -> None:
    """While it may still come it is not shown, and afterwards it is shown for what it was."""
    replies = await piece_by_piece(tmp_path, b"euro: \xe2\x82", b"\xac or not: \xe2\x82")
    assert replies == ["euro: ", "€ or not: ", "\ufffd"]


async def test_K4_what_controls_a_terminal_reaches_no_reply() -> None:
    """Every reply is looked at: `assert_clean`. The words between are there, and nothing of the sequences."""
    script = f"os.write(1, {RUDE!r}); sys.stdin.readline()"
    async with at_work(patient(python(script))) as assistant:
        session = await assistant.spawn("program")
        assert session.said["content"].startswith("before red a link ")
        assert session.said["content"].endswith("after\n")
        seen = await session.fetch("screen")
        assert seen["screen"]["title"] == "a title"
        assert seen["content"].startswith("before red a link")
        assert (await session.output())["content"] == session.text
        matches = (await session.output(pattern="after"))["matches"]
        assert "before red" in matches[0]["line"]
        for told in ("cm0g", "example.com", "private", "message", "1$r"):
            assert not [text for text in assistant.heard if told in text], told
        await session.apply("\n")
        assert session.said["state"] == "stopped"


async def test_K4_a_sequence_that_is_cut_by_a_reply_is_not_shown_in_parts(tmp_path: Path) -> None:
    first = (b"one \x1b", b"[3", b"1", b"mtwo \x1b]0;ti", b"tle", b"\x1b")
    then = (b"\\three \xc2", b"\x9b1mfour", b"\r", b"\nfive")
    replies = await piece_by_piece(tmp_path, *first, *then)
    assert replies == ["one ", "", "", "two ", "", "", "three ", "four", "", "\nfive", ""]


async def test_C3_output_that_shows_nothing_is_no_content() -> None:
    """Programs set up their terminal before they have anything to say."""
    script = "import signal; os.write(1, b'\\x1b[?1h\\x1b=\\x1b[?25l\\x1b]0;title\\x07'); signal.pause()"
    async with at_work(quick(python(script))) as assistant:
        session = await assistant.spawn("program")
        replies = [session.said]
        await printed(assistant, 10)
        replies.append(await session.fetch())
        assert not [said["content"] for said in replies if "content" in said]


async def test_C5_a_progress_bar_is_its_last_state() -> None:
    script = """
for done in range(101):
    os.write(1, b"\\r%3d%% [%-20s]" % (done, b"#" * (done // 5)))
    time.sleep(0.001)
print()
"""
    async with at_work(patient(python(script))) as assistant:
        session = await assistant.spawn("program")
        assert session.text == f"100% [{'#' * 20}]\n"
