"""Ctrl-C at a question of a command: the exit code that shells know it by, and nothing is done (L3)."""

import os
import sys
from pathlib import Path

import pytest
from tests.e2e.panes import Pane
from tests.programs import needs


@pytest.mark.parametrize(
    ("command", "asked"), [("send x --password", "Secret"), ("forget x", "This cannot be undone.")]
)
def test_L3_ctrl_c_at_a_question_is_130(tmp_path: Path, command: str, asked: str) -> None:
    needs("tmux", "bash")
    with Pane(tmp_path, {**os.environ, "KEEPHOLD_STORE": "sqlite:///work.db"}, cols=100) as pane:
        pane.type(f"{sys.executable} -m keephold {command}; echo code $?")
        pane.until(asked)
        pane.press("C-c")
        pane.until("\ncode ")
        assert "\ncode 130" in pane.screen
        pane.back()
