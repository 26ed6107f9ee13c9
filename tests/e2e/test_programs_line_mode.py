"""Terminals where no emulator is installed: programs run the same, lines are shown, and what is missing is said."""

from pathlib import Path

import pytest
from tests.e2e.driver import Start, TurnProcess, until
from tests.programs import needs

CONFIG = """
[conversation.tools."*"]
source = "terminal"
run = "unattended"

[conversation.tools.less]
command = "less bottles"
env = { LESS = "", LESSOPEN = "", LESSHISTFILE = "-" }

[conversation.tools.greet]
command = ["sh", "greet.sh"]
spawn = { settle_ms = 60000, settle_max_ms = 60000 }
"""


GREET = """
printf '\\033[1mName?\\033[0m '
read name
printf '10%%\\r100%%\\nhello %s\\n' "$name"
"""


@pytest.fixture
def turn(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TurnProcess:
    """A turn whose process cannot import the emulator."""
    absent = tmp_path / "absent"
    absent.mkdir()
    (absent / "pyghostty.py").write_text("raise ImportError('not installed')\n")
    monkeypatch.setenv("PYTHONPATH", str(absent))
    (tmp_path / "greet.sh").write_text(GREET)
    (tmp_path / "bottles").write_text("".join(f"{number} bottles\n" for number in range(1000)))
    return start(CONFIG)


def test_C4_what_is_printed_line_by_line_is_shown_as_ever(turn: TurnProcess) -> None:
    spawned = turn.one("greet", {"action": "spawn", "id": "g"}).json
    assert spawned == {"id": "g", "state": "running", "content": "Name? ", "yielded_because": "waiting_for_input"}
    seen = turn.one("greet", {"action": "fetch", "id": "g", "view": "screen"}).json
    assert seen["content"].rstrip() == "Name?"
    assert seen["screen"] == {"rows": 24, "cols": 80, "cursor": [1, 7], "emulator": "line"}
    applied = turn.one("greet", {"action": "apply", "id": "g", "input": "Ada\n"}).json
    assert applied["result"] == "Ada\n100%\nhello Ada\n"
    assert turn.finish() == []


def test_C5_a_full_screen_program_runs_and_what_is_missing_is_said(turn: TurnProcess) -> None:
    needs("less")
    turn.one("less", {"action": "spawn", "id": "l"})
    until(lambda: "screen" in turn.one("less", {"action": "fetch", "id": "l"}).json)
    shown = turn.one("less", {"action": "fetch", "id": "l"}).json
    assert (shown["screen"]["alternate"], shown["screen"]["emulator"]) == (True, "line")
    assert "A full-screen program is running." in shown["content"]
    assert "keephold[terminal]" in shown["content"]
    turn.one("less", {"action": "apply", "id": "l", "keys": ["q"]})
    (ended,) = turn.one("await", {"all": ["l"]}).json["completed"]
    assert ended == {"id": "l", "state": "stopped", "result": ""}
    assert turn.finish() == []
