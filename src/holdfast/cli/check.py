"""`holdfast check`: whether the configuration is right and what it needs is there (L1).

Exit code 0 when it is, 1 when there are problems; a program that is not installed is one. Notes are things to know that
are not wrong. Nothing is started, but the modules of Python tools are imported.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from holdfast.config import Config
    from holdfast.config.locate import KeyPath


@click.command()
@click.option("--config", "config_path", metavar="F", type=click.Path(path_type=Path), help="The file to check.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def check(context: click.Context, config_path: Path | None, as_json: bool) -> None:
    """Check the configuration, and that the programs it names are there."""
    report = examine(config_path)
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False))
    else:
        _show(report)
    context.exit(0 if report["ok"] else 1)


def examine(path: Path | None) -> dict[str, Any]:
    """What `--json` prints: the file, whether all is well, problems, notes, and a line of facts for each tool.

    A mistake in the file does not keep the rest from being looked at, but only tools without one are listed.
    """
    from holdfast.config import the_config
    from holdfast.config.load import inspect_config
    from holdfast.errors import ConfigError

    found: list[tuple[int, str]] = []
    notes: list[str] = []
    tools: list[dict[str, Any]] = []
    try:
        path = the_config(path)
        config, wrong = inspect_config(path)
    except ConfigError as error:
        found = [(0, problem) for problem in error.problems]
    else:
        looked_at = Examination(config, [key for key, _ in wrong])
        for key, sentence in wrong:
            looked_at.problem(key, sentence)
        tools = looked_at.tools()
        looked_at.store()
        looked_at.agents()
        found = sorted(looked_at.found, key=lambda problem: problem[0])
        notes += config.not_acted_on() + _refused(config, [tool["name"] for tool in tools]) + _without_screen(tools)
        notes += _models(config)
        if not config.conversation.tools and not wrong:
            notes.append("the configuration has no tools; a tool is a table [conversation.tools.<name>]")
    shown = None if path is None else str(path.absolute())
    problems = [problem for _, problem in found]
    return {"config": shown, "ok": not problems, "problems": problems, "notes": notes, "tools": tools}


def _refused(config: "Config", names: list[str]) -> list[str]:
    """Tools that ask for permission, which only a person can give (P2)."""
    tools = config.conversation.tools
    asking = [name for name in names if tools[name].run in ("ask", "edit") and tools[name].source != "builtin"]
    if not asking or config.conversation.detached == "auto":
        return []
    return [
        f"every call of {', '.join(f'`{name}`' for name in asking)} needs permission, and is refused where no person "
        'is there to be asked; set `run = "unattended"` for tools that may run'
    ]


def _models(config: "Config") -> list[str]:
    """Models that cannot be asked from here: a key is missing, or what talks to them. None is asked anything."""
    if not config.has_model:
        return []
    from holdfast.agent.models import open_assistant
    from holdfast.errors import HoldfastError

    conversation = config.conversation
    settings = [conversation.assistant, conversation.assistant.under(conversation.inquiry.assistant.written())]
    settings += [agent.assistant_over(conversation.assistant) for agent in config.agents.values() if not agent.command]
    notes = []
    for each in settings:
        try:
            if each.model is not None:
                open_assistant(each, config.root)
        except HoldfastError as error:
            notes.append(error.message)
    return list(dict.fromkeys(notes))


def _without_screen(tools: list[dict[str, Any]]) -> list[str]:
    """Terminals, where nothing is installed that could tell what they show."""
    from holdfast.tools.terminal.emulator import open_emulator

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
        "`pip install 'holdfast[terminal]'` adds it"
    ]


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
        """What is wrong with the store, if anything."""
        from holdfast.errors import HoldfastError
        from holdfast.store.urls import open_store

        try:
            open_store(self._config.store.url or "memory:")
        except HoldfastError as error:
            self.problem(("store", "url"), error.message)

    def agents(self) -> None:
        """Programs of agents that are not there."""
        from holdfast.config import commands

        for id, agent in self._config.agents.items():
            key = ("agents", id, "command")
            if agent.command is None or not self._sound(key):
                continue
            directory = str(self._config.root / agent.cwd)
            program = commands.program_of(agent.command)
            if program is not None and commands.which(program, directory, agent.env) is None:
                self.problem(key, commands.missing(agent.command, directory))

    def tools(self) -> list[dict[str, Any]]:
        """The facts of each tool that has no mistake in the file; what is missing is added to the problems of all."""
        from holdfast.config.source import TOOLS

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
        from holdfast.config.build import python_tool
        from holdfast.config.source import TOOLS
        from holdfast.errors import ConfigError

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
        from holdfast.config import commands
        from holdfast.config.build import working_directory
        from holdfast.config.source import TOOLS

        settings = self._config.conversation.tools[name]
        directory = working_directory(self._config, name)
        if not Path(directory).is_dir():
            reason = f"there is no directory {directory}; make it, or write another `cwd`"
            self.problem((*TOOLS, name, "cwd"), reason)
        key = (*TOOLS, name, "command")
        program = commands.program_of(settings.command) if self._sound(key) else None
        if program is None:
            return {"program": None, "found": None, "path": None}
        found = commands.which(program, directory, settings.env)
        if found is None:
            self.problem(key, commands.missing(settings.command, directory))
        return {"program": program, "found": found is not None, "path": found}

    def _sound(self, key: "KeyPath") -> bool:
        """Whether the file is right about this key and all that is in it."""
        return not any(wrong[: len(key)] == key for wrong in self._wrong)


def _show(report: dict[str, Any]) -> None:
    if report["config"]:
        click.echo(report["config"])
    rows = [(tool["name"], " ".join(tool["actions"]) or "one-shot", tool["run"]) for tool in report["tools"]]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for row, tool in zip(rows, report["tools"], strict=True):
        cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(f"  {cells}  {_runs(tool)}")
    for kind, colour in (("problem", "red"), ("note", "yellow")):
        for line in report[f"{kind}s"]:
            click.echo(f"{click.style(kind, fg=colour)}: {line}")
    click.echo(click.style("ok", fg="green") if report["ok"] else _count(len(report["problems"])))


def _runs(tool: dict[str, Any]) -> str:
    """What runs when the tool is called, and whether it is there."""
    if tool["source"] == "builtin":
        return "built-in"
    what = tool.get("function") or tool["program"]
    if tool["found"] is None:
        return "program decided by the call"
    if not tool["found"]:
        return click.style(f"{what}: not found", fg="red")
    return str(tool.get("path") or what)


def _count(problems: int) -> str:
    return f"{problems} problem" if problems == 1 else f"{problems} problems"
