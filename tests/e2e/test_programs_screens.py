"""Full-screen programs: what a model sees of them is what a person would see, and it can drive them (C4–C6).

The screens are in `screens/`, one a file, each as `picture` draws it.
"""

import re
from pathlib import Path

import pytest
from tests.e2e.driver import Start, until
from tests.e2e.terminals import SCREENS, Assistant, Said, at_work, patient, picture, python, shell
from tests.programs import needs
from tests.turn.people import Model, attended, exactly

from keephold import Tool, terminal

BARE = {"LC_ALL": "C.UTF-8", "LESS": "", "LESSOPEN": "", "LESSHISTFILE": "-", "VIMINIT": "", "EXINIT": ""}
"""Programs with nobody's settings."""


@pytest.fixture(scope="module", autouse=True)
def _programs() -> None:
    needs("less", "vim", "top")


def less(directory: Path, rows: int = 24, cols: int = 80) -> Tool:
    """A thousand numbered lines, one of them with something to find."""
    lines = (f"{number} bottles{' and a needle' if number == 700 else ''}\n" for number in range(1, 1001))
    (directory / "bottles").write_text("".join(lines))
    env = {**BARE, "HOME": str(directory)}
    return terminal(["less", "bottles"], name="less", env=env, cwd=str(directory), rows=rows, cols=cols)


def vim(directory: Path) -> Tool:
    (directory / "poem").write_text("Roses are red\n")
    command = ["vim", "-u", "NONE", "-N", "-i", "NONE", "-n", "poem"]
    return terminal(command, name="vim", env={**BARE, "HOME": str(directory)}, cwd=str(directory))


def top(directory: Path) -> Tool:
    home = {"HOME": str(directory), "XDG_CONFIG_HOME": str(directory)}
    return terminal(["top", "-d", "0.5"], name="top", env={**BARE, **home})


# less


async def test_C4_less_shows_page_after_page_finds_and_quits(tmp_path: Path) -> None:
    async with at_work(less(tmp_path, rows=12, cols=40)) as assistant:
        session = await assistant.spawn("less")
        await session.shows("less-begins")
        await session.apply(" ")
        await session.shows("less-next-page")
        await session.apply("/needle", keys=["ENTER"])
        await session.shows("less-found")
        await session.apply(keys=["END"])
        await session.shows("less-ends")
        await session.apply(keys=["q"])
        ended = await session.stops()
        assert ended == {"id": "less", "state": "stopped", "result": ""}, "what was on its screen is gone with it"


async def test_C6_another_size_is_drawn_anew(tmp_path: Path) -> None:
    async with at_work(less(tmp_path)) as assistant:
        session = await assistant.spawn("less")
        await session.shows("less-usual-size")
        await session.apply(size={"rows": 6, "cols": 30})
        await session.shows("less-small")
        await session.apply(keys=["PAGEDOWN"])
        await session.shows("less-small-next-page")


async def test_C5_auto_is_the_screen_of_a_program_that_draws_one(tmp_path: Path) -> None:
    """And `stream` says nothing of it, as its output was drawn and not written."""
    async with at_work(less(tmp_path, rows=12, cols=40)) as assistant:
        session = await assistant.spawn("less")
        shown = await session.shows("less-begins")
        for view in (None, "auto", "screen"):
            fetched = await session.fetch(view)
            assert (fetched["content"], fetched["screen"]) == (shown["content"], shown["screen"])
        assert (await session.fetch("stream")) == {"id": "less", "state": "running"}
        applied = await session.apply(" ")
        assert applied["screen"]["alternate"] is True, "the reply to an apply is the screen, too"


CONFIG = f"""
[conversation.tools.less]
source = "terminal"
command = "less bottles"
run = "unattended"
env = {{ {", ".join(f'{name} = "{value}"' for name, value in BARE.items())} }}
terminal = {{ rows = 12, cols = 40 }}
"""


def test_F_a_configured_terminal_shows_the_same(start: Start, tmp_path: Path) -> None:
    less(tmp_path)
    turn = start(CONFIG)

    def call(action: str, **more: object) -> Said:
        said: Said = turn.one("less", {"action": action, "id": "less", **more}).json
        return said

    def shows(name: str) -> None:
        wanted = (SCREENS / f"{name}.txt").read_text()
        until(lambda: picture(call("fetch", view="screen")) == wanted, what=lambda: name)

    call("spawn")
    shows("less-begins")
    call("apply", keys=["PAGEDOWN"])
    shows("less-next-page")
    call("apply", input="/needle", keys=["ENTER"])
    shows("less-found")
    call("apply", keys=["q"])
    (ended,) = turn.one("await", {"all": ["less"]}).json["completed"]
    assert ended["state"] == "stopped"
    assert turn.finish() == []


# vim


