"""`keephold top`: what is on the screen and what its keys do, by textual's own Pilot, over a real store (L1)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.tops import Watched
from textual.pilot import Pilot
from textual.widgets import Input, Log, OptionList, Static

import keephold
from keephold.cli import top_source
from keephold.cli.store import Where
from keephold.cli.top_app import Detail, Top
from keephold.cli.top_source import open_source
from keephold.tools.base import Action
from keephold.turn.prompts import Decision, Prompt

SPAWNED: tuple[Action, ...] = ("spawn", "fetch", "apply", "abort")


class World(Watched):
    """A runtime whose tools the test opens and shuts, and the screen that somebody watches it on."""

    def __init__(self, turn: keephold.Turn, pilot: "Pilot[None]", gates: dict[str, "asyncio.Future[str]"]) -> None:
        super().__init__(pilot)
        self._turn = turn
        self._gates = gates
        self._calls = 0

    async def spawn(self, tool: str, id: str, **arguments: Any) -> str:
        self._calls += 1
        if tool == "gate":
            arguments["name"] = id
        call = keephold.ToolCall(str(self._calls), tool, {"action": "spawn", "id": id, **arguments})
        (response,) = await self._turn.run([call])
        assert not response.is_error, response.result
        return response.result

    async def fetch(self, tool: str, id: str) -> str:
        self._calls += 1
        (response,) = await self._turn.run([keephold.ToolCall(str(self._calls), tool, {"action": "fetch", "id": id})])
        return response.result

    async def open(self, name: str, word: str = "open") -> None:
        await self.until(lambda: name in self._gates)
        self._gates.pop(name).set_result(word)


def tools(gates: dict[str, "asyncio.Future[str]"]) -> list[keephold.Tool]:
    @keephold.tool(actions=SPAWNED)
    async def gate(call: keephold.Call, name: str, says: str = "it is shut") -> str:
        """Waits until it is opened; whatever it is opened with but `open` it prints."""
        call.emit(f"{says}\n")
        while True:
            gates[name] = future = asyncio.get_running_loop().create_future()
            word = await future
            if word == "open":
                return "opened"
            if word == "fail":
                raise keephold.ToolError("the gate is broken")
            call.emit(f"{word}\n")

    @keephold.tool(actions=SPAWNED)
    async def asking(call: keephold.Call, kind: str) -> str:
        """Asks a question of a kind."""
        select: Any = {"Select": {"options": ["red [b]", "blue"]}}
        question = {
            "boolean": keephold.Question(id="q", text="Really?", answer_type="Boolean"),
            "text": keephold.Question(id="q", text="Who?", answer_type="Text", pre_amble="For the record."),
            "select": keephold.Question(id="q", text="Which?", answer_type=select),
            "secret": keephold.Question(id="q", text="The password?", answer_type="Text", secret=True),
        }[kind]
        return repr(await call.ask(question))

    @keephold.tool(actions=SPAWNED, run="ask")
    async def deploy(env: str) -> str:
        """Deploys, if it may."""
        return f"deployed to {env}"

    return [gate, asking, deploy]


async def _nobody_else(prompt: Prompt) -> Decision:
    """There is a person, so that a secret may be asked for; but they are at another screen, and say nothing."""
    return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


@asynccontextmanager
async def world(directory: Path, size: tuple[int, int] = (80, 24)) -> AsyncIterator[World]:
    url = f"sqlite:///{directory}/work.db"
    gates: dict[str, asyncio.Future[str]] = {}
    async with (
        keephold.Runtime(tools(gates), store=url, prompter=_nobody_else) as runtime,
        runtime.turn("main") as turn,
        open_source(Where(url)) as source,
    ):
        app = Top(source)
        async with app.run_test(size=size) as pilot:
            yield World(turn, pilot, gates)
        assert app.return_code in (0, None)


# The table


async def test_L_what_needs_a_person_is_first_and_changes_are_seen(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.spawn("gate", "old")
        await here.spawn("asking", "sure", kind="boolean")
        await here.spawn("gate", "new")
        await here.until(lambda: here.ids == ["sure", "new", "old"])
        assert here.row("sure") == ["waiting", "sure", "asking", "main", here.row("sure")[4], "? Really?"]
        assert here.status.startswith("3 live · 1 needs you · urgent first · the store ")
        await here.open("old")
        await here.until(lambda: here.row("old")[0] == "stopped, ok")
        assert here.ids == ["sure", "new", "old"]
        await here.open("new", "fail")
        await here.until(lambda: here.row("new")[5] == "the gate is broken")
        assert here.row("new")[0] == "stopped, error"


@pytest.mark.parametrize(("key", "ran"), [("y", True), ("n", False)])
async def test_P_a_permission_that_another_process_asks_for_is_given_or_denied(
    tmp_path: Path, key: str, ran: bool
) -> None:
    async with world(tmp_path) as here:
        calling = asyncio.ensure_future(here.spawn("deploy", "d", env="staging"))
        await here.until(lambda: here.rows and here.rows[0][0] == "permission")
        await here.until(lambda: len(here.rows) == 1)  # a permission and a call, and one line
        assert here.row("d")[5] == "may it spawn?" and "1 needs you" in here.status
        await here.press("home", "r")
        box = await here.asked()
        assert '"env":"staging"' in str(box.query_one("#asked", Static).render()).replace(" ", "")
        await here.press(key)
        await here.until(calling.done)
        await here.until(lambda: not here.rows or here.rows[0][0] != "permission")
        assert ("Tool skipped by user." in await calling) == (not ran)


async def test_L_what_has_failed_lately_is_shown_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top_source, "FADES_SECS", 0.0)
    async with world(tmp_path) as here:
        for id, word in (("good", "open"), ("bad", "fail")):
            await here.spawn("gate", id)
            await here.open(id, word)
        await here.until(lambda: here.ids == ["bad"] and here.row("bad")[5] == "the gate is broken")
        assert "1 failed" in here.status
        async with open_source(Where(f"sqlite:///{tmp_path}/work.db")) as source:
            model = top_source.Model(source)
            await model.load()
            assert [row.cells[1] for row in model.rows()] == ["bad"]
            monkeypatch.setattr(top_source, "FAILED_SECS", 0.0)
            assert not model.rows()


async def test_L_the_last_line_is_live(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.spawn("gate", "north")
        await here.until(lambda: here.row("north")[5] == "it is shut")
        await here.open("north", "it creaks")
        await here.until(lambda: here.row("north")[5] == "it creaks")


async def test_A7_nothing_is_read_while_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(tmp_path) as here:
        await here.spawn("gate", "north")
        await here.until(lambda: here.row("north")[5] == "it is shut")
        read: list[str] = []
        monkeypatch.setattr(here.app.source, "page", lambda *_: read.append("page"))
        monkeypatch.setattr(here.app.source, "fact", lambda *_: read.append("fact"))
        for _ in range(10):
            here.app.draw()
            await asyncio.sleep(0)
        assert read == []
        monkeypatch.undo()


async def test_L_sort_and_group(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        for id in ("b", "c", "a"):
            await here.spawn("gate", id)
        await here.until(lambda: here.ids == ["a", "c", "b"])
        seen = {}
        for _ in range(5):
            await here.press("s")
            seen[here.app.model.sort] = here.ids
        assert seen == {
            "newest": ["a", "c", "b"],
            "oldest": ["b", "c", "a"],
            "tool": ["a", "b", "c"],
            "id": ["a", "b", "c"],
            "urgent": ["a", "c", "b"],
        }
        await here.press("g")
        assert here.ids == ["main", "a", "c", "b"]
        await here.press("g")
        assert here.ids == ["a", "c", "b"]


async def test_L_the_cursor_stays_with_its_handle(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.spawn("gate", "one")
        await here.spawn("gate", "two")
        await here.choose("one")
        await here.spawn("gate", "three")
        await here.until(lambda: here.ids == ["three", "two", "one"])
        assert here.app.chosen is not None
        assert here.app.chosen["id"] == "one"


async def test_L_pages_are_read_when_somebody_goes_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_source, "PAGE", 4)
    async with world(tmp_path) as here:
        for number in range(10):
            await here.spawn("gate", f"g{number}")
        await here.choose("g9")
        here.app.read_all()
        await here.until(lambda: here.ids == ["g9", "g8", "g7", "g6"])
        assert here.status.startswith("4+ live")
        await here.press("end")
        await here.until(lambda: len(here.ids) == 8)
        await here.press("end")
        await here.until(lambda: len(here.ids) == 10)
        assert here.status.startswith("10 live")


async def test_L_what_has_ended_is_shown_when_it_is_wanted(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.spawn("gate", "before")
        await here.until(lambda: here.ids == ["before"])
        await here.open("before")
        await here.until(lambda: here.row("before")[0] == "stopped, ok")
        here.app.read_all()
        await here.until(lambda: here.ids == [])
        await here.press("e")
        await here.until(lambda: here.ids == ["before"])
        await here.press("e")
        await here.until(lambda: here.ids == [])


async def test_L_it_fits_and_follows_the_size_of_the_terminal(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.spawn("gate", "a-handle-with-a-rather-long-name-indeed", says="x" * 200)
        await here.until(lambda: "xxx" in here.row(here.ids[0])[5] if here.ids else False)
        for width in (80, 200, 80):
            await here.pilot.resize_terminal(width, 24)
            await here.until(partial(here.fits, width))


async def test_K4_what_tools_say_is_text_and_no_more(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.spawn("gate", "nasty[red]", says="\x1b[2J\x1b]0;stolen\x07be[bold]have[/]d\u202e")
        await here.until(lambda: here.row("nasty[red]")[5] == "be[bold]have[/]d<U+202E>")
        await here.press("enter")
        await here.until(lambda: isinstance(here.app.screen, Detail))
        detail = here.app.screen
        assert isinstance(detail, Detail)
        await here.until(lambda: any("be[bold]have[/]d" in line for line in detail.query_one(Log).lines))
        assert not any("\x1b" in line for line in detail.query_one(Log).lines)


# Filter


async def test_L_a_filter_shows_only_what_fits(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        for id in ("north", "south", "northwest"):
            await here.spawn("gate", id)
        await here.press("slash")
        assert (await here.asked()).hint().startswith("Enter: show these ")
        await here.press(*"north", "enter")
        await here.answered()
        await here.until(lambda: here.ids == ["northwest", "north"])
        assert "/north" in here.status
        await here.spawn("gate", "east")
        await here.spawn("gate", "northeast")
        await here.until(lambda: here.ids == ["northeast", "northwest", "north"])


# The keys


async def test_L_the_keys_are_on_the_screen_and_explained(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.spawn("gate", "north")
        await here.until(lambda: here.ids == ["north"])
        shown = {
            active.binding.description for active in here.app.screen.active_bindings.values() if active.binding.show
        }
        assert shown >= {"Open", "Keys", "Filter", "Sort", "Group", "Ended", "Answer", "Abort", "Attach", "Quit"}
        await here.press("question_mark")
        box = await here.asked()
        assert "abort it" in str(box.query_one("#asked", Static).render())
        await here.press("escape")
        await here.answered()


# One handle


async def test_L_enter_shows_what_it_prints_and_escape_goes_back(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.spawn("gate", "north", says="first line")
        await here.choose("north")
        await here.press("enter")
        await here.until(lambda: isinstance(here.app.screen, Detail))
        detail = here.app.screen
        assert isinstance(detail, Detail)
        log = detail.query_one(Log)
        await here.until(lambda: "first line" in log.lines)
        await here.open("north", "second line")
        await here.until(lambda: "second line" in log.lines)
        await here.open("north")
        await here.until(lambda: "stopped, ok" in str(detail.query_one("#facts", Static).render()))
        await here.press("escape")
        await here.until(lambda: not isinstance(here.app.screen, Detail))


async def test_C7_abort_asks_first(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.spawn("gate", "north")
        await here.choose("north")
        await here.press("a")
        box = await here.asked()
        assert "Abort north of gate, in main?" in str(box.query_one("#asked", Static).render())
        assert box.styles.align == ("center", "middle")
        await here.press("n")
        await here.answered()
        assert here.row("north")[0] == "running"
        await here.press("a")
        await here.asked()
        await here.press("y")
        await here.until(lambda: here.row("north")[0] == "stopped, abort")


# Answers


@pytest.mark.parametrize(
    ("kind", "keys", "answer"),
    [
        ("boolean", ("y",), "True"),
        ("boolean", ("n",), "False"),
        ("text", (*"Ada", "enter"), "'Ada'"),
        ("select", ("down", "enter"), "'blue'"),
        ("select", ("enter",), "'red [b]'"),
        ("secret", (*"hunter2", "enter"), "'hunter2'"),
    ],
)
async def test_Q4_a_question_is_answered_by_what_fits_it(
    tmp_path: Path, kind: str, keys: tuple[str, ...], answer: str
) -> None:
    async with world(tmp_path) as here:
        await here.spawn("asking", "sure", kind=kind)
        await here.until(lambda: here.row("sure")[0] == "waiting")
        await here.choose("sure")
        await here.press("r")
        box = await here.asked()
        if kind == "select":
            assert [str(option.prompt) for option in box.query_one(OptionList).options] == ["red [b]", "blue"]
        if kind == "secret":
            assert box.query_one(Input).password
        await here.press(*keys)
        await here.until(lambda: here.row("sure")[0] == "stopped, ok")
        assert answer in await here.fetch("asking", "sure") or kind == "secret"


async def test_Q4_escape_leaves_the_question_open(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.spawn("asking", "sure", kind="boolean")
        await here.until(lambda: here.row("sure")[0] == "waiting")
        await here.choose("sure")
        await here.press("r")
        await here.asked()
        await here.press("escape")
        await here.answered()
        assert here.row("sure")[0] == "waiting"


async def test_Q4_a_question_that_somebody_else_answered_is_told(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.spawn("asking", "sure", kind="boolean")
        await here.until(lambda: here.row("sure")[0] == "waiting")
        await here.choose("sure")
        await here.press("r")
        await here.asked()
        here._calls += 1
        arguments = {"action": "apply", "id": "sure", "input": True}
        await here._turn.run([keephold.ToolCall(str(here._calls), "asking", arguments)])
        await here.until(lambda: here.row("sure")[0] == "stopped, ok")
        await here.press("n")
        await here.answered()
        await here.until(lambda: here.app._notifications)
        assert "True" in await here.fetch("asking", "sure")
