"""`keephold completion`: what a shell offers, asked as the shell asks; zsh and fish where they are installed."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests import warm
from tests.e2e.panes import Pane
from tests.e2e.place import Place, spawn
from tests.programs import needs
from tests.trusting import trusted

from keephold.cli import COMMANDS

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A store with handles of two conversations: one has stopped, one is parked, one asks."""
    needs("bash")
    with ExitStack() as stack:
        place = Place(tmp_path_factory.mktemp("completion"), stack)
        worker = place.worker()
        worker.run(spawn("gate", "north", name="n"), spawn("gate", "south", name="s"), spawn("asking", "sure"))
        worker.run(spawn("gate", "far", name="f"), conversation="elsewhere")
        worker.end("n")
        place.keephold("wait", "north")
        yield place


def environment(place: Place, **more: str) -> dict[str, str]:
    path = f"{warm.launchers(place.directory / 'bin')}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "KEEPHOLD_STORE": "sqlite:///work.db", **more}


def offered(place: Place, line: str, **more: str) -> list[str]:
    """What bash offers for the line, whose last word is being typed."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    script = (
        'eval "$(keephold completion bash)"; '
        f"COMP_WORDS=({' '.join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}; "
        '_keephold_completion keephold; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        cwd=place.directory, env=environment(place, **more), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


def test_L_bash_completes_commands_and_options(place: Place) -> None:
    assert offered(place, "keephold ") == list(COMMANDS)
    assert offered(place, "keephold comp") == ["complete", "completion"]
    assert "--state" in offered(place, "keephold ps --st")
    assert offered(place, "keephold ps --state wa") == ["waiting"]
    assert offered(place, "keephold completion ") == list(SHELLS)
    assert offered(place, "keephold help comp") == ["complete", "completion"]


def test_L_bash_completes_handles_of_the_store(place: Place) -> None:
    assert sorted(offered(place, "keephold show ")) == ["far", "north", "south", "sure"]
    assert sorted(offered(place, "keephold logs -f s")) == ["south", "sure"]
    assert sorted(offered(place, "keephold wait south s")) == ["south", "sure"]
    assert "north" not in offered(place, "keephold send "), "it has stopped"


def test_L_bash_completes_conversations_of_the_store(place: Place) -> None:
    assert offered(place, "keephold ps --conversation ") == ["elsewhere", "main"]
    assert offered(place, "keephold show --conversation m") == ["main"]
    assert offered(place, "keephold abort --all-in ") == ["elsewhere", "main"]
    for words in ("revoke", "forget", "chat --conversation", "turn --conversation", "serve --conversation"):
        assert offered(place, f"keephold {words} e") == ["elsewhere"]


def test_L_the_store_is_the_one_that_the_line_names(place: Place, tmp_path: Path) -> None:
    there = f"sqlite:///{place.directory}/work.db"
    assert "far" in offered(place, f"keephold show --store {there} ", KEEPHOLD_STORE="sqlite:///none.db")
    (tmp_path / "below").mkdir()
    file = tmp_path / "keephold.toml"
    file.write_text(f'[store]\nurl = "{there}"\n')
    below = Place(tmp_path / "below", ExitStack())
    assert offered(below, "keephold show ", KEEPHOLD_STORE="") == []  # K7
    trusted(file)
    assert "far" in offered(below, "keephold show ", KEEPHOLD_STORE="")


@pytest.mark.parametrize("damage", ["no-such.db", "text.db"])
def test_L_nothing_is_offered_and_nothing_said_where_there_is_no_store(place: Place, damage: str) -> None:
    (place.directory / "text.db").write_text("this is not a database, but rather long all the same" * 100)
    assert offered(place, "keephold show ", KEEPHOLD_STORE=f"sqlite:///{damage}") == []
    assert offered(place, "keephold show ", KEEPHOLD_STORE="memory:") == []
    assert not (place.directory / "no-such.db").exists()


def test_L_a_broken_configuration_is_no_word_of_ours(place: Place, tmp_path: Path) -> None:
    (tmp_path / "keephold.toml").write_text("[store\n")
    assert offered(Place(tmp_path, ExitStack()), "keephold show ", KEEPHOLD_STORE="") == []


def test_L_a_person_at_bash_presses_tab(place: Place) -> None:
    needs("tmux")
    with Pane(place.directory, environment(place), cols=80) as pane:
        pane.type('eval "$(keephold completion bash)"; echo read$?')
        pane.until("read0")
        pane._run("send-keys", "-l", "keephold show so")
        pane.press("Tab")
        pane.until("keephold show south")
        pane.press("C-u")


@pytest.mark.parametrize("shell", SHELLS)
def test_L_the_script_of_each_shell_is_one_it_reads(place: Place, shell: str) -> None:
    said = place.keephold("completion", shell)
    assert said.code == 0
    assert f"{shell}_complete" in said.out
    if shutil.which(shell):
        subprocess.run([shell, "-n", "-c" if shell != "fish" else "--command", said.out], check=True, timeout=60)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_L_what_the_script_of_other_shells_asks_is_answered(place: Place, shell: str) -> None:
    """As their scripts ask it: words and number for zsh, words and what is being typed for fish."""
    asked = {"_KEEPHOLD_COMPLETE": f"{shell}_complete", "COMP_WORDS": "keephold show so"}
    asked["COMP_CWORD"] = "2" if shell == "zsh" else "so"
    done = subprocess.run(
        ["keephold"],
        cwd=place.directory, env=environment(place, **asked), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    assert "south" in done.stdout
    assert "gate, running" in done.stdout
    assert "north" not in done.stdout


def test_a_shell_that_is_not_known_is_told_which_are(place: Place) -> None:
    said = place.keephold("completion", "tcsh")
    assert said.code == 2
    assert "'bash', 'zsh', 'fish'" in said.err
