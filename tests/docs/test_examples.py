"""The examples run, and the first screen of the README shows what they print."""

import re
import sys
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, blocks
from tests.docs.sessions import run

from holdfast.config import load_config

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

ESSENTIAL = {
    "first_turn.py": [
        '{"id":"compile","state":"running"}',
        '{"completed":[{"id":"compile","state":"stopped","result":""},{"id":"lines","state":"stopped","result":"',
        '"pending":[{"id":"door","state":"running","waiting_for_input":true}],"needs_input":true}',
        '{"id":"door","state":"stopped","result":"Hello, the model!"}',
    ]
}


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    """What each example prints; `run` raises when one ends with another exit code than 0."""
    return {path.name: run([sys.executable, "-W", "error", str(path)], ROOT) for path in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_and_shows_the_essential(example: Path, printed: dict[str, str]) -> None:
    assert example.name in ESSENTIAL, "say here what the example must show"
    assert [line for line in ESSENTIAL[example.name] if line not in printed[example.name]] == []


def test_the_first_screen_of_the_readme_is_what_the_example_prints(printed: dict[str, str]) -> None:
    [shown] = [block.text for block in blocks(ROOT / "README.md") if block.language == "text"]
    assert _counted(shown) in _counted(printed["first_turn.py"])


def _counted(text: str) -> str:
    """Without white space, which the README breaks lines by, and with every number the same."""
    return re.sub(r"\d+", "1", re.sub(r"\s+", "", text))


def test_the_configuration_of_the_examples_is_right() -> None:
    config = load_config(ROOT / "examples" / "holdfast.toml")
    assert config.conversation.tools
    assert config.not_acted_on() == []
