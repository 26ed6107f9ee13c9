"""`keephold check`: check the configuration, what it needs on this machine, permissions of files, and the port.

Nothing is started or changed, but the modules of Python tools are imported. If a found file is not trusted, its modules
are only looked for, and no port is tried (K7). Notes are worth knowing, not wrong.
"""

import errno
import json
import os
import socket
import stat
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from keephold.cli.parameters import TOKEN, json_option, no_config
from keephold.cli.printing import counted, table_lines
from keephold.errors import ConfigError, KeepholdError, MissingExtra
from keephold.platforms import machine
from keephold.text import readable

if TYPE_CHECKING:
    from keephold.config import Config
    from keephold.config.source import KeyPath


_SHOWN = 80
"""Characters of another program's command line."""
_NO_PROGRAM: dict[str, Any] = {"program": None, "found": None, "path": None}


# Permissions


def permission_problems(store: Path, *, own_directory: bool) -> Iterator[str]:
    """Yield what is wrong with the store's file, the token beside it, and their directory. With `own_directory`, only
    the store uses that directory, and no other user needs access to it."""
    directory = store.parent
    if not directory.is_dir():
        if not own_directory:
            yield f"there is no directory {directory} for the store; make it, or write another `[store] url`"
        return
    if not os.access(directory, os.W_OK | os.X_OK):
        yield f"{directory} may not be written to, and the store needs files in it: chmod u+rwx {directory}"
    facts = directory.stat()
    mode, private = facts.st_mode, machine.is_private(facts)
    if own_directory and not private:
        yield f"{directory} is open to other users of this machine: chmod 700 {directory}"
    elif not private and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        yield f"{directory} may be written to by anybody, who could replace the store: chmod o-w {directory}"
    yield from _file_problems(store, "the store", "outputs and the secret that keys are signed with are in it")
    yield from _file_problems(Path(f"{store}-token"), "the token", "it gives full access")


def _file_problems(path: Path, what: str, why: str) -> Iterator[str]:
    try:
        facts = path.stat()
    except OSError:  # missing, or hidden, which is a problem of the directory
        return
    if not machine.is_private(facts):
        yield f"{what} {path} may be read or written by other users ({why}): chmod 600 {path}"
    if not os.access(path, os.R_OK | os.W_OK):
        yield f"{what} {path} may not be read and written by you: chmod u+rw {path}"


# Ports


def port_trouble(host: str, port: int, *, if_there: bool = False) -> tuple[str, bool] | None:
    """Return why the port cannot be used, and whether a `keephold` already listens there; None if it is free, or, with
    `if_there`, if this machine does not have that address."""
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return None
    except (OSError, OverflowError) as error:
        number = error.errno if isinstance(error, OSError) else None
        if if_there and number in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return None
        where = f"port {port} of {host}"
        if number == errno.EADDRINUSE:
            by, ours = _listener(port)
            if ours:
                return f"keephold already serves on {where}: {by}; another server needs another `[serve] port`", True
            return f"{where} is taken by {by}; end that, or write another port", False
        if number == errno.EACCES:
            return f"{where} may not be used by you: those below 1024 need privileges; write a higher one", False
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return f"{where} cannot be listened on ({reason}); write an address of this machine", False


def _listener(port: int) -> tuple[str, bool]:
    """Return a name for who listens on the port, and whether it is a keephold."""
    pid = machine.listener(port)
    if pid is None:
        return "a process that cannot be seen, such as one of another user", False
    words = machine.command_of(pid)
    shown = readable(" ".join(word for word in words if word))[:_SHOWN]
    ours = any(Path(word).name == "keephold" and after in ("serve", "mcp") for word, after in pairwise(words))
    return f"process {pid} ({shown})", ours


