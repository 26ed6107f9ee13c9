"""The file a configuration came from: what is written where, with the defaults of `"*"` merged under every tool.

A setting of a tool may stand in the tool's own table or in `[conversation.tools."*"]`. `Source.at` finds out which, so
that a problem always names the line a person has to edit.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keephold.config.locate import KeyPath, Lines

TOOLS: KeyPath = ("conversation", "tools")
DEFAULTS = "*"


@dataclass(frozen=True, slots=True)
class Source:
    """A configuration file as written."""

    path: Path
    data: Mapping[str, Any]
    lines: Lines

    def at(self, key: KeyPath) -> str:
        """`keephold.toml:12: conversation.tools.check.run`, with the place where the setting is really written."""
        return f"{shown(self.path)}:{self.line(key)}: {dotted(self._written_as(key))}"

    def line(self, key: KeyPath) -> int:
        """The line on which the setting is really written."""
        return self.lines.line(self._written_as(key))

    def has(self, key: KeyPath) -> bool:
        """Whether exactly this key is written; defaults of `"*"` do not count."""
        return _depth(self.data, key) == len(key)

    def inherited(self, key: KeyPath) -> bool:
        """Whether the setting of a tool is really one of the defaults."""
        return self._written_as(key) != key

    def tool(self, name: str) -> dict[str, Any]:
        """The tool's table with the defaults merged under it."""
        own = _table(self.data, (*TOOLS, name))
        defaults = {} if name == DEFAULTS else _table(self.data, (*TOOLS, DEFAULTS))
        return merged(_without_contradiction(defaults, own), own)

    def _written_as(self, key: KeyPath) -> KeyPath:
        inside = len(TOOLS) + 1
        if key[: len(TOOLS)] != TOOLS or len(key) <= inside:
            return key
        default = (*TOOLS, DEFAULTS, *key[inside:])
        return default if _depth(self.data, default) > max(_depth(self.data, key), inside) else key


def shown(path: Path) -> str:
    """The path as a person in the working directory would write it."""
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)


def dotted(key: KeyPath) -> str:
    """The key as TOML writes it: `conversation.tools."*".run`."""
    return ".".join(part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else _quoted(part) for part in map(str, key))


def _quoted(part: str) -> str:
    return json.dumps(part, ensure_ascii=False)


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both tables in one: tables are merged all the way down, of anything else `over` wins."""
    result = dict(under)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def _without_contradiction(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """The defaults less what the tool's own table overrules under another name: `actions` imply `stateful`."""
    spawn, ours = _table(defaults, ("spawn",)), _table(own, ("spawn",))
    if ours.get("stateful") is False:
        overruled = "actions"
    elif "actions" in ours and spawn.get("stateful") is False:
        overruled = "stateful"
    else:
        return defaults
    return {**defaults, "spawn": {key: value for key, value in spawn.items() if key != overruled}}


def _table(data: Mapping[str, Any], key: KeyPath) -> dict[str, Any]:
    value: Any = data
    for part in key:
        value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _depth(data: Any, key: KeyPath) -> int:
    """How many parts of the key are there."""
    for depth, part in enumerate(key):
        inside = range(len(data)) if isinstance(data, list) else data if isinstance(data, dict) else ()
        if part not in inside:
            return depth
        data = data[part]
    return len(key)
