"""Say what a configuration would do: import, start, connect, send and write (K7).

The user reads this before they trust a file that somebody else may have written. Texts from the file are quoted as
ASCII, so that no character hides, moves or imitates another.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from keephold.config.model import AgentSettings, AssistantSettings, Config, McpServerSettings, ToolSettings
from keephold.config.secrets import masked_env
from keephold.store.postgres.address import shown

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def would_do(config: Config) -> list[str]:
    """Return one line for each thing, each beginning with a verb: first what happens at once, then what calls do."""
    parts = (
        _models(config),
        _servers(config),
        _engines(config),
        _modules(config),
        _files(config),
        _rest(config),
        _calls(config),
    )
    return list(dict.fromkeys(chain.from_iterable(parts)))


def _models(config: Config) -> Iterator[str]:
    for settings in _assistants(config):
        model = settings.model or ""
        if model.startswith("python:"):
            yield f"import Python {_quoted(model.removeprefix('python:'))} as a model"
        variable = settings.api_key_env
        key = "your key of the provider" if variable is None else f"the variable {_quoted(variable)}"
        if settings.base_url is not None:
            yield f"connect to {_quoted(settings.base_url)} as a model, and send {key} there"
        elif variable is not None:
            yield f"send {key} to the provider of the model {_quoted(model)}"
        elif model and not model.startswith("python:"):
            yield f"send conversations to the model {_quoted(model)}"
        if settings.settings:
            yield f"ask the model with {_quoted(settings.settings)}"


def _assistants(config: Config) -> Iterator[AssistantSettings]:
    """Yield every table with settings of a model, each as it is written."""
    conversation = config.conversation
    yield conversation.assistant
    yield conversation.inquiry.assistant
    for agent in config.agents.values():
        yield agent.assistant
        if agent.model is not None:
            yield AssistantSettings(model=agent.model)
    for tool in conversation.tools.values():
        yield tool.spawn.lifecycle.assistant
        for question in tool.questions.values():
            if isinstance(question.target, dict):
                yield _lenient(question.target)


def _lenient(table: Mapping[str, Any]) -> AssistantSettings:
    """Return the settings of a table that is validated only when the model is asked; a wrong one is shown whole."""
    try:
        return AssistantSettings.model_validate(dict(table))
    except ValueError:
        return AssistantSettings(settings=dict(table))


def _servers(config: Config) -> Iterator[str]:
    for name, server in config.mcp.servers.items():
        if not server.enabled:
            continue
        if server.url is not None:
            headers = f", with the headers {_quoted(list(server.headers))}" if server.headers else ""
            login = ", with your stored login there" if server.oauth else ""
            yield f"connect to {_quoted(server.url)}, the MCP server {_quoted(name)}{headers}{login}"
        else:
            words = [server.command] if isinstance(server.command, str) else [*(server.command or ())]
            program = _program([*words, *server.args], server)
            yield f"start {program}, the MCP server {_quoted(name)}"


def _engines(config: Config) -> Iterator[str]:
    for name, engine in config.engines.items():
        files = {} if engine.tls is None else engine.tls.model_dump(exclude_none=True)
        using = f", with the files {_quoted(files)}" if files else ""
        key = f", and send the variable {_quoted(engine.api_key_env)} there" if engine.api_key_env else ""
        yield f"connect to {_quoted(engine.address)}, the engine {_quoted(name)}{using}{key}"


def _modules(config: Config) -> Iterator[str]:
    for tool in config.conversation.tools.values():
        if tool.source == "python" and tool.function is not None:
            yield f"import Python {_quoted(tool.function.partition(':')[0])}"


def _files(config: Config) -> Iterator[str]:
    archive = config.wait_handles.archive
    if archive is not None:
        yield f"append to the file {_quoted(str(config.root / Path(archive).expanduser()))}"
    if config.store.archive is not None:
        yield f"append to files in {_quoted(str(config.root / Path(config.store.archive).expanduser()))}"
    if config.store_url is not None:
        yield f"keep handles in {_quoted(shown(config.store_url))}"


def _rest(config: Config) -> Iterator[str]:
    conversation, serve = config.conversation, config.serve
    if serve.host not in _LOOPBACK:
        yield f"let `keephold serve` listen at {_quoted(serve.host)}, port {serve.port}"
    if conversation.detached != "deny":
        yield f"decide without you where you cannot be asked (detached = {_quoted(conversation.detached)})"
    if config.workflows.api_hosts:
        yield f"let workflows send requests to {_quoted(config.workflows.api_hosts)} without asking you"
    if config.workflows.private_addresses:
        yield "let workflows connect to private addresses"
    texts = [conversation.instructions, *(agent.instructions for agent in config.agents.values())]
    if any(texts):
        yield f"give models instructions ({sum(map(len, texts))} characters)"


def _calls(config: Config) -> Iterator[str]:
    for name, tool in config.conversation.tools.items():
        if tool.runs_command:
            yield f"run {_program(tool.command, tool)} when a model calls {_quoted(name)}{_asking(tool)}"
        elif tool.source == "python":
            on = "" if tool.engine is None else f", on workers of the engine {_quoted(tool.engine)}"
            yield f"run Python {_quoted(tool.function)} when a model calls {_quoted(name)}{_asking(tool)}{on}"
        elif tool.source == "builtin" and "run" in tool.model_fields_set and tool.run == "unattended":
            yield f"let models call the built-in {_quoted(name)} without asking you"
    for id, agent in config.agents.items():
        if agent.command is not None:
            words = [agent.command] if isinstance(agent.command, str) else agent.command
            yield f"start {_program(words, agent)} when a model calls the agent {_quoted(id)}"


def _asking(tool: ToolSettings) -> str:
    modes = {tool.run, *tool.run_actions.values()}
    return ", without asking you" if "unattended" in modes else ""


def _program(command: Any, settings: ToolSettings | AgentSettings | McpServerSettings) -> str:
    place = "" if settings.cwd == "." else f" in {_quoted(settings.cwd)}"
    env = f" with the variables {_quoted(masked_env(settings.env))}" if settings.env else ""
    passed = f" with your variables {_quoted(settings.pass_env)}" if settings.pass_env else ""
    return f"{_quoted(command)}{place}{env}{passed}"


def _quoted(value: Any) -> str:
    return json.dumps(value, default=str).replace("\x7f", "\\u007f")