class Examination:
    """Looks for the things that a configuration needs on this machine, except those with a problem in the file."""

    def __init__(self, config: "Config", wrong: "list[KeyPath]", *, trusted: bool = True) -> None:
        assert config.source is not None, "it was read from a file"
        self._config = config
        self._trusted = trusted
        self._source = config.source
        self._wrong = wrong
        self.found: list[tuple[int, str]] = []
        """Each problem with its line."""

    def problem(self, key: "KeyPath", sentence: str) -> None:
        self.found.append((self._source.line(key), f"{self._source.at(key)}: {sentence}"))

    def store(self) -> None:
        """Check the store's address and the permissions of its files."""
        from keephold.cli.store import default_store
        from keephold.store import open_store
        from keephold.store.base import file_of

        written = self._config.store_url
        try:
            store = open_store(written or default_store())
        except KeepholdError as error:
            self.problem(("store", "url"), error.message)
            return
        path = file_of(store)
        if path is not None:
            for sentence in permission_problems(path, own_directory=written is None):
                self.problem(("store", "url"), sentence)

    def port(self) -> list[str]:
        """Check the port of `keephold serve`. Return notes: that one already serves there, and problems if the file has
        no `[serve]`, because it may not be used for serving."""
        serve = self._config.serve
        if not self._sound(("serve",)):
            return []
        trouble = port_trouble(serve.host, serve.port)
        if trouble is None and serve.host in ("127.0.0.1", "0.0.0.0", "localhost"):  # it needs both (K9)
            trouble = port_trouble("::1", serve.port, if_there=True)
        if trouble is None:
            return []
        sentence, ours = trouble
        if ours:
            return [sentence]
        if not serve.model_fields_set:
            return [f"`keephold serve` could not start: {sentence} as `[serve] port`"]
        self.problem(("serve", "port"), sentence)
        return []

    def network(self) -> list[str]:
        """Return a note if `keephold serve` would not start because it would serve the network without a token. The
        token may be elsewhere: in a service's own environment, or in a file of --tokens."""
        serve = self._config.serve
        if not self._sound(("serve",)) or "host" not in serve.model_fields_set or os.environ.get(TOKEN):
            return []
        from keephold.tools.remote.server import need_mcp

        place = self._source.at(("serve", "host"))
        try:
            need_mcp("serve")
            from keephold.mcp.http import check_bind  # slow to import

            check_bind(serve.host, {})
        except KeepholdError as error:
            problems = error.problems if isinstance(error, ConfigError) else [error.message]
            return [f"{place}: `keephold serve` could not start: {problem}" for problem in problems]
        return []

    # Agents and servers

    def agents(self) -> list[dict[str, Any]]:
        """Return each agent without a mistake in the file: its model, or its program and where that is."""
        facts = []
        for id, agent in self._config.agents.items():
            model = None if agent.command else agent.assistant_over(self._config.conversation.assistant).model
            program = self._program(("agents", id), agent, self._config.root / agent.cwd)
            if self._sound(("agents", id)):
                facts.append({"id": id, "model": model} | program)
        return facts

    def servers(self) -> list[dict[str, Any]]:
        """Return each enabled MCP server: its address, or its program and where that is."""
        from keephold.tools.remote.server import need_mcp

        facts = []
        try:
            if any(server.enabled for server in self._config.mcp.servers.values()):
                need_mcp()
        except KeepholdError as error:
            self.problem(("mcp", "servers"), error.message)
        for name, server in self._config.mcp.servers.items():
            if not server.enabled:
                continue
            program = self._program(("mcp", "servers", name), server, self._config.root / server.cwd)
            if self._sound(("mcp", "servers", name)):
                fact = {"name": name, "url": server.url} | program
                facts.append(fact | ({"logged_in": self._logged_in(name, server.url)} if server.oauth else {}))
        return facts

    def _logged_in(self, name: str, url: str | None) -> bool:
        """Return whether the user has a login at a server. Nothing of it is shown, and the server is not asked (K5)."""
        from keephold.config.build import login_file

        try:
            login = None if url is None else login_file(url).read()
        except KeepholdError as error:
            self.problem(("mcp", "servers", name, "oauth"), error.message)
            return False
        return login is not None and not (login.has_expired and login.refresh is None)

    def _program(self, key: "KeyPath", table: Any, directory: Path) -> dict[str, Any]:
        """Look for the program of a command without templates, where it would be started. `key` is of its table."""
        from keephold.config import commands

        if table.command is not None and not directory.is_dir():
            self.problem((*key, "cwd"), f"there is no directory {directory}; make it, or write another `cwd`")
        known = table.command is not None and self._sound((*key, "command"))
        program = commands.program_of(table.command) if known else None
        if program is None:
            return _NO_PROGRAM
        found = commands.which(program, str(directory), table.env)
        if found is None:
            self.problem((*key, "command"), commands.missing(table.command, str(directory)))
        return {"program": program, "found": found is not None, "path": found}

    # Tools

    def tools(self) -> list[dict[str, Any]]:
        """Return each tool without a mistake in the file, and add what is missing to the problems."""
        facts = {name: self._tool(name) for name in self._config.conversation.tools}
        return [tool for name, tool in facts.items() if self._sound(_of_tool(name))]

    def _tool(self, name: str) -> dict[str, Any]:
        from keephold.config.build import working_directory
        from keephold.tools.waiting import need_packages

        settings = self._config.conversation.tools[name]
        facts: dict[str, Any] = {
            "name": name,
            "source": settings.source,
            "actions": list(settings.actions),
            "run": settings.run,
        }
        if settings.runs_command:
            return facts | self._program(_of_tool(name), settings, Path(working_directory(self._config, name)))
        if settings.source == "python":
            return facts | self._function(name)
        if settings.source == "mcp":
            return facts | {"found": True, "program": f"MCP server {settings.server}"}
        try:
            need_packages([name])
        except MissingExtra as error:
            self.problem(_of_tool(name), error.message)
        written = "run" in settings.model_fields_set
        return facts | {"actions": [], "run": settings.run if written else "unattended", "found": True}

    def _function(self, name: str) -> dict[str, Any]:
        from keephold.config.build import is_module, python_tool

        function = self._config.conversation.tools[name].function
        key = _of_tool(name, "function")
        if not self._sound(key) or function is None:
            return {}
        if not self._trusted:
            module = function.partition(":")[0]
            found = is_module(self._config, module)
            if not found:
                self.problem(key, f"there is no module `{module}` in {self._config.root} or among the installed ones")
            return {"function": function, "found": found}
        try:
            tool = python_tool(self._config, name)
        except ConfigError as error:
            self.found += [(self._source.line(key), problem) for problem in error.problems]
            return {"function": function, "found": False}
        return {"function": function, "found": True, "actions": list(tool.actions)}

    def values(self) -> list[str]:
        """Return notes on values of calls that a command reads as code or as options (K3)."""
        from keephold.config.commands import risky_values

        notes = []
        for name, settings in self._config.conversation.tools.items():
            key = _of_tool(name, "command")
            if settings.runs_command and settings.command is not None and self._sound(_of_tool(name)):
                risks = risky_values(settings.command, settings.parameters)
                notes += [f"{self._source.at(key)}: {sentence}" for sentence in risks]
        return notes

    def _sound(self, key: "KeyPath") -> bool:
        """Return whether the file has no mistake in this key and below it."""
        return not any(wrong[: len(key)] == key for wrong in self._wrong)


