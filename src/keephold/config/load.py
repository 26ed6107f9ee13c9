"""Reads `keephold.toml` (L4, F). Every problem of the file is reported at once, in order of its lines."""

import re
import tomllib
from pathlib import Path
from typing import Any

from keephold.config.explain import kind, problems
from keephold.config.model import Config, ToolSettings
from keephold.config.rules import (
    agent_problems,
    archive_problems,
    builtins_problems,
    engine_problems,
    serve_problems,
    server_problems,
    tool_problems,
)
from keephold.config.source import DEFAULTS, TOOLS, KeyPath, Lines, Problem, Source, shown, table_at
from keephold.errors import ConfigError


def load_config(path: Path, data: bytes | None = None) -> Config:
    """Read the configuration in `path`, or the `data` that was read from it. Raise `ConfigError` with one line for each
    problem."""
    config, found = inspect_config(path, data)
    if found:
        assert config.source is not None, "it was read from a file"
        raise ConfigError([f"{config.source.at(key)}: {sentence}" for key, sentence in found])
    return config


def inspect_config(path: Path, data: bytes | None = None) -> tuple[Config, list[Problem]]:
    """Return the configuration without its wrong settings, and every problem, in order of the lines.

    Raise `ConfigError` for a file that is not TOML at all.
    """
    try:
        return _inspect(_read(path, data))
    except RecursionError:
        raise ConfigError(
            [f"{shown(path)}: nested too deeply; write fewer tables or lists inside each other"]
        ) from None


def _inspect(source: Source) -> tuple[Config, list[Problem]]:
    document = dict(source.data)
    if table_at(document, TOOLS):  # they are checked one by one
        document["conversation"] = {**document["conversation"], "tools": {}}
    found = problems(Config, document)
    for key, _ in found:
        document = _without(document, key)
    tools: dict[str, Any] = {}
    for name, table in table_at(source.data, TOOLS).items():
        if not isinstance(table, dict):
            found.append(((*TOOLS, name), f"must be a table, not {kind(table)}"))
            continue
        left, wrong = _tool(name, source)
        found += [((*TOOLS, name, *key), sentence) for key, sentence in wrong]
        if name != DEFAULTS:
            tools[name] = left
    if tools:
        document["conversation"] = {**document["conversation"], "tools": tools}
    config = Config.model_validate(document)
    config._source = source
    wrong_keys = [key for key, _ in found]
    rules = (
        *server_problems(config.mcp.servers),
        *builtins_problems(config.mcp.builtins),
        *engine_problems(config.engines),
        *agent_problems(config.agents, config.conversation.tools),
        *serve_problems(config.serve),
        *archive_problems(config),
    )
    found += [each for each in rules if not any(_about(each[0], k) for k in wrong_keys)]
    found.sort(key=lambda problem: source.line(problem[0]))
    # A rule that a default breaks is found once for each tool it is merged under.
    unique = {f"{source.at(key)}: {sentence}": (key, sentence) for key, sentence in reversed(found)}
    return config, list(reversed(unique.values()))


def _read(path: Path, data: bytes | None) -> Source:
    try:
        text = (path.read_bytes() if data is None else data).decode()
    except OSError as error:
        raise ConfigError([f"{shown(path)}: cannot be read: {error.strerror}; give a readable file"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"{shown(path)}: not UTF-8 at byte {error.start}; TOML files are UTF-8"]) from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([_syntax(path, text, str(error))]) from None
    return Source(path.absolute(), document, Lines(text))


def _syntax(path: Path, text: str, message: str) -> str:
    """Return tomllib's message with its position in front, where editors look for it."""
    match = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", message, re.DOTALL)
    if match is None:
        return f"{shown(path)}: not valid TOML: {message}"
    line = match[2] or max(1, len(text.splitlines()))
    column = f" (column {match[3]})" if match[3] else " (at the end of the file)"
    return f"{shown(path)}:{line}: not valid TOML: {match[1]}{column}"


def _tool(name: str, source: Source) -> tuple[dict[str, Any], list[Problem]]:
    """Return one tool without its wrong values, and its problems. Rules are checked on the rest, so that a misspelt key
    hides no other mistake, but not rules about the removed values."""
    data = source.tool(name)
    where = (*TOOLS, name)
    wrong = problems(ToolSettings, data, where)
    for key, _ in wrong:
        data = _without(data, key)
    # A wrong default is reported where it is written.
    found = [(key, sentence) for key, sentence in wrong if not source.inherited(where + key)]
    if name == DEFAULTS or any(key == ("source",) for key, _ in wrong):
        return data, found
    for key, sentence in tool_problems(name, ToolSettings.model_validate(data), source):
        if not key or not any(_about(key, other) for other, _ in wrong):
            found.append((key, sentence))
    return data, found


def _about(key: KeyPath, other: KeyPath) -> bool:
    """Return whether one of the keys is the other or inside it."""
    shared = min(len(key), len(other))
    return key[:shared] == other[:shared]


def _without(data: dict[str, Any], key: KeyPath) -> dict[str, Any]:
    """Return the table without the key; a list with a wrong item is removed as a whole."""
    head, *rest = key
    value = data.get(str(head))
    if rest and isinstance(value, dict):
        return {**data, str(head): _without(value, tuple(rest))}
    return {name: item for name, item in data.items() if name != head}
