"""What models name is never code in a person's shell: what Tab inserts, and commands that a person may copy (K4)."""

import shlex
from pathlib import Path

import pytest
from click.shell_completion import BashComplete
from tests.durable.lives import stored_in
from tests.durable.streams import wanting
from tests.turn.calls import TALKING, spawn

import keephold
from keephold import Call, Question, Runtime
from keephold.acp.agent.permissions import elsewhere
from keephold.cli import main

CODE = (
    "x$(touch${IFS}ran)", "x;touch${IFS}ran", "x`touch`", "x|ran", "x&ran", "x>ran", "x'y", 'x"y', "x\\y", "x{a,b}",
    "x*", "x?", "x[a]", "x!y", "x#y", "x=~", "~x", "-x", "--all",
)  # fmt: skip
PLAIN = ("x", "x-1", "x.y", "x:y@z", "x/y,z+1%2", "X_y")


@keephold.tool(actions=TALKING)
async def talk(call: Call) -> str:
    """Waits to be told something."""
    return str(await call.ask(Question(id="name", text="Who?")))


def completed(words: list[str], begun: str) -> set[str]:
    """What Tab inserts."""
    offered = BashComplete(main, {}, "keephold", "_KEEPHOLD_COMPLETE").get_completions(words, begun)
    return {each.value for each in offered}


async def test_K4_no_name_that_a_shell_would_read_as_code_is_completed_or_shown_bare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime([talk], store=stored_in(tmp_path)) as rt:
        async with rt.turn("x;touch ran") as turn:
            await turn.run([spawn("talk", "there")])
        async with rt.turn("main") as turn:
            await turn.run([spawn("talk", id) for id in (*CODE, *PLAIN)])
            (store,) = tmp_path.glob("*.db")
            monkeypatch.setenv("KEEPHOLD_STORE", f"sqlite:///{store}")
            for command in ("show", "send", "abort"):
                assert completed([command], "") - {"there"} == set(PLAIN)
                assert completed([command], "x$") == set()
            assert completed(["ps", "--conversation"], "") == {"main"}
            for id in (CODE[0], "x"):
                async with wanting(rt, id, "attach", rows=24, cols=80) as client:
                    said = (await client.refusal()).message
                assert f"`keephold send {shlex.quote(id)}`" in said
                assert f"`keephold logs -f {shlex.quote(id)}`" in said


def test_K4_the_path_of_a_store_is_one_word_of_the_command_that_is_shown() -> None:
    said = elsewhere(Question(id="q", text="?"), "uid", "sqlite:////a b$(ran)/work.db")
    assert shlex.split(said.split("`")[1]) == [
        "keephold",
        "send",
        "--store",
        "sqlite:////a b$(ran)/work.db",
        "uid",
        "TEXT",
    ]