def _of_tool(name: str, *key: str) -> "KeyPath":
    """Return a key in the table of a tool."""
    from keephold.config.source import TOOLS

    return (*TOOLS, name, *key)


# Notes


def refused(config: "Config", names: list[str]) -> list[str]:
    """Return a note on tools that ask for permission, which only the user can give (P2)."""
    tools = config.conversation.tools
    asking = [name for name in names if tools[name].run in ("ask", "edit") and tools[name].source != "builtin"]
    if not asking or config.conversation.detached == "auto":
        return []
    return [
        f"every call of {', '.join(f'`{name}`' for name in asking)} needs permission, and is refused where no person "
        'is there to be asked; set `run = "unattended"` for tools that may run'
    ]


def models(config: "Config") -> list[str]:
    """Return notes on models that cannot be used: a key or a package is missing. No model is asked anything."""
    if not config.has_model:
        return []
    from keephold.agent.models import open_assistant

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
    """Return a note on terminals if no emulator is installed."""
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
        "line-by-line output is shown, the screen of a full-screen program (an editor, a pager) is not; "
        "`pip install 'keephold[terminal]'` adds it"
    ]


def _here() -> dict[str, Any]:
    """Return the form of keephold that this machine gets, and how the processes of a call are found (R2)."""
    return {"platform": machine.name, "weaker": list(machine.weaker), "cleanup": machine.cleanup}


