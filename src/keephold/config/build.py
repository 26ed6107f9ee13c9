"""Builds what a configuration names: tools, MCP servers (M6), engines and archives (W8).

A local tool is a command, a terminal a command with its own terminal. A Python tool is a function or a `Tool` of a
module found from the file's directory; the file overrides its settings. Built-ins are only adjusted here. Tools of MCP
servers are built when their servers have listed them.
"""

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from importlib.machinery import PathFinder
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from keephold.config.commands import unknown_names
from keephold.config.model import Config, McpServerSettings, ToolSettings
from keephold.config.rules import no_engine, terminal_questions
from keephold.config.source import DEFAULTS, TOOLS, dotted
from keephold.config.trust import state_directory
from keephold.errors import ConfigError
from keephold.extras import need
from keephold.schema.canonical import check_parameters, property_names
from keephold.store.archive import Archive
from keephold.store.base import Record
from keephold.tools.base import ACTIONS, RetryPolicy, SpawnPolicy, Tool, ToolRuntime, Window, engine_problem, guarded
from keephold.tools.command import Command
from keephold.tools.function import tool as make_tool
from keephold.tools.guard import Guard
from keephold.tools.program import ACTION_PARAMETERS, QUESTIONS
from keephold.tools.remote.login import LoginFile
from keephold.tools.remote.server import McpServer, pattern
from keephold.tools.template import CommandLine
from keephold.tools.waiting import NAMES as WAITING
from keephold.tools.waiting import need_packages
from keephold.tools.waiting.cleanup import WaitArchive

if TYPE_CHECKING:
    from keephold.engines.base import Engine
    from keephold.engines.temporal.client import Place


def build_tools(config: Config, guard: Guard) -> list[Tool]:
    """Build all tools but built-ins and those of MCP servers, in order. Raise `ConfigError` with every problem."""
    tools: list[Tool] = []
    problems: list[str] = []
    for name, settings in config.conversation.tools.items():
        try:
            if settings.source == "local":
                tools.append(_program_tool(config, name, _command(config, name, guard)))
            elif settings.source == "terminal":
                tools.append(_terminal_tool(config, name, guard))
            elif settings.source == "python":
                tools.append(guarded(python_tool(config, name), guard))
            elif settings.source == "builtin":
                need_packages([name])
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return tools


def configure_builtin(tool: Tool, config: Config) -> Tool:
    """Return the built-in tool with its configured `run`, `result` and `output`. A wait tool in the file is offered
    (W)."""
    settings = config.conversation.tools.get(tool.name)
    if settings is None or settings.source != "builtin":
        return tool
    written: dict[str, Any] = {"run": settings.run, "result": settings.result, "output": settings.output.policy("head")}
    changes = {key: value for key, value in written.items() if key in settings.model_fields_set}
    return replace(tool, offered=tool.offered or tool.name in WAITING, **changes)


def python_tool(config: Config, name: str) -> Tool:
    """Import the function that the table names, as a tool. Raise `ConfigError` if it does not exist."""
    settings = config.conversation.tools[name]
    assert settings.function is not None, "the rules ask for it"
    where = _at(config, name, "function")
    found = _find(config, settings.function, where)
    if isinstance(found, Tool):
        made = found
    elif inspect.isfunction(found):
        made = make_tool(found)
    else:
        kind = type(found).__name__
        raise ConfigError([f"{where}: `{settings.function}` is of type {kind}; it must be a function or a tool"])
    # The code decides what the file leaves out, except `run`: a tool of a file asks by default (P1).
    window: Window = "tail" if made.source == "terminal" else "head"
    changes = {key: value for key, value in policy_fields(settings, window).items() if key in settings.model_fields_set}
    changes["run"] = settings.run
    changes["questions"] = {**made.questions, **changes.get("questions", {})}
    if made.source == "terminal":
        wrong = list(terminal_questions(settings))
        if wrong:
            raise ConfigError([f"{_at(config, name, *key)}: {sentence}" for key, sentence in wrong])
        changes["questions"] |= QUESTIONS
    changes["spawn"] = spawn_policy(settings, made.spawn)
    changes["actions"] = made.actions if _says_nothing_of_actions(settings, made) else settings.actions
    try:
        check_parameters(name, made.parameters, changes["actions"], made.action_parameters)
    except ConfigError as error:
        raise ConfigError([f"{where}: {problem}" for problem in error.problems]) from None
    _check_resources(config, name, made)
    changes["engine"] = _engine(config, name, made)
    return replace(made, name=name, **changes)


