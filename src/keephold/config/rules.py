"""The rules that tie several keys of a tool, an agent or an MCP server together, or a key to something outside.

Each tool is checked as it will be used, with the defaults of `"*"`. A default that has no meaning for the tool's source
is ignored; the same setting in the tool's own table is a mistake.
"""

import datetime
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from keephold.config import commands
from keephold.config.commands import unknown_names
from keephold.config.explain import not_one_of, unknown_key
from keephold.config.model import (
    AgentSettings,
    Config,
    McpServerSettings,
    ServeSettings,
    TemporalSettings,
    ToolSettings,
)
from keephold.config.source import TOOLS, KeyPath, Problem, Source, dotted, table_at
from keephold.config.values import BASE, is_base
from keephold.errors import ConfigError
from keephold.platforms import machine
from keephold.schema.canonical import check_parameters, wrong_types
from keephold.store.archive import is_within
from keephold.tools.base import engine_problem, keep_problems
from keephold.tools.builtin import NAMES, RESERVED, unknown_builtins
from keephold.tools.program import ACTION_PARAMETERS, QUESTIONS
from keephold.tools.template import CommandLine, Template
from keephold.tools.toolbox import name_problem

SERVERS = ("mcp", "servers")

_FOR_PROGRAMS = ("args", "env", "pass_env", "cwd")


def builtins_problems(names: Collection[str] | None) -> Iterator[Problem]:
    """Yield the names in `[mcp] builtins` that no built-in has."""
    for name in unknown_builtins(names or ()):
        yield ("mcp", "builtins"), not_one_of(name, ("*", *NAMES))


def server_problems(servers: Mapping[str, McpServerSettings]) -> Iterator[Problem]:
    """Yield every broken rule of the tables of servers."""
    for name, table in servers.items():
        where = (*SERVERS, name)
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            yield where, "a server's name has 1 to 64 characters of A-Z, a-z, 0-9, `_` and `-`; choose another"
        if (table.command is None) == (table.url is None):
            right = '`command = ["program", "argument"]` for a program, `url = "https://…"` for one that serves HTTP'
            yield where, f"write either: {right}"
            continue
        if table.command is not None and machine.no_programs:
            yield (*where, "command"), machine.no_programs
        written = table.model_fields_set
        for key in _FOR_PROGRAMS if table.url is not None else ("headers", "oauth", "scope"):
            if key in written:
                what = "is for a server with a `command`" if table.url is not None else "is for a server with a `url`"
                yield (*where, key), what
        if table.scope is not None and not table.oauth:
            yield (*where, "scope"), "is for a server with `oauth = true`"
        if table.oauth and any(header.lower() == "authorization" for header in table.headers):
            yield (*where, "headers"), "`oauth = true` sends the header Authorization; remove it here"


def serve_problems(serve: ServeSettings) -> Iterator[Problem]:
    if serve.url is not None and not is_base(serve.url):
        yield ("serve", "url"), BASE


def engine_problems(engines: Mapping[Any, TemporalSettings]) -> Iterator[Problem]:
    """Yield every broken rule of the tables of engines."""
    for name, table in engines.items():
        where, tls = ("engines", name), table.tls
        if tls is not None and (tls.cert_file is None) != (tls.key_file is None):
            yield (*where, "tls"), "`cert_file` and `key_file` belong together; write both or neither"
        if tls is None and table.api_key_env is not None:
            yield (*where, "api_key_env"), "the key would be sent unencrypted; add `tls = true`"


def no_engine(engine: str) -> str:
    """Return the sentence for a tool whose engine has no table."""
    return f"there is no table [engines.{engine}]; write one with the `address` of the engine, or remove `engine`"


def archive_problems(config: Config) -> Iterator[Problem]:
    """Yield the problem of an archive outside of the directories in which keephold may write (K7)."""
    places = config.archive_places
    for table, named in (("store", config.store.archive), ("wait_handles", config.wait_handles.archive)):
        if named is not None and not is_within(places[0] / Path(named).expanduser(), places):
            where = " or ".join(map(str, places))
            yield (table, "archive"), f"must be in {where}, also after links"


