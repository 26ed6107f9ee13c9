"""What a configuration names, looked for on this machine: programs, directories, functions, models, emulators.

Nothing is started, but the modules of Python tools are imported.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keephold.config import Config
    from keephold.config.locate import KeyPath


class Examination:
    """What a configuration needs, looked for on this machine. What has a problem in the file is not looked for."""

    def __init__(self, config: "Config", wrong: "list[KeyPath]") -> None:
        assert config.source is not None, "it was read from a file"
        self._config = config
        self._source = config.source
        self._wrong = wrong
        self.found: list[tuple[int, str]] = []
        """Each problem with its line."""

    def problem(self, key: "KeyPath", sentence: str) -> None:
        self.found.append((self._source.line(key), f"{self._source.at(key)}: {sentence}"))

    def store(self) -> None:
        """What is wrong with the store, if anything: its address, and who may read its files."""
        from keephold.cli.check_machine import permission_problems
        from keephold.cli.store import default_store
        from keephold.errors import KeepholdError
        from keephold.store.urls import open_store

        written = self._config.store_url
        try:
            store = open_store(written or default_store())
        except KeepholdError as error:
            self.problem(("store", "url"), error.message)
            return
        path = getattr(store, "path", None)  # of a file
        if isinstance(path, Path):
            for sentence in permission_problems(path, own_directory=written is None):
                self.problem(("store", "url"), sentence)

    def port(self) -> list[str]:
        """What is wrong with the port that `keephold serve` would use. It is only a note that it serves already, and
        where the file says nothing of `[serve]`: it may be there for something else."""
        from keephold.cli.check_machine import port_trouble

        serve = self._config.serve
        if not self._sound(("serve",)):
            return []
        trouble = port_trouble(serve.host, serve.port)
        if trouble is None:
            return []
        sentence, ours = trouble
        if not serve.model_fields_set:
            return [f"`keephold serve` could not start: {sentence} as `[serve] port`"]
        if ours:
            return [f"{self._source.at(('serve', 'port'))}: {sentence}"]
        self.problem(("serve", "port"), sentence)
        return []

    def door(self) -> list[str]:
        """Whether `keephold serve` would let the network in without a token, and so not start. That is a note: the
        token may be somewhere else, in a service's own environment or in a file of --tokens."""
        from keephold.cli.tokens import TOKEN
        from keephold.errors import ConfigError

        serve = self._config.serve
        if not self._sound(("serve",)) or "host" not in serve.model_fields_set or os.environ.get(TOKEN):
            return []
        from keephold.mcp.http import check_bind  # takes a while

        try:
            check_bind(serve.host, {})
        except ConfigError as error:
            place = self._source.at(("serve", "host"))
            return [f"{place}: `keephold serve` could not start: {problem}" for problem in error.problems]
        return []

    # Agents and servers

    def agents(self) -> list[dict[str, Any]]:
        """The facts of each agent without a mistake in the file: its model, or its program and where that is."""
        facts = []
        for id, agent in self._config.agents.items():
            model = None if agent.command else agent.assistant_over(self._config.conversation.assistant).model
            key = ("agents", id, "command")
            program = {} if agent.command is None else self._started(key, agent.command, agent.cwd, agent.env)
            if self._sound(("agents", id)):
                facts.append({"id": id, "model": model, "program": None, "found": None, "path": None} | program)
        return facts

    def servers(self) -> list[dict[str, Any]]:
        """The facts of each MCP server that is enabled: its address, or its program and where that is."""
        facts = []
        for name, server in self._config.mcp.servers.items():
            if not server.enabled:
                continue
            key = ("mcp", "servers", name, "command")
            program = {} if server.command is None else self._started(key, server.command, server.cwd, server.env)
            if self._sound(("mcp", "servers", name)):
                facts.append({"name": name, "url": server.url, "program": None, "found": None, "path": None} | program)
        return facts

    def _started(self, key: "KeyPath", command: str | list[str], cwd: str, env: dict[str, str]) -> dict[str, Any]:
        """The program of a command that is no template, looked for where it would be started."""
        if not self._sound(key):
            return {}
        directory = self._config.root / cwd
        if not directory.is_dir():
            self.problem((*key[:-1], "cwd"), f"there is no directory {directory}; make it, or write another `cwd`")
        return self._found(key, command, str(directory), env)

    def _found(self, key: "KeyPath", command: Any, directory: str, env: dict[str, str]) -> dict[str, Any]:
        from keephold.config import commands

        program = commands.program_of(command)
        if program is None:
            return {"program": None, "found": None, "path": None}
        found = commands.which(program, directory, env)
        if found is None:
            self.problem(key, commands.missing(command, directory))
        return {"program": program, "found": found is not None, "path": found}

    # Tools

    def tools(self) -> list[dict[str, Any]]:
        """The facts of each tool that has no mistake in the file; what is missing is added to the problems of all."""
        from keephold.config.source import TOOLS

        facts = {name: self._tool(name) for name in self._config.conversation.tools}
        return [tool for name, tool in facts.items() if self._sound((*TOOLS, name))]

    def _tool(self, name: str) -> dict[str, Any]:
        settings = self._config.conversation.tools[name]
        facts: dict[str, Any] = {
            "name": name,
            "source": settings.source,
            "actions": list(settings.actions),
            "run": settings.run,
        }
        if settings.runs_command:
            return facts | self._program(name)
        if settings.source == "python":
            return facts | self._function(name)
        if settings.source == "mcp":
            return facts | {"found": True, "program": f"MCP server {settings.server}"}
        written = "run" in settings.model_fields_set
        return facts | {"actions": [], "run": settings.run if written else "unattended", "found": True}

    def _function(self, name: str) -> dict[str, Any]:
        from keephold.config.build import python_tool
        from keephold.config.source import TOOLS
        from keephold.errors import ConfigError

        function = self._config.conversation.tools[name].function
        key = (*TOOLS, name, "function")
        if not self._sound(key):
            return {}
        try:
            tool = python_tool(self._config, name)
        except ConfigError as error:
            self.found += [(self._source.line(key), problem) for problem in error.problems]
            return {"function": function, "found": False}
        return {"function": function, "found": True, "actions": list(tool.actions)}

    def _program(self, name: str) -> dict[str, Any]:
        from keephold.config.build import working_directory
        from keephold.config.source import TOOLS

        settings = self._config.conversation.tools[name]
        directory = working_directory(self._config, name)
        if not Path(directory).is_dir():
            reason = f"there is no directory {directory}; make it, or write another `cwd`"
            self.problem((*TOOLS, name, "cwd"), reason)
        key = (*TOOLS, name, "command")
        if not self._sound(key):
            return {"program": None, "found": None, "path": None}
        return self._found(key, settings.command, directory, settings.env)

    def _sound(self, key: "KeyPath") -> bool:
        """Whether the file is right about this key and all that is in it."""
        return not any(wrong[: len(key)] == key for wrong in self._wrong)


