"""`keephold check`: whether the configuration is right and what it needs is there (L1).

Exit code 0 when it is, 1 when there are problems; a program that is not installed is one. Notes are things to know that
are not wrong. Nothing is started, but the modules of Python tools are imported.
"""

import json
from pathlib import Path
from typing import Any

import click

from keephold.cli.configured import the_config


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
    from keephold.cli.check_config import Examination, models, refused, without_screen
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