def _engine(config: Config, name: str, made: Tool) -> str | None:
    """Return the engine that runs the tool: the file's, else the code's. Raise `ConfigError` if none can."""
    settings, key = config.conversation.tools[name], (*TOOLS, name, "engine")
    if made.source != "python":  # a command that code made: a default of the file does not concern it
        inherited = config.source is not None and config.source.inherited(key)
        problem = None if inherited else engine_problem(settings.engine, made.source)
        if problem is not None:
            raise ConfigError([f"{_at(config, name, 'engine')}: {problem}"])
        return None
    engine = settings.engine or made.engine
    if engine is not None and engine not in config.engines:
        raise ConfigError([f"{_at(config, name, 'function')}: {no_engine(engine)}"])
    return engine


def _check_resources(config: Config, name: str, made: Tool) -> None:
    """Check that the resources in the file name parameters of the function."""
    source = config.source
    if source is None or made.parameters.get("additionalProperties", False) is not False:
        return
    written = enumerate(config.conversation.tools[name].resources)
    keys = [((*TOOLS, name, "resources", at), text) for at, text in written]
    own = [(key, text) for key, text in keys if not source.inherited(key)]
    known = property_names(made.parameters)
    problems = [f"{source.at(key)}: {each}" for key, text in own for each in unknown_names(text, known, name)]
    if problems:
        raise ConfigError(problems)


def _program(config: Config, name: str, guard: Guard) -> dict[str, Any]:
    settings = config.conversation.tools[name]
    return {
        "line": CommandLine.parse(settings.command, dotted((*TOOLS, name, "command"))),
        "env": settings.env,
        "pass_env": tuple(settings.pass_env),
        "cwd": working_directory(config, name),
        "root": str(config.root),
        "directory": str(config.directory),
        "input": settings.input,
        "options": settings.options,
        "guard": guard,
    }


def _command(config: Config, name: str, guard: Guard) -> Command:
    settings = config.conversation.tools[name]
    media = settings.returns if isinstance(settings.returns, str) else None
    return Command(**_program(config, name, guard), stdin=settings.spawn.stdin, wire=settings.wire, media=media)


def _terminal_tool(config: Config, name: str, guard: Guard) -> Tool:
    from keephold.tools.terminal.terminal import Terminal  # slow to import

    size = config.conversation.tools[name].terminal
    runtime = Terminal(**_program(config, name, guard), rows=size.rows, cols=size.cols, term=size.term)
    tool = _program_tool(config, name, runtime)
    return replace(tool, action_parameters=ACTION_PARAMETERS, questions={**tool.questions, **QUESTIONS})


def _program_tool(config: Config, name: str, runtime: ToolRuntime) -> Tool:
    settings = config.conversation.tools[name]
    assert settings.source in ("local", "terminal"), "of the others there is no program"
    return Tool(
        name=name,
        runtime=runtime,
        source=settings.source,
        parameters=settings.parameters_schema(),
        actions=settings.actions,
        spawn=spawn_policy(settings, SpawnPolicy()),
        returns=settings.returns if isinstance(settings.returns, dict) else None,
        **policy_fields(settings, "tail"),
    )


def working_directory(config: Config, name: str) -> str:
    """Return the directory in which the program of a tool runs."""
    settings = config.conversation.tools[name]
    return os.path.normpath(config.root / settings.cwd if "cwd" in settings.model_fields_set else config.directory)