def tool_server_problems(tool: ToolSettings, name: str, servers: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with the server that a tool's table names."""
    if tool.server is None:
        listed = ", ".join(f'"{each}"' for each in servers) or "write a table [mcp.servers.<name>] first"
        yield ("server",), f"missing; what would be right: {listed}"
        return
    table = servers.get(tool.server)
    if not isinstance(table, dict):
        known = not_one_of(tool.server, servers) if servers else f"there is no table [mcp.servers.{tool.server}]"
        yield ("server",), known
        return
    taken, wanted = table.get("tools"), tool.tool or name
    if isinstance(taken, list) and wanted not in taken:
        yield ("tool",), f'`tools` in [mcp.servers.{tool.server}] does not take "{wanted}"; add it there'


_NO_TERMINAL = 'only a program with source = "terminal" has one'
_NO_SERVER: dict[KeyPath, str] = {
    ("server",): 'servers have the tools with source = "mcp"',
    ("tool",): 'it names a tool of a server, for source = "mcp"',
}
_NOT_FOR: dict[str, dict[KeyPath, str]] = {
    "local": {
        ("function",): 'a local tool runs `command`; functions are for source = "python"',
        ("terminal",): _NO_TERMINAL,
        **_NO_SERVER,
    },
    "terminal": {
        ("function",): 'a terminal runs `command`; functions are for source = "python"',
        ("returns",): 'a terminal shows text; `returns` is for source = "local"',
        ("wire",): 'what a terminal gets is for people to read; the wire form is for source = "local"',
        ("spawn", "stdin"): 'the terminal is the input, which `apply` types into; `stdin` is for source = "local"',
        ("env", "TERM"): "the terminal is of the kind `term` in the table `terminal` of this tool",
        ("env", "LINES"): "the terminal tells its size itself; it is `rows` in the table `terminal` of this tool",
        ("env", "COLUMNS"): "the terminal tells its size itself; it is `cols` in the table `terminal` of this tool",
        **_NO_SERVER,
    },
    "python": {
        ("command",): 'a function is named by `function = "module:name"`; commands are for source = "local"',
        ("cwd",): "a function runs in the working directory of the process",
        **dict.fromkeys((("env",), ("pass_env",)), "a function has the environment of the process"),
        ("wire",): 'a function asks by `call.ask`; the wire form is for source = "local"',
        ("options",): 'give the function its options in Python; `options` are for source = "local"',
        ("parameters",): "a function's parameters come from its signature and docstring",
        ("returns",): "a function declares it by the type that it returns",
        ("spawn", "stdin"): 'a function reads by `call.input()`; add "apply" to `actions`',
        ("spawn", "input"): "a function gets what `apply` sends as it is",
        ("terminal",): _NO_TERMINAL,
        **_NO_SERVER,
    },
    "mcp": {
        ("command",): "the server is started by `command` in its own table [mcp.servers.<name>]",
        ("function",): 'the tool is one of a server, named by `tool`; functions are for source = "python"',
        **dict.fromkeys((("cwd",), ("env",), ("pass_env",)), "the server has its own, in [mcp.servers.<name>]"),
        ("wire",): 'a server asks by elicitation; the wire form is for source = "local"',
        ("options",): 'a server takes arguments only; `options` are for source = "local"',
        ("parameters",): "the server says which parameters its tools have",
        ("returns",): "the server says what its tools return",
        ("spawn", "stdin"): "a tool of a server takes no input while it runs; `apply` answers its questions",
        ("spawn", "input"): "a tool of a server takes no input while it runs; `apply` answers its questions",
        ("terminal",): _NO_TERMINAL,
    },
}
_COMMAND = '["program", "argument"], a string, or { program, args, shell }'
_FUNCTION = '"module:name", the module looked for in the directory of this file, then among the installed ones'
_FOR_BUILTIN = ("source", "run", "result", "output")

_KEYWORDS = frozenset(
    """$anchor $comment $defs $dynamicAnchor $dynamicRef $id $ref $schema $vocabulary additionalItems
    additionalProperties allOf anyOf const contains contentEncoding contentMediaType contentSchema default definitions
    dependencies dependentRequired dependentSchemas deprecated description else enum examples exclusiveMaximum
    exclusiveMinimum format if items maxContains maxItems maxLength maxProperties maximum minContains minItems
    minLength minProperties minimum multipleOf not oneOf pattern patternProperties prefixItems properties
    propertyNames readOnly required then title type unevaluatedItems unevaluatedProperties uniqueItems
    writeOnly""".split()  # noqa: SIM905 - a column of sixty strings is harder to read
)


def tool_problems(name: str, tool: ToolSettings, source: Source) -> Iterator[Problem]:
    """Yield every broken rule of one tool: the key's path inside the tool's table, and a sentence."""
    where = (*TOOLS, name)
    wrong_name = name_problem(name)
    if wrong_name:
        yield (), wrong_name
    yield from _source(name, tool)
    if tool.source == "builtin":
        for written in source.data["conversation"]["tools"][name]:
            if written not in _FOR_BUILTIN:
                yield (written,), "has no meaning for a built-in tool; known here: " + ", ".join(_FOR_BUILTIN)
        return
    for key, reason in _NOT_FOR.get(tool.source or "", {}).items():
        if source.has(where + key):
            yield key, f'has no meaning for source = "{tool.source}": {reason}'
    if source.has((*where, "engine")):
        problem = engine_problem(tool.engine, tool.source)
        if problem is not None:
            yield ("engine",), problem
    if tool.engine is not None and tool.source == "python" and tool.engine not in table_at(source.data, ("engines",)):
        yield ("engine",), no_engine(tool.engine)
    if tool.source == "mcp":
        yield from tool_server_problems(tool, name, table_at(source.data, SERVERS))
    yield from _actions(tool, source, where)
    yield from _questions(tool)
    names = _Names(name, tool, source)
    for index, text in enumerate(tool.resources):
        yield from _from_template(("resources", index), names, text)
    if tool.on_crash == "external" and tool.source != "python":
        what = "a command" if tool.runs_command else "a tool of a server"
        yield ("on_crash",), f'{what} takes no completion key: "external" is for functions; use "fail" or "replay"'
    media = tool.returns if isinstance(tool.returns, str) else None
    for problem in keep_problems(tool.on_crash, tool.source, tool.retry.policy, tool.keep_secs, tool.wire, media):
        yield ("on_crash",), problem
    if tool.runs_command:
        if machine.no_programs:
            yield ("command",), machine.no_programs
        yield from _command(tool, names)
        yield from _parameters(name, tool)
        yield from _not_json(("options",), tool.options)


def _source(name: str, tool: ToolSettings) -> Iterator[Problem]:
    match tool.source:
        case None:
            programs = '"local" for a command, "terminal" for one that wants a terminal'
            others = '"python" for a function, "mcp" for a tool of an MCP server'
            right = '"builtin"' if name in NAMES else f"{programs}, {others}"
            yield ("source",), f"missing; what would be right: {right}"
        case "builtin" if name not in NAMES:
            yield ("source",), f"there is no built-in tool of this name: the name {not_one_of(name, NAMES)}"
        case "local" | "terminal" | "python" | "mcp" if name in RESERVED:
            yield (), f'`{name}` is the name of a built-in tool; choose another, or write source = "builtin"'
    if tool.runs_command and tool.command is None:
        yield ("command",), f"missing; what would be right: {_COMMAND}"
    if tool.source == "python" and tool.function is None:
        yield ("function",), f"missing; what would be right: {_FUNCTION}"
    if tool.function is not None and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", tool.function):
        yield ("function",), f"must be {_FUNCTION}"


def _questions(tool: ToolSettings) -> Iterator[Problem]:
    of_terminal = QUESTIONS if tool.source == "terminal" else {}
    if of_terminal:
        yield from terminal_questions(tool)
    for question, settings in tool.questions.items():
        if settings.exclusive and settings.target != "user" and question not in of_terminal:
            reason = 'is never answered by a model, so its target must be "user", or `exclusive` false'
            yield ("questions", question), f"an exclusive question {reason}"


def terminal_questions(tool: ToolSettings) -> Iterator[Problem]:
    """Yield settings that a file may not have for the questions of every terminal."""
    for question in tool.questions.keys() & QUESTIONS.keys():
        settings, key = tool.questions[question], ("questions", question)
        if "answer" in settings.model_fields_set:
            reason = "is a secret, which does not belong in a file; leave it out, and a person is asked"
            yield (*key, "answer"), f"what a terminal reads without echo {reason}"
        if settings.target != "user":
            reason = 'is typed by a person; the target must be "user"'
            yield (*key, "target"), f"what a terminal reads without echo {reason}"


def _actions(tool: ToolSettings, source: Source, where: KeyPath) -> Iterator[Problem]:
    spawn = tool.spawn
    if spawn.stateful is False and spawn.actions is not None:
        yield ("spawn", "stateful"), "`actions` are written, which means stateful = true; remove one of the two"
    elif (spawn.stateful or spawn.actions) and "spawn" not in tool.actions:
        yield ("spawn", "actions"), 'must have "spawn": without it no handle can be started'
    if tool.source != "local":
        return
    if "apply" in tool.actions and not (spawn.stdin or tool.wire):
        yield ("spawn", "actions"), '"apply" needs somewhere to send: stdin = true in this table, or wire = true'
    if spawn.stdin and not tool.actions and source.has((*where, "spawn", "stdin")):
        yield ("spawn", "stdin"), "has no effect on a tool that is only called one-shot; add stateful = true"


class _Names:
    """Checks the names that the templates of one tool use."""

    def __init__(self, name: str, tool: ToolSettings, source: Source) -> None:
        self._name = name
        self._source = source
        written = source.tool(name)
        tables = [key for key, value in written.items() if isinstance(value, dict)]
        # The names of a function are not known yet, and `parameters` may be misspelt: then no name is certainly wrong.
        certain = tool.runs_command and ("parameters" in tables or not set(tables) - set(ToolSettings.model_fields))
        self._parameters = list(written.get("parameters", {})) if certain else None

    def place(self, key: KeyPath) -> str:
        return dotted((*TOOLS, self._name, *key))

    def directory(self, cwd: str) -> str:
        return os.path.normpath(self._source.path.parent / cwd)

    def problems(self, key: KeyPath, text: str) -> Iterator[Problem]:
        """Yield the unknown names in a template. A default may be meant for other tools' parameters."""
        inherited = self._source.inherited((*TOOLS, self._name, *key))
        for sentence in unknown_names(text, None if inherited else self._parameters, self._name):
            yield key, sentence


def _command(tool: ToolSettings, names: _Names) -> Iterator[Problem]:
    if tool.command is None:
        return
    where = names.place(("command",))
    malformed = list(_raised(("command",), where, partial(CommandLine.parse, tool.command, where)))
    yield from malformed
    if malformed:
        return
    program = commands.program_of(tool.command)
    if program is not None and " " in program and not isinstance(tool.command, str):
        # A whole command in the place of its program. Another missing program may exist when it is called.
        directory = names.directory(tool.cwd)
        if commands.which(program, directory, tool.env) is None:
            yield ("command",), commands.missing(tool.command, directory)
    for key, sentence in commands.operators(tool.command):
        yield ("command", *key), sentence
    for key, text in commands.texts(tool.command):
        yield from names.problems(("command", *key), text)


def _from_template(key: KeyPath, names: _Names, text: str) -> Iterator[Problem]:
    where = names.place(key)
    malformed = list(_raised(key, where, partial(Template, text, where)))
    yield from malformed or names.problems(key, text)


def _parameters(name: str, tool: ToolSettings) -> Iterator[Problem]:
    """Check each parameter by itself, so that a problem has the line of its parameter."""
    schema = tool.parameters_schema()["properties"]
    further = ACTION_PARAMETERS if tool.source == "terminal" else {}
    for parameter, table in tool.parameters.items():
        key = ("parameters", parameter)
        found = [*_unknown_keywords(key, table), *_not_json(key, table)]
        found += [((*key, *inside), sentence) for inside, sentence in wrong_types(table)]
        if not isinstance(table.get("required", False), bool | list):
            found.append(((*key, "required"), "must be true or false"))
        yield from found
        if not found:
            alone = {"type": "object", "properties": {parameter: schema[parameter]}}
            yield from _raised(key, f"tool `{name}`", partial(check_parameters, name, alone, tool.actions, further))


def _unknown_keywords(key: KeyPath, schema: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield keys that are not JSON Schema keywords: a misspelt `required` would go unnoticed."""
    for word, value in schema.items():
        if word not in _KEYWORDS and not word.startswith("x-"):
            sentence = unknown_key(word, sorted(_KEYWORDS))
            near = "did you mean" in sentence
            yield (*key, word), sentence if near else "unknown key; a parameter has the keywords of JSON Schema"
        elif word == "items" and isinstance(value, dict):
            yield from _unknown_keywords((*key, word), value)
        elif word == "properties" and isinstance(value, dict):
            for name, table in value.items():
                if isinstance(table, dict):
                    yield from _unknown_keywords((*key, word, name), table)


def _not_json(key: KeyPath, value: Any) -> Iterator[Problem]:
    """Yield values that TOML has and JSON has not: the tool gets its call as JSON."""
    match value:
        case dict():
            for name, item in value.items():
                yield from _not_json((*key, name), item)
        case list():
            for index, item in enumerate(value):
                yield from _not_json((*key, index), item)
        case datetime.date() | datetime.time():
            yield key, "a date or time has no form in JSON; write it in quotes"
        case float() if not math.isfinite(value):
            yield key, "an infinite number or nan has no form in JSON; leave it out, or write it in quotes"


def _raised(key: KeyPath, name: str, check: Callable[[], object]) -> Iterator[Problem]:
    """Yield the problems that a check raises, without the name in front: the key is added later."""
    try:
        check()
    except ConfigError as error:
        for problem in error.problems:
            yield key, problem.removeprefix(name).lstrip(":,. ")


_OF_A_MODEL = (
    "model", "assistant", "instructions", "tools", "max_requests", "max_tokens", "max_cost", "context_tokens",
)  # fmt: skip
_OF_A_PROGRAM = ("env", "pass_env", "cwd")


def agent_problems(agents: Mapping[str, AgentSettings], tools: Collection[str]) -> Iterator[Problem]:
    """Yield what is wrong with agents, whose ids are names of tools as well."""
    for id, agent in agents.items():
        where = ("agents", id)
        wrong = name_problem(id)
        if wrong is not None:
            yield where, f"an agent is a tool: {wrong}"
        if id in tools:
            yield where, f"[conversation.tools.{id}] is a tool of the same name; give one of them another"
        if agent.command is not None:
            if machine.no_programs:
                yield (*where, "command"), machine.no_programs
            for key in (key for key in _OF_A_MODEL if key in agent.model_fields_set):
                yield (*where, key), "is for agents of a model; this one is a program with a model of its own"
        else:
            for key in (key for key in _OF_A_PROGRAM if key in agent.model_fields_set):
                yield (*where, key), "is for agents that are programs (`command`)"
