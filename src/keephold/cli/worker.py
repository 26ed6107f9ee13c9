"""`keephold worker`: run tools of a configuration for an engine."""

import asyncio
import os
import sys
from pathlib import Path

import click

from keephold.cli.parameters import config_option, no_config, tell_source, the_config
from keephold.cli.process import Signals, log_to_stderr, own_children
from keephold.config import Config
from keephold.errors import KeepholdError
from keephold.extras import need


@click.command()
@config_option
@click.option("--engine", type=click.Choice(["temporal"]), required=True, help="Take calls from this engine.")
@click.option(
    "--max-running",
    type=click.IntRange(min=1),
    help="Run at most this many calls at once. Default: [runtime] max_running, else 100.",
)
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECS",
    help="Let calls that cannot continue elsewhere run for this long after TERM or INT. The others are released "
    "when their running steps are recorded.",
)
@click.option("--metrics", metavar="ADDR", help="Serve Prometheus metrics at HOST:PORT.")
def worker(config: Path | None, engine: str, max_running: int | None, drain: float, metrics: str | None) -> None:
    """Run the functions that a configuration gives to an engine, on this machine.

    The front end (`keephold serve`) and its workers use the same configuration, or at least the same tools and the same
    [engines.temporal]. Start as many workers as you like, on any machines; a call of a worker that dies continues in
    another one. Workers need no store. They reach the front end by [serve] url.
    """
    log_to_stderr()
    loaded = the_config(config, ask=False)
    own_children()
    sys.exit(asyncio.run(_work(loaded, max_running, drain, metrics)))


async def _work(config: Config, max_running: int | None, drain: float, metrics: str | None) -> int:
    from keephold.config.build import build_tools, temporal_place
    from keephold.tools.guard import Guard

    if "temporal" not in config.engines:
        why = no_config() if config.source is None else "this configuration has no [engines.temporal]"
        raise KeepholdError(why, code="config_invalid")
    place = temporal_place(config)
    from keephold.engines.temporal.worker import TemporalWorker

    tools = [tool for tool in build_tools(config, Guard()) if tool.engine == "temporal"]
    if not tools:
        raise KeepholdError('no tool of this configuration has engine = "temporal"', code="config_invalid")
    working = TemporalWorker(place, tools, max_running=max_running or config.runtime.max_running, drain_secs=drain)
    stop, signals = asyncio.Event(), Signals()

    def leave() -> None:
        click.echo(f"Stopping. Calls that end here or continue elsewhere: {working.running}.", err=True)
        stop.set()

    signals.listen(leave)
    if metrics is not None:
        _measure(working, metrics)
    names = ", ".join(tool.name for tool in tools)
    tell_source(config)
    click.echo(f"Taking calls of {names} from Temporal at {place.address} (task queue {place.task_queue}).", err=True)
    await working.run(stop)
    if working.abandoned:  # the loop would not end before a tool that swallows its cancellation
        click.echo("Some calls did not end when they were cancelled; they end with this process.", err=True)
        os._exit(signals.code)
    return signals.code


def _measure(working: object, address: str) -> None:
    need("serve", "--metrics", "prometheus_client")
    from prometheus_client import CollectorRegistry, Gauge, start_http_server

    registry = CollectorRegistry()
    for name, text in (("running", "Attempts that run now."), ("finished", "Attempts that have ended.")):
        gauge = Gauge(f"keephold_worker_attempts_{name}", text, registry=registry)
        gauge.set_function(lambda name=name: float(getattr(working, name)))  # type: ignore[misc]
    host, _, port = address.rpartition(":")
    try:
        start_http_server(int(port), host or "127.0.0.1", registry=registry)
    except (ValueError, OverflowError, OSError) as error:
        why = f"--metrics {address}: {error}; give HOST:PORT of this machine, such as 127.0.0.1:9100"
        raise KeepholdError(why, code="config_invalid") from None