_AS_WRITTEN = (
    "description", "summary", "scheduling", "max_running", "run", "run_actions", "result", "timeout_secs", "on_crash",
    "keep_secs", "hints",
)  # fmt: skip


def policy_fields(settings: ToolSettings, window: Window) -> dict[str, Any]:
    """Return the fields of `Tool` that the table sets under the same name."""
    return {name: getattr(settings, name) for name in _AS_WRITTEN} | {
        "examples": tuple(settings.examples),
        "resources": tuple(settings.resources),
        "questions": {question: table.policy() for question, table in settings.questions.items()},
        "retry": RetryPolicy(**settings.retry.model_dump()),
        "output": settings.output.policy(window),
    }


def spawn_policy(settings: ToolSettings, under: SpawnPolicy) -> SpawnPolicy:
    """Return the policy with the settings of the table."""
    spawn, lifecycle = settings.spawn, settings.spawn.lifecycle
    same_name = ("settle_ms", "settle_max_ms", "abort_grace_ms", "ready", "priority")
    changes = {key: value for key, value in spawn.written().items() if key in same_name}
    if "on_turn_end" in lifecycle.model_fields_set:
        changes["on_turn_end"] = lifecycle.on_turn_end
    if "timeout_secs" in lifecycle.model_fields_set:
        changes["turn_end_timeout_secs"] = lifecycle.timeout_secs
    if "assistant" in lifecycle.model_fields_set:
        changes["assistant"] = lifecycle.assistant.written()
    changes["notifications"] = spawn.notifications.policy(under.notifications)
    return replace(under, **changes)


def _says_nothing_of_actions(settings: ToolSettings, made: Tool) -> bool:
    """Return whether the code decides: `stateful = true` adds nothing to a tool that declares its actions."""
    spawn = settings.spawn
    return spawn.actions is None and (spawn.stateful is None or (spawn.stateful and bool(made.actions)))


def _find(config: Config, function: str, where: str) -> Any:
    module_name, _, attribute = function.partition(":")
    module = _import(config, module_name, where)
    if not hasattr(module, attribute):
        nearest = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f"; did you mean `{module_name}:{nearest[0]}`?" if nearest else "; define it there at the top level"
        raise ConfigError([f"{where}: module `{module_name}` has no `{attribute}`{hint}"])
    return getattr(module, attribute)


def _import(config: Config, name: str, where: str) -> ModuleType:
    # At the end of the path, so that a file of the project never replaces a module of the standard library.
    root = str(config.root)
    if root not in sys.path:
        sys.path.append(root)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise ConfigError([f"{where}: importing `{name}` failed: {error}; install what it needs"]) from error
        raise ConfigError([f"{where}: there is no module `{name}` in {root} or among the installed ones"]) from error
    except Exception as error:  # the module's own code runs
        raise ConfigError([f"{where}: importing `{name}` failed: {type(error).__name__}: {error}"]) from error
    _check_origin(config, module, name, where)
    return module


def is_module(config: Config, name: str) -> bool:
    """Return whether there is a module of this name, without importing it or the packages around it (K7)."""
    importlib.invalidate_caches()
    places: Sequence[str] | None = None  # of the package around it
    for whole in accumulate(name.split("."), "{}.{}".format):
        try:
            spec = next((found for each in sys.meta_path if (found := each.find_spec(whole, places)) is not None), None)
            if spec is None and places is None:
                spec = PathFinder.find_spec(whole, [str(config.root)])
        except KeyError:  # a package without a file inside another: its place is known only after an import
            return True
        if spec is None:
            return False
        places = list(spec.submodule_search_locations or ())
    return True


def _check_origin(config: Config, module: ModuleType, name: str, where: str) -> None:
    """Refuse another module of the same name in place of the one in the file's directory."""
    base = config.root.joinpath(*name.split("."))
    here = [path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()]
    loaded = getattr(module, "__file__", None)
    if here and (loaded is None or not here[0].samefile(loaded)):
        raise ConfigError([f"{where}: `{name}` is {loaded or 'built into Python'}, not {here[0]}; rename the latter"])