@click.command()
@click.option(
    "--config", metavar="FILE", type=click.Path(path_type=Path),
    help="Check this file. Default: the keephold.toml of this directory or the nearest one above it.",
)  # fmt: skip
@json_option
def check(config: Path | None, as_json: bool) -> None:
    """Check the configuration and what it needs on this machine.

    That is the programs, directories and functions it names, the parts of keephold that are installed separately, who
    can read the store and the token, and the port of `keephold serve`. Each finding says how to fix it.
    """
    report = examine(config)
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False))
    else:
        _show(report)
    sys.exit(0 if report["ok"] else 1)


def examine(path: Path | None) -> dict[str, Any]:
    """Return the object of `--json`: the file, `ok`, problems, notes, the platform, tools, agents and servers.

    A mistake in the file does not stop the checks, but only tools, agents and servers without one are listed.
    """
    from keephold.config.load import inspect_config
    from keephold.config.trust import find

    found: list[tuple[int, str]] = []
    notes: list[str] = []
    listed: dict[str, list[dict[str, Any]]] = {"tools": [], "agents": [], "servers": []}
    try:
        here = None
        if path is None:
            here = find(Path.cwd())
            if here is None:
                notes = [f"{no_config()}. Every command works without one, with the tools of keephold itself."]
                return {"config": None, "ok": True, "problems": [], "notes": notes, **_here(), **listed}
            path = here.path
            if here.refused:
                from keephold.cli.trust import refusal

                raise ConfigError([refusal(here)])
        config, wrong = inspect_config(path, None if here is None else here.data)
    except ConfigError as error:
        found = [(0, problem) for problem in error.problems]
    else:
        trusted = here is None or here.trusted
        look = Examination(config, [key for key, _ in wrong], trusted=trusted)
        for key, sentence in wrong:
            look.problem(key, sentence)
        listed = {"tools": look.tools(), "agents": look.agents(), "servers": look.servers()}
        away = [each["name"] for each in listed["servers"] if each.get("logged_in") is False]
        notes += [f"MCP server `{name}` needs a login: keephold mcp-login {name}" for name in away]
        look.store()
        notes += config.ignored_settings() + refused(config, [tool["name"] for tool in listed["tools"]])
        notes += look.values() + without_screen(listed["tools"]) + look.network()
        if trusted:
            notes += models(config) + look.port()
        elif here is not None:
            from keephold.cli.trust import ignored

            notes.append(f"{ignored(here)}. Its modules were not imported, so functions were not looked for.")
        if not config.conversation.tools and not config.mcp.servers and not wrong:
            notes.append("the configuration has no tools; a tool is a table [conversation.tools.<name>]")
        found = sorted(look.found, key=lambda problem: problem[0])
    shown = None if path is None else str(path.absolute())
    problems = [problem for _, problem in found]
    return {"config": shown, "ok": not problems, "problems": problems, "notes": notes, **_here(), **listed}


def _show(report: dict[str, Any]) -> None:
    if report["config"]:
        click.echo(report["config"])
    rows = [
        ("", each["name"], " ".join(each["actions"]) or "one-shot", each["run"], _runs(each))
        for each in report["tools"]
    ]
    rows += [("", agent["id"], "agent", "", _runs(agent)) for agent in report["agents"]]
    rows += [("", server["name"], "MCP server", "", _runs(server)) for server in report["servers"]]
    for line in table_lines(rows) if rows else ():
        click.echo(line)
    if any(tool["source"] in ("local", "terminal") for tool in report["tools"]):
        click.echo(f"processes are ended {report['cleanup']}")
    for line in report["weaker"]:
        click.echo(f"weaker than on Linux: {line}")
    for kind, colour in (("problem", "red"), ("note", "yellow")):
        for line in report[f"{kind}s"]:
            click.echo(f"{click.style(kind, fg=colour)}: {line}")
    click.echo(click.style("ok", fg="green") if report["ok"] else counted(len(report["problems"]), "problem"))


def _runs(fact: dict[str, Any]) -> str:
    """Return the program, function or model behind it, and whether that was found."""
    if fact.get("source") == "builtin":
        return "built-in"
    what = fact.get("function") or fact["program"] or fact.get("url") or fact.get("model")
    if what is None:
        return "no model is named" if "model" in fact else "program decided by the call"
    if fact["found"] is False:
        return click.style(f"{what}: not found", fg="red")
    state = {True: " (logged in)", False: " (not logged in)"}.get(fact.get("logged_in"), "")  # type: ignore[arg-type]
    return str(fact.get("path") or what) + state