async def test_C6_vim_takes_text_and_keys_and_writes_the_file(tmp_path: Path) -> None:
    async with at_work(vim(tmp_path)) as assistant:
        session = await assistant.spawn("vim")
        await session.shows("vim-begins")
        await session.apply("oViolets are blue", keys=["ENTER"])
        await session.apply("Tabs\tand – dashes", keys=["ESC"])
        await session.shows("vim-inserted")
        await session.apply(":set titlestring=a\\ poem title", keys=["ENTER"])
        await session.shows("vim-title")
        await session.apply(":w", keys=["ENTER"])
        await session.shows("vim-written", without_sizes)
        assert (tmp_path / "poem").read_text() == "Roses are red\nViolets are blue\nTabs\tand – dashes\n"
        await session.apply(size={"rows": 10, "cols": 60})
        await session.shows("vim-small", without_sizes)
        await session.apply(":q", keys=["ENTER"])
        ended = await session.stops()
        assert ended["state"] == "stopped"
        assert "is_error" not in ended


async def test_C6_vim_takes_lines_of_text_as_they_are_and_moves_by_named_keys(tmp_path: Path) -> None:
    async with at_work(vim(tmp_path)) as assistant:
        session = await assistant.spawn("vim")
        await session.shows("vim-begins")
        await session.apply("GA\nsecond\nthird", keys=["ESC"])
        await session.sees(lambda said: said["screen"]["cursor"] == [3, 5])
        await session.apply(keys=["UP", "HOME", "x", "UP", "END"])
        await session.sees(lambda said: said["screen"]["cursor"] == [1, 13])
        await session.apply(":x", keys=["ENTER"])
        await session.stops()
    assert (tmp_path / "poem").read_text() == "Roses are red\necond\nthird\n"


async def test_C5_back_at_the_shell_only_what_is_new_is_shown(tmp_path: Path) -> None:
    """What the editor drew was on a screen of its own, which is gone: no reason to show the shell's once more."""
    (tmp_path / "poem").write_text("Roses are red\n")
    async with at_work(shell(cwd=str(tmp_path), env=BARE)) as assistant:
        session = await assistant.spawn("shell")
        await session.reads("$ ")
        await session.apply("echo long ago\n")
        await session.reads("\nlong ago\n$ ")
        await session.apply("vim -u NONE -N -i NONE -n poem; echo and back\n")
        await session.sees(lambda said: "Roses" in said["content"] and "poem" in said["content"])
        await session.apply(":q\n")
        await session.until(lambda: "and back" in str(session.said), lambda: str(session.said), "auto")
        assert "screen" not in session.said
        assert "long ago" not in session.new


async def test_T2_an_assistant_that_is_asked_about_an_editor_is_told_what_it_shows(tmp_path: Path) -> None:
    model = Model(exactly({"handles": [{"id": "vim", "action": "abort"}]}))
    async with attended(None, [vim(tmp_path)], model=model) as (runtime, turn):
        session = await Assistant(runtime, turn).spawn("vim")
        await session.shows("vim-begins")
    (inquiry,) = model.seen
    (handle,) = inquiry.handles
    assert "Roses are red" in handle["output_preview"]


def without_sizes(said: Said) -> str:
    """As `picture`, but older versions of vim count characters."""
    return re.sub(r"(\d+L, \d+)[BC]", r"\1B", picture(said))


# top


async def test_C5_top_is_its_screen_and_is_drawn_anew(tmp_path: Path) -> None:
    async with at_work(top(tmp_path)) as assistant:
        session = await assistant.spawn("top")
        await session.shows("top", head_of_top)
        first = session.said["content"]
        await session.sees(lambda said: said["content"] != first and head_of_top(said))
        await session.apply(size={"rows": 15, "cols": 100})
        await session.shows("top-wide", head_of_top)
        await session.apply(keys=["q"])
        assert (await session.stops())["state"] == "stopped"


def head_of_top(said: Said) -> str:
    """What stays the same of it: the head without its numbers, and the titles of the columns. Processes there are."""
    seen = said.get("content", "").split("\n")
    titles = next((at for at, line in enumerate(seen) if "COMMAND" in line), None)
    if titles is None or not re.match(r" *\d+ \S+ ", "".join(seen[titles + 1 : titles + 2])):
        return picture(said)
    lines = [re.sub("up .* users?,", "up #, # users,", line) for line in seen[: titles + 1]]
    lines = [re.sub(r" *\d+(:\d\d)*(\.\d+)?\b", " #", line).rstrip() for line in lines]
    head = picture({**said, "content": "\n".join(lines), "screen": {**said["screen"], "cursor": ["#", "#"]}})
    return re.sub(r"(\|\s+\|\n)+(?=\+)", "", head)


async def test_C3_what_a_program_drew_again_and_again_is_not_run_together_at_its_end() -> None:
    """As `top` does: it draws on the usual screen, so what it drew is still there when it has ended."""
    draws = r"""
for frame in range(1, 4):
    os.write(1, b"\x1b[H\x1b[2Jframe %d\r\n\x1b[3;1Hload %d\x1b[5;1Hlast line" % (frame, frame))
"""
    async with at_work(patient(python(draws))) as assistant:
        session = await assistant.spawn("program")
        assert session.said["state"] == "stopped"
        assert session.said["result"].split()[-6:] == ["frame", "3", "load", "3", "last", "line"]