def _at(config: Config, name: str, *key: str | int) -> str:
    path = (*TOOLS, name, *key)
    return dotted(path) if config.source is None else config.source.at(path)


# MCP servers


def mcp_servers(config: Config) -> list[McpServer]:
    """Return the enabled servers, in order."""
    return [_mcp_server(config, name, table) for name, table in config.mcp.servers.items() if table.enabled]


def login_file(url: str) -> LoginFile:
    """Return the file of the user's login at a server."""
    state = state_directory()
    return LoginFile(url, None if state is None else state / "mcp-logins")


def _mcp_server(config: Config, name: str, table: McpServerSettings) -> McpServer:
    words = [table.command] if isinstance(table.command, str) else table.command or []
    defaults = {} if config.source is None else config.source.tool(DEFAULTS)
    named = {
        own: (settings.tool or own, _mcp_like(own, settings, table.stateful))
        for own, settings in config.conversation.tools.items()
        if settings.source == "mcp" and settings.server == name
    }
    return McpServer(
        name=name,
        command=(*words, *table.args),
        env=table.env,
        pass_env=tuple(table.pass_env),
        cwd=os.path.normpath(config.root / table.cwd) if words else None,
        url=table.url,
        headers=table.headers,
        login=login_file(table.url) if table.oauth and table.url is not None else None,
        timeout_secs=table.timeout_secs,
        tools=None if table.tools is None else tuple(table.tools),
        prefix=table.prefix,
        like=_mcp_like("", ToolSettings.model_validate({**defaults, "source": "mcp"}), table.stateful),
        named=named,
    )


def _mcp_like(name: str, settings: ToolSettings, stateful: bool) -> Tool:
    """Return the policies of a tool; `stateful` is the server's setting, for tools that have none of their own."""
    fields = policy_fields(settings, "head")
    written = settings.spawn.actions is not None or settings.spawn.stateful is not None
    actions = settings.actions if written or not stateful else ACTIONS
    if "on_crash" not in settings.model_fields_set:
        del fields["on_crash"]
    return replace(pattern(), name=name, actions=actions, spawn=spawn_policy(settings, SpawnPolicy()), **fields)


# Engines


def engines_of(config: Config) -> "dict[str, Engine]":
    """Return the engines by name. Raises `KeepholdError` if the package of one is not installed."""
    if "temporal" not in config.engines:
        return {}
    place = temporal_place(config)
    from keephold.engines.temporal.client import Temporal

    return {"temporal": Temporal(place)}


def temporal_place(config: Config) -> "Place":
    """Return where `[engines.temporal]` is."""
    need("temporal", "[engines.temporal]", "temporalio", "httpx2")
    from keephold.engines.temporal.client import Place

    settings = config.engines["temporal"]
    tls = {} if settings.tls is None else settings.tls.model_dump(exclude_none=True)
    files = {name: config.root / file for name, file in tls.items()}
    return Place(**settings.model_dump(exclude={"tls"}), tls=settings.tls is not None, **files)


# Archives


def archive_directory(config: Config) -> Path | None:
    """Return the directory of `[store] archive`; None: there is none."""
    named = config.store.archive
    return None if named is None else config.root / Path(named).expanduser()


def archive_of(config: Config) -> Callable[[Sequence[Record]], Awaitable[None]] | None:
    """Return what archives records before they are deleted; None: nothing does."""
    places, directory, file = config.archive_places, archive_directory(config), config.wait_handles.archive
    archives: list[Archive | WaitArchive] = []
    if directory is not None:
        archives.append(Archive(directory, places))
    if file is not None:
        archives.append(WaitArchive(config.root / Path(file).expanduser(), places))

    async def archive(records: Sequence[Record]) -> None:
        for each in archives:
            await each(records)

    return archive if archives else None
