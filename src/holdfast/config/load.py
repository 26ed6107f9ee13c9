"""Finding and reading `holdfast.toml` (L4, F). Every problem of the file is reported at once, in order of its lines."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.config.explain import kind, problems
from holdfast.config.locate import KeyPath, Lines
from holdfast.config.model import Config, ToolSettings
from holdfast.config.rules import Problem, tool_problems
from holdfast.config.source import DEFAULTS, TOOLS, Source, shown
from holdfast.errors import ConfigError

FILE_NAME = "holdfast.toml"


def find_config(start: Path) -> Path | None:
    """The `holdfast.toml` of `start` or of the nearest directory above it."""
    start = start.absolute()
    candidates = (directory / FILE_NAME for directory in (start, *start.parents))
    return next((path for path in candidates if path.is_file()), None)


def the_config(path: Path | None) -> Path:
    """The file a command is to use: the one named, else the one found. Raises `ConfigError` if there is none."""
    path = path or find_config(Path.cwd())
    if path is None:
        raise ConfigError(["no holdfast.toml in this directory or above it; write one, or name a file by --config"])
    return path


def load_config(path: Path) -> Config:
    """The configuration in `path`. Raises `ConfigError` with one line for each problem."""
    source = _read(path)
    tables = _tool_tables(source.data)
    found = problems(Config, _with_tools(source.data, {}))
    for name, table in tables.items():
        if isinstance(table, dict):
            found += [((*TOOLS, name, *key), sentence) for key, sentence in _tool(name, source)]
        else:
            found.append(((*TOOLS, name), f"must be a table, not {kind(table)}"))
    if found:
        found.sort(key=lambda problem: source.line(problem[0]))
        # A mistake in "*" is found once for each tool it is merged under.
        raise ConfigError(list(dict.fromkeys(f"{source.at(key)}: {sentence}" for key, sentence in found)))
    tools = {name: source.tool(name) for name in tables if name != DEFAULTS}
    config = Config.model_validate(_with_tools(source.data, tools))
    config._source = source
    return config


def _read(path: Path) -> Source:
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise ConfigError([f"{shown(path)}: cannot be read: {error.strerror}; give a readable file"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"{shown(path)}: not UTF-8 at byte {error.start}; TOML files are UTF-8"]) from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([_syntax(path, text, str(error))]) from None
    return Source(path.absolute(), data, Lines(text))


def _syntax(path: Path, text: str, message: str) -> str:
    """tomllib's message with its position in front, where editors look for it."""
    match = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", message, re.DOTALL)
    if match is None:
        return f"{shown(path)}: not valid TOML: {message}"
    line = match[2] or max(1, len(text.splitlines()))
    column = f" (column {match[3]})" if match[3] else " (at the end of the file)"
    return f"{shown(path)}:{line}: not valid TOML: {match[1]}{column}"


def _tool_tables(data: Mapping[str, Any]) -> dict[str, Any]:
    """`[conversation.tools]`, or nothing where it is no table, which its model will say."""
    conversation = data.get("conversation")
    tools = conversation.get("tools") if isinstance(conversation, dict) else None
    return tools if isinstance(tools, dict) else {}


def _with_tools(data: Mapping[str, Any], tools: dict[str, Any]) -> dict[str, Any]:
    """The document with other tool tables, or as it is where it has none."""
    if not _tool_tables(data):
        return dict(data)
    return {**data, "conversation": {**data["conversation"], "tools": tools}}


def _tool(name: str, source: Source) -> Iterator[Problem]:
    """The problems of one tool. Rules are checked on what is left when wrong values are taken out, so that a misspelt
    key hides no other mistake; rules about the values taken out are not, for they would complain of our own doing."""
    data = source.tool(name)
    wrong = problems(ToolSettings, data)
    yield from wrong
    for key, _ in wrong:
        data = _without(data, key)
    if name == DEFAULTS or any(key == ("source",) for key, _ in wrong):
        return
    for key, sentence in tool_problems(name, ToolSettings.model_validate(data), source):
        if not any(_about(key, other) for other, _ in wrong):
            yield key, sentence


def _about(key: KeyPath, other: KeyPath) -> bool:
    """Whether one of the keys is the other or inside it."""
    shared = min(len(key), len(other))
    return key[:shared] == other[:shared]


def _without(data: dict[str, Any], key: KeyPath) -> dict[str, Any]:
    """The table without the key; a list with a wrong item goes as a whole."""
    head, *rest = key
    value = data.get(str(head))
    if rest and isinstance(value, dict):
        return {**data, str(head): _without(value, tuple(rest))}
    return {name: item for name, item in data.items() if name != head}
