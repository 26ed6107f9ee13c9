"""`keephold check`: whether the configuration is right and what it needs is there (L1).

Exit code 0 when it is, 1 when there are problems; a program that is not installed is one. Notes are things to know that
are not wrong. Nothing is started, but the modules of Python tools are imported.

What a configuration names, looked for on this machine: programs, directories, functions, models, emulators.

Nothing is started, but the modules of Python tools are imported.

What `keephold check` looks at beside the configuration: who may read what is secret, and whether a port is free.

Each finding says what is wrong and what gets it right. Nothing is changed, and no port is kept.
"""

import contextlib
import errno
import json
import os
import socket
import stat
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from keephold.cli.parameters import the_config

if TYPE_CHECKING:
    from keephold.config import Config
    from keephold.config.source import KeyPath


_LISTENING = "0A"
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_SHOWN = 80
"""Characters of another program's command line."""


# Permissions


def permission_problems(store: Path, *, own_directory: bool) -> Iterator[str]:
    """What is wrong with the store's file, the token beside it, and their directory. `own_directory`: it is there for
    the store alone, and nobody else has any business in it."""
    directory = store.parent
    if not directory.is_dir():
        if not own_directory:
            yield f"there is no directory {directory} for the store; make it, or write another `[store] url`"
        return
    if not os.access(directory, os.W_OK | os.X_OK):
        yield f"{directory} may not be written to, and the store needs files in it: chmod u+rwx {directory}"
    mode = directory.stat().st_mode
    if own_directory and mode & 0o077:
        yield f"{directory} is open to other users of this machine: chmod 700 {directory}"
    elif mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        yield f"{directory} may be written to by anybody, who could replace the store: chmod o-w {directory}"
    yield from _file_problems(store, "the store", "outputs and the secret that keys are signed with are in it")
    yield from _file_problems(Path(f"{store}-token"), "the token", "whoever has it may do everything")


def _file_problems(path: Path, what: str, why: str) -> Iterator[str]:
    try:
        mode = path.stat().st_mode
    except OSError:  # there is none, or it is not to be seen, which the directory's problem says
        return
    if mode & 0o077:
        yield f"{what} {path} may be read or written by other users ({why}): chmod 600 {path}"
    if not os.access(path, os.R_OK | os.W_OK):
        yield f"{what} {path} may not be read and written by you: chmod u+rw {path}"


# Ports


def port_trouble(host: str, port: int) -> tuple[str, bool] | None:
    """Why nothing could listen there, and whether it is a `keephold` that already does; None if it is free."""
    try:
        with socket.create_server((host, port), family=_family(host)):
            return None
    except (OSError, OverflowError) as error:
        number = error.errno if isinstance(error, OSError) else None
        where = f"port {port} of {host}"
        if number == errno.EADDRINUSE:
            by, ours = _listener(port)
            return f"{where} is taken{by}; end that, or write another port", ours
        if number == errno.EACCES:
            return f"{where} may not be used by you: those below 1024 need privileges; write a higher one", False
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return f"{where} cannot be listened on ({reason}); write an address of this machine", False


def _family(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _listener(port: int) -> tuple[str, bool]:
    """Who listens on the port, as the end of a sentence, and whether it is a keephold. Others' processes are hidden."""
    inodes = set(_inodes(port))
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and _holds(process, inodes):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            line = " ".join(word for word in words if word)
            shown = "".join(each for each in line if each.isprintable())[:_SHOWN]
            ours = any(Path(word).name == "keephold" and after in ("serve", "mcp") for word, after in pairwise(words))
            return f" by process {process.name} ({shown})", ours
    return " by a process of another user", False


def _inodes(port: int) -> Iterator[str]:
    for table in _TABLES:
        with contextlib.suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                cells = line.split()
                if cells[3] == _LISTENING and int(cells[1].rpartition(":")[2], 16) == port:
                    yield f"socket:[{cells[9]}]"


def _holds(process: Path, inodes: set[str]) -> bool:
    try:
        return any(str(descriptor.readlink()) in inodes for descriptor in (process / "fd").iterdir())
    except OSError:  # another user's, or gone
        return False


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
        from keephold.cli.parameters import TOKEN
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


@click.command()
@click.option("--config", metavar="FILE", type=click.Path(path_type=Path), help="The file to check.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def check(context: click.Context, config: Path | None, as_json: bool) -> None:
    """Check the configuration, and that what it needs is there.

    That is the programs, directories and functions it names, the parts of keephold that are installed separately, who
    may read the store and the token, and the port of `keephold serve`. Each finding says how to get it right.
    """
    report = examine(config)
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False))
    else:
        _show(report)
    context.exit(0 if report["ok"] else 1)


def examine(path: Path | None) -> dict[str, Any]:
    """What `--json` prints: the file, whether all is well, problems, notes, and the facts of tools, agents and servers.

    A mistake in the file does not keep the rest from being looked at, but only what has none is listed.
    """
    from keephold.config.load import inspect_config
    from keephold.errors import ConfigError

    found: list[tuple[int, str]] = []
    notes: list[str] = []
    listed: dict[str, list[dict[str, Any]]] = {"tools": [], "agents": [], "servers": []}
    try:
        path = the_config(path)
        config, wrong = inspect_config(path)
    except ConfigError as error:
        found = [(0, problem) for problem in error.problems]
    else:
        looked_at = Examination(config, [key for key, _ in wrong])
        for key, sentence in wrong:
            looked_at.problem(key, sentence)
        listed = {"tools": looked_at.tools(), "agents": looked_at.agents(), "servers": looked_at.servers()}
        looked_at.store()
        notes += config.not_acted_on() + refused(config, [tool["name"] for tool in listed["tools"]])
        notes += without_screen(listed["tools"]) + models(config) + looked_at.port() + looked_at.door()
        if not config.conversation.tools and not config.mcp.servers and not wrong:
            notes.append("the configuration has no tools; a tool is a table [conversation.tools.<name>]")
        found = sorted(looked_at.found, key=lambda problem: problem[0])
    shown = None if path is None else str(path.absolute())
    problems = [problem for _, problem in found]
    return {"config": shown, "ok": not problems, "problems": problems, "notes": notes, **listed}


def _show(report: dict[str, Any]) -> None:
    if report["config"]:
        click.echo(report["config"])
    rows = [
        (tool["name"], " ".join(tool["actions"]) or "one-shot", tool["run"], _runs(tool)) for tool in report["tools"]
    ]
    rows += [(agent["id"], "agent", "", _runs(agent)) for agent in report["agents"]]
    rows += [(server["name"], "MCP server", "", _runs(server)) for server in report["servers"]]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for *cells, runs in rows:
        padded = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        click.echo(f"  {padded}  {runs}")
    for kind, colour in (("problem", "red"), ("note", "yellow")):
        for line in report[f"{kind}s"]:
            click.echo(f"{click.style(kind, fg=colour)}: {line}")
    click.echo(click.style("ok", fg="green") if report["ok"] else _count(len(report["problems"])))


def _runs(fact: dict[str, Any]) -> str:
    """What runs when it is called, or answers, and whether that is there."""
    if fact.get("source") == "builtin":
        return "built-in"
    what = fact.get("function") or fact["program"] or fact.get("url") or fact.get("model")
    if what is None:
        return "no model is named" if "model" in fact else "program decided by the call"
    if fact["found"] is False:
        return click.style(f"{what}: not found", fg="red")
    return str(fact.get("path") or what)


def _count(problems: int) -> str:
    return f"{problems} problem" if problems == 1 else f"{problems} problems"
