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
    """What `--json` prints: the file, whether all is well, problems, notes, and a line of facts for each tool."""
    from holdfast.config import load_config, the_config
    from holdfast.errors import ConfigError

    problems: list[str] = []
    notes: list[str] = []
    tools: list[dict[str, Any]] = []
    try:
        path = the_config(path)
        config = load_config(path)
    except ConfigError as error:
        problems += error.problems
    else:
        tools = [_tool(config, name, problems) for name in config.conversation.tools]
        problems += _store(config)
        notes += config.not_acted_on() + _refused(config)
        if not tools:
            notes.append("the configuration has no tools; a tool is a table [conversation.tools.<name>]")
    shown = None if path is None else str(path.absolute())
    return {"config": shown, "ok": not problems, "problems": problems, "notes": notes, "tools": tools}


def _refused(config: "Config") -> list[str]:
    """Tools that would ask for permission, of which nobody can give any yet (P2)."""
    asking = [name for name, tool in config.conversation.tools.items() if tool.run in ("ask", "edit")]
    asking = [name for name in asking if config.conversation.tools[name].source != "builtin"]
    if not asking or config.conversation.detached == "auto":
        return []
    return [
        f"every call of {', '.join(f'`{name}`' for name in asking)} will be refused: it needs permission and this "
        'version asks nobody; set `run = "unattended"` for tools that may run'
    ]


def _store(config: "Config") -> list[str]:
    """What is wrong with the store, if anything."""
    from holdfast.errors import HoldfastError
    from holdfast.store.memory import open_store

    try:
        open_store(config.store.url or "memory:")
    except HoldfastError as error:
        assert config.source is not None, "it was loaded from a file"
        return [f"{config.source.at(('store', 'url'))}: {error.message}"]
    return []


def _tool(config: "Config", name: str, problems: list[str]) -> dict[str, Any]:
    """The facts of one tool; what is missing is added to the problems."""
    settings = config.conversation.tools[name]
    facts: dict[str, Any] = {
        "name": name,
        "source": settings.source,
        "actions": list(settings.actions),
        "run": settings.run,
    }
    if settings.source == "local":
        return facts | _program(config, name, problems)
    if settings.source == "python":
        return facts | _function(config, name, problems)
    written = "run" in settings.model_fields_set
    return facts | {"actions": [], "run": settings.run if written else "unattended", "found": True}


def _function(config: "Config", name: str, problems: list[str]) -> dict[str, Any]:
    from holdfast.config.build import python_tool
    from holdfast.errors import ConfigError

    function = config.conversation.tools[name].function
    try:
        tool = python_tool(config, name)
    except ConfigError as error:
        problems += error.problems
        return {"function": function, "found": False}
    return {"function": function, "found": True, "actions": list(tool.actions)}


def _program(config: "Config", name: str, problems: list[str]) -> dict[str, Any]:
    from holdfast.config.build import working_directory
    from holdfast.config.source import TOOLS

    assert config.source is not None, "it was loaded from a file"
    settings = config.conversation.tools[name]
    directory = working_directory(config, name)
    if not Path(directory).is_dir():
        where = config.source.at((*TOOLS, name, "cwd"))
        problems.append(f"{where}: there is no directory {directory}; make it, or write another `cwd`")
    program = program_of(settings.command)
    if program is None:
        return {"program": None, "found": None, "path": None}
    found = _which(program, directory, settings.env)
    if found is None:
        where = config.source.at((*TOOLS, name, "command"))
        problems.append(f"{where}: {_missing(program, directory)}")
    return {"program": program, "found": found is not None, "path": found}


def program_of(command: Any) -> str | None:
    """The program a command starts, or None where that is decided by the arguments of the call."""
    import re

    if isinstance(command, dict):
        word = "sh" if command.get("shell") else str(command["program"])
    elif isinstance(command, list):
        word = command[0]
    else:
        first = re.match(r"""\s*(?:"([^"]*)"|'([^']*)'|(\S+))""", command)
        word = "" if first is None else next(part for part in first.groups() if part is not None)
    return None if "{{" in word or "{%" in word else word


def _which(program: str, directory: str, env: dict[str, str]) -> str | None:
    import os
    import shutil

    if "/" in program:
        return shutil.which(str(Path(directory, program)))
    return shutil.which(program, path=env.get("PATH", os.environ.get("PATH")))


def _missing(program: str, directory: str) -> str:
    if "/" in program:
        return f"there is no program {Path(directory, program)}; a relative path counts from the tool's `cwd`"
    return f"program `{program}` is not in PATH; install it, or write its whole path"


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
