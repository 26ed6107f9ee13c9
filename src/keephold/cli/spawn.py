"""`keephold spawn` and `keephold run`: start a tool in the background, as an MCP host does for a model (M3)."""

import json
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from keephold.cli.parameters import config_option, json_option, the_config
from keephold.cli.printing import one_line, print_json, printable
from keephold.cli.store import Where, act, look, store_of, store_option
from keephold.control.base import Controls, Looking
from keephold.errors import KeepholdError
from keephold.tools.remote.server import need_mcp

if TYPE_CHECKING:
    import io


@click.command()
@click.argument("TOOL")
@click.argument("VALUES", metavar="[NAME=VALUE]...", nargs=-1)
@click.option("--id", help="Name the handle. Default: the name of the tool and a few random letters.")
@click.option("--wait", "waits", is_flag=True, help="Wait until it has stopped, as `keephold wait` does.")
@config_option
@store_option
@json_option
def spawn(
    tool: str,
    values: tuple[str, ...],
    id: str | None,
    waits: bool,
    config: Path | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Start a TOOL of the configuration in the background, and return at once.

    It runs in the `keephold serve` on the store, else in the background server that `keephold mcp` uses, which is
    started if it does not run. The handle is like any other: use ps, logs, send, attach, wait and abort.

    A VALUE is text where the tool takes text, else JSON: `count=3`, `dry=true`, `files=["a","b"]`.
    """
    given = _pairs(values)
    id = _new_id(tool) if id is None else id
    with _session(config, store) as (session, place):
        reply = _spawned(session, tool, given, id)
    if waits:
        from keephold.cli.wait import wait

        click.get_current_context().invoke(wait, id=(id,), store=place, as_json=as_json)
        return
    if as_json:
        print_json(reply)
    elif reply.get("is_error"):
        click.echo(f"{one_line(id)}: {one_line(reply['result'])}", err=True)
    else:
        click.echo(f"{one_line(id)}: {reply['state']}")
    sys.exit(int(bool(reply.get("is_error"))))


@click.command()
@click.argument("TOOL")
@click.argument("VALUES", metavar="[NAME=VALUE]...", nargs=-1)
@config_option
@store_option
def run(tool: str, values: tuple[str, ...], config: Path | None, store: str | None) -> None:
    """Run a TOOL of the configuration once, and print its output as it comes, then its result.

    It runs where `keephold spawn` would run it. Ctrl-C aborts it. The exit code is 0 if it succeeded.

    A VALUE is text where the tool takes text, else JSON: `count=3`, `dry=true`, `files=["a","b"]`.
    """
    given, id = _pairs(values), _new_id(tool)
    with _session(config, store) as (session, place):
        if tool not in session.stateful:
            text, failed = _called(session, tool, given)
            click.echo(printable(text).rstrip("\n"), err=failed)
            sys.exit(int(failed))
        reply = _spawned(session, tool, given, id)
    if reply["state"] == "pending":
        click.echo(f"{one_line(id)} has not started; `keephold requests` shows whether it waits for you.", err=True)
    where = Where(store=place)
    try:
        failed = look(where, lambda looking: _followed(looking, id))
    except KeyboardInterrupt:
        act(where, lambda controls: _aborted(controls, id))
        click.echo(f"{one_line(id)}: aborted", err=True)
        sys.exit(130)
    sys.exit(int(failed))


async def _followed(looking: Looking, id: str) -> bool:
    """Print the output of a handle until it has stopped, then its result; return whether it failed."""
    from keephold.cli.logs import Printer, print_output

    await print_output(looking, id, None, Printer(), follow=True)
    (fact,) = await looking.find((id,), None)
    outcome = (await looking.handle(fact["uid"]))["outcome"] or {}
    if fact["ok"] is False:
        click.echo(f"{one_line(id)}: {one_line(fact['message'] or fact['code'] or 'failed')}", err=True)
    elif outcome.get("type") == "ok" and outcome.get("value") is not None:
        value = outcome["value"]
        click.echo(printable(value).rstrip("\n") if isinstance(value, str) else one_line(value))
    return fact["ok"] is False


async def _aborted(controls: Controls, id: str) -> None:
    (fact,) = await controls.find((id,), None)
    await controls.abort(fact["uid"])


def _new_id(tool: str) -> str:
    return f"{tool}-{secrets.token_hex(3)}"


@contextmanager
def _session(config: Path | None, store: str | None) -> "Iterator[tuple[_Session, str]]":
    """Open a session at the server that runs the tools, which is started if need be; yield it and the store."""
    need_mcp()
    loaded = the_config(config)
    place = store or store_of(loaded)
    from keephold.cli.mcp import connected

    connection = connected(place, loaded, None)
    if connection is None:
        if place.startswith(("postgresql:", "postgres:")):
            what = "a PostgreSQL store has none for the shell. Use `keephold turn`, or call the tool over MCP"
        else:
            what = (
                "a `memory:` store and [mcp] background_secs = 0 have none. Name a file by --store, or start "
                "`keephold serve`"
            )
        raise KeepholdError(f"no server can start it: {what}", code="unsupported_store")
    with closing(connection), connection.makefile("rwb") as stream:
        yield _Session(stream), place


def _pairs(arguments: Iterable[str]) -> dict[str, str]:
    """Return the arguments by name."""
    pairs: dict[str, str] = {}
    for argument in arguments:
        name, found, value = argument.partition("=")
        if not (found and name):
            raise click.UsageError(f"`{argument}` must be an argument of the tool, written NAME=VALUE")
        if name in pairs:
            raise click.UsageError(f"`{name}` is given twice; for several values, give a list: {name}='[1, 2]'")
        pairs[name] = value
    return pairs


def _spawned(session: "_Session", tool: str, given: Mapping[str, str], id: str) -> dict[str, Any]:
    """Return the reply of the spawn. Raise `KeepholdError` if it was refused."""
    if tool not in session.stateful:
        listed = ", ".join(f"`{name}`" for name in session.stateful)
        raise KeepholdError(
            f"`{tool}` cannot be spawned on this server; tools that can: {listed}. A tool needs "
            "`spawn = { stateful = true }` in its table of keephold.toml. A running `keephold serve` reads a "
            "changed file only after SIGHUP",
            code="invalid_arguments",
        )
    text, failed = session.call(tool, {**_arguments(session.tools[tool], given), "spawn": id})
    if failed:
        raise KeepholdError(text.partition("\nTry: ")[0], code="tool_error")  # that line is a call, for a model
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def _called(session: "_Session", tool: str, given: Mapping[str, str]) -> tuple[str, bool]:
    """Return the answer of a one-shot call, and whether it failed. Raise `KeepholdError` if there is no such tool."""
    if tool not in session.tools:
        listed = ", ".join(f"`{name}`" for name in session.tools)
        raise KeepholdError(f"there is no tool `{tool}` on this server; it has {listed}", code="unknown_tool")
    return session.call(tool, _arguments(session.tools[tool], given))


def _arguments(known: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    return {name: _value(text, known.get(name)) for name, text in given.items()}


_ME = {"name": "keephold-spawn", "version": version("keephold")}


def _value(text: str, schema: Any) -> Any:
    """Return the value that a text stands for: itself where the parameter takes text, else the JSON that it is."""
    if "string" in _types(schema):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text  # the tool's own error says what it takes


def _types(schema: Any) -> set[str]:
    """Return the types that a parameter takes; `string` if its schema does not say."""
    if not isinstance(schema, dict):
        return {"string"}
    variants = schema.get("anyOf") or schema.get("oneOf")
    if variants:
        return set[str]().union(*map(_types, variants))
    named = schema.get("type", "string")
    return {named} if isinstance(named, str) else set(named)


class _Session:
    """An MCP session of a few requests, one after the other."""

    def __init__(self, stream: "io.BufferedRWPair") -> None:
        self._stream = stream
        self._count = 0
        self.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=_ME)
        self._send({"method": "notifications/initialized", "params": {}})
        listed = self.ask("tools/list")["tools"]
        self.tools: dict[str, dict[str, Any]] = {
            each["name"]: each["inputSchema"].get("properties", {}) for each in listed
        }
        """The tools of the server, each with its properties."""
        self.stateful = [name for name, known in self.tools.items() if known.keys() & {"spawn", "action"}]
        """Those that can be spawned."""

    def ask(self, method: str, **params: Any) -> Any:
        """Return the result of a request. Raise `KeepholdError` if there is none."""
        self._count += 1
        self._send({"method": method, "params": params, "id": self._count})
        for line in self._stream:
            message = json.loads(line)
            if message.get("id") == self._count and "method" not in message:
                if "error" in message:
                    raise KeepholdError(str(message["error"].get("message")), code="server_refused")
                return message["result"]
        raise KeepholdError(
            "the server ended before it answered; `keephold ps` shows whether the call was started",
            code="server_unreachable",
        )

    def call(self, tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """Return the answer of a tool, and whether it is an error. Further blocks are notifications of earlier
        calls."""
        result = self.ask("tools/call", name=tool, arguments=arguments)
        return result["content"][0]["text"], bool(result.get("isError"))

    def _send(self, message: dict[str, Any]) -> None:
        self._stream.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._stream.flush()
