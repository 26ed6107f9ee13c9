"""`keephold acp-check`: run the conformance kit against any ACP agent (X5)."""

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import click

from keephold.cli.parameters import json_option, near
from keephold.cli.printing import one_line, print_json, printable, terminal_width

if TYPE_CHECKING:
    from keephold.acp.check import Report, Result

_COLOURS = {"passed": "green", "failed": "red", "skipped": "yellow"}
_SINGLE = 3
"""Skipped checks with the same reason that are listed one by one."""
_ARROWS = {"client": "→", "agent": "←"}


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@json_option
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True, metavar="S",
    help="Wait this long for each answer of the agent, in seconds.",
)  # fmt: skip
@click.option("--only", multiple=True, metavar="NAME", help="Run only this check or topic; may be repeated.")
@click.option("--auth", metavar="METHOD", help="Authenticate with this method of the agent first.")
@click.option("--prompt", metavar="TEXT", help="Send this prompt to make the agent talk and use a tool.")
@click.option("--permission-prompt", metavar="TEXT", help="Send this prompt to make the agent ask for permission.")
@click.option("--slow-prompt", metavar="TEXT", help="Send this prompt to keep the agent busy until it is cancelled.")
@click.option(
    "--pass-env", multiple=True, metavar="NAME",
    help="Pass this variable to the agent though it holds an API key or another secret; may be repeated.",
)  # fmt: skip
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def acp_check(as_json: bool, only: tuple[str, ...], **given: Any) -> None:
    """Check an ACP agent: order of updates, ends of turns, cancelling, permission, robustness.

    COMMAND starts the agent, which speaks ACP on its standard input and output. It is started again for every scene,
    and its sessions work in an empty directory. Requests for permission are granted unless a check needs a refusal.

    A check is a MUST, which the protocol requires, or a SHOULD, which clients rely on.

    How an agent behaves depends on its model. A check that could not be made says what was missing; most often a
    prompt of your own helps.
    """
    from keephold.acp.check import CHECKS, Settings, run

    names = {check.name for check in CHECKS} | {check.topic for check in CHECKS}
    for unknown in (name for name in only if name not in names):
        raise click.UsageError(f"No check or topic `{unknown}`. {near(unknown, sorted(names))}")
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    lines = _Lines()
    report = asyncio.run(run(settings, only, on_result=None if as_json else lines.add))
    if as_json:
        print_json(as_data(report))
    else:
        lines.flush()
        name = " ".join(str(report.agent[key]) for key in ("name", "version") if report.agent.get(key))
        click.echo(f"{printable(name) or 'the agent'}: {', '.join(_counts(report))}")
    if not report.checked:
        why = "\n".join(map(printable, report.problem.splitlines())) or "the agent does not offer it"
        if report.count("failed") and not as_json:
            why = "`initialize` failed; its reason is above"
        click.echo(f"nothing was checked: {why}", err=True)
        sys.exit(2)
    sys.exit(0 if report.ok else 1 if report.count("failed", "MUST") else 3)


def as_data(report: "Report") -> dict[str, Any]:
    """Return the JSON object of `--json`."""
    import msgspec

    counts = {outcome: report.count(outcome) for outcome in _COLOURS}
    built: dict[str, Any] = msgspec.to_builtins(report)
    return {"ok": report.ok, **counts, **built}


def _counts(report: "Report") -> list[str]:
    counts = {
        "passed": report.count("passed"),
        "MUST failed": report.count("failed", "MUST"),
        "SHOULD failed": report.count("failed", "SHOULD"),
        "skipped": report.count("skipped"),
    }
    return [f"{count} {name}" for name, count in counts.items() if count]


class _Lines:
    """Print results, but adjacent checks that are skipped for the same reason as one line."""

    def __init__(self) -> None:
        self._skipped: list[Result] = []

    def add(self, result: "Result") -> None:
        if self._skipped and (result.outcome, result.why) != ("skipped", self._skipped[0].why):
            self.flush()
        if result.outcome == "skipped":
            self._skipped.append(result)
        else:
            _show(result)

    def flush(self) -> None:
        if len(self._skipped) <= _SINGLE:
            for each in self._skipped:
                _show(each)
        else:
            reason = printable(self._skipped[0].why.splitlines()[0])
            outcome = click.style("skipped ", fg=_COLOURS["skipped"])
            names = f"{self._skipped[0].name} … {self._skipped[-1].name}"
            click.echo(f"{outcome} {len(self._skipped)} checks ({names}): {reason}")
        self._skipped = []


def _show(result: "Result") -> None:
    outcome = click.style(result.outcome.ljust(8), fg=_COLOURS[result.outcome])
    first = printable(result.why.splitlines()[0]) if result.why else ""
    reason = "" if result.outcome == "passed" else f": {first}"
    level = f" ({result.level})" if result.outcome == "failed" else ""
    click.echo(f"{outcome} {result.name}{level}{reason or f': {result.says}'}")
    if result.outcome != "failed":
        return
    for line in result.why.splitlines()[1:]:
        click.echo(f"           {printable(line)}")
    click.echo(f"           expected: {result.says}")
    room = terminal_width()
    for each in result.messages:
        width = None if room is None else max(room - 13, 20)
        click.echo(f"         {_ARROWS[each['from']]} {one_line(each['message'], width)}")
