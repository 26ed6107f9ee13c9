"""The secrets that a configuration names or contains: no child inherits them from the environment (K10), and they are
neither kept nor shown with the rest of the file (K5, K7)."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from keephold.config.model import Config
from keephold.tools.environment import withhold

_SECRET = re.compile("KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH", re.IGNORECASE)
_SHORTEST = 8
"""Characters of a configured value that may be a secret; a shorter one is as likely the value of something else."""


def withhold_secrets(config: Config) -> None:
    """Withhold the variables of API keys, and every variable that has the value of a configured secret.

    Secrets are the headers of MCP servers and the store's address, and those variables of an `env` table whose names
    say so: `PATH` and `HOME` are set there, too, and other tools need theirs.
    """
    withhold(_key_names(config), (value for value in _values(config) if len(value) >= _SHORTEST))


def masked_env(table: Mapping[str, str]) -> dict[str, str]:
    """Return an `env` table with `***` in place of the values that are secrets by their names."""
    return {name: "***" if _SECRET.search(name) else value for name, value in table.items()}


def without_secrets(config: Config, text: str) -> str | None:
    """Return the file's text with `***` in place of its secrets; None if one is written in a way that is not found."""
    values = {each for each in _values(config) if len(each) >= _SHORTEST and not each.startswith("sqlite:")}
    for value in sorted(values, key=len, reverse=True):
        for form in (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]):
            text = text.replace(form, "***")
    try:
        left = list(_strings(tomllib.loads(text)))
    except (tomllib.TOMLDecodeError, RecursionError):
        return None
    return None if any(value in each for value in values for each in left) else text


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _key_names(config: Config) -> Iterator[str]:
    conversation = config.conversation
    settings = [conversation.assistant, conversation.inquiry.assistant]
    settings += [agent.assistant for agent in config.agents.values()]
    settings += [tool.spawn.lifecycle.assistant for tool in conversation.tools.values()]
    yield from (each.api_key_env for each in settings if each.api_key_env is not None)
    for tool in conversation.tools.values():
        for question in tool.questions.values():
            name = question.target.get("api_key_env") if isinstance(question.target, dict) else None
            if isinstance(name, str):
                yield name
    yield from (engine.api_key_env for engine in config.engines.values() if engine.api_key_env is not None)


def _values(config: Config) -> Iterator[str]:
    servers = config.mcp.servers.values()
    for server in servers:
        for header in server.headers.values():
            yield header
            yield header.rpartition(" ")[2]  # `Bearer <token>`
    tables: list[Mapping[str, str]] = [server.env for server in servers]
    tables += [agent.env for agent in config.agents.values()]
    tables += [tool.env for tool in config.conversation.tools.values()]
    for table in tables:
        yield from (value for name, value in table.items() if _SECRET.search(name))
    if config.store.url is not None:
        yield config.store.url
