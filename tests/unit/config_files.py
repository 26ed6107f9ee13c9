"""A `keephold.toml` in the test's own directory, what it becomes, and what is wrong with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keephold.config import Config, build_tools, load_config
from keephold.errors import ConfigError
from keephold.tools.base import Tool
from keephold.tools.guard import Guard

LOCAL = '[conversation.tools.t]\nsource = "local"\ncommand = ["true"]\n'


def load(text: str) -> Config:
    path = Path("keephold.toml")
    path.write_text(text)
    return load_config(path)


def build(text: str, guard: Guard | None = None) -> Tool:
    """Return the one tool of the file."""
    (tool,) = build_tools(load(text), guard or Guard())
    return tool


def problems(text: str, read: Callable[[str], Any] = load) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return list(caught.value.problems)


def problem(text: str, read: Callable[[str], Any] = load) -> str:
    (only,) = problems(text, read)
    return only