# Notes


def refused(config: "Config", names: list[str]) -> list[str]:
    """Tools that ask for permission, which only a person can give (P2)."""
    tools = config.conversation.tools
    asking = [name for name in names if tools[name].run in ("ask", "edit") and tools[name].source != "builtin"]
    if not asking or config.conversation.detached == "auto":
        return []
    return [
        f"every call of {', '.join(f'`{name}`' for name in asking)} needs permission, and is refused where no person "
        'is there to be asked; set `run = "unattended"` for tools that may run'
    ]


def models(config: "Config") -> list[str]:
    """Models that cannot be asked from here: a key is missing, or what talks to them. None is asked anything."""
    if not config.has_model:
        return []
    from keephold.agent.models import open_assistant
    from keephold.errors import KeepholdError

    conversation = config.conversation
    settings = [conversation.assistant, conversation.assistant.under(conversation.inquiry.assistant.written())]
    settings += [agent.assistant_over(conversation.assistant) for agent in config.agents.values() if not agent.command]
    notes = []
    for each in settings:
        try:
            if each.model is not None:
                open_assistant(each, config.root)
        except KeepholdError as error:
            notes.append(error.message)
    return list(dict.fromkeys(notes))


def without_screen(tools: list[dict[str, Any]]) -> list[str]:
    """Terminals, where nothing is installed that could tell what they show."""
    from keephold.tools.terminal.emulator import open_emulator

    terminals = [tool["name"] for tool in tools if tool["source"] == "terminal"]
    if not terminals:
        return []
    emulator = open_emulator(1, 1, lambda _: None)
    kind = emulator.screen().emulator
    emulator.close()
    if kind != "line":
        return []
    return [
        f"no terminal emulator is installed, so {', '.join(f'`{name}`' for name in terminals)} will be in line mode: "
        "what is printed line by line is shown, the screen of a full-screen program (an editor, a pager) is not; "
        "`pip install 'keephold[terminal]'` adds it"
    ]
