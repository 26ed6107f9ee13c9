"""`keephold spawn`: start a tool in the background, as an MCP host does for a model (M3)."""

import json
import secrets
from collections.abc import Iterable, Mapping
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from keephold.cli.parameters import config_option, json_option, the_config
from keephold.cli.printing import one_line, print_json
from keephold.cli.store import store_of, store_option
from keephold.errors import KeepholdError
from keephold.tools.remote.server import need_mcp

if TYPE_CHECKING:
    import io
    import socket


@click.command()
@click.argument("TOOL")
@click.argument("VALUES", metavar="[NAME=VALUE]...", nargs=-1)
@click.option("--id", help="Name the handle. Default: the name of the tool and a few random letters.")
@click.option("--wait", "waits", is_flag=True, help="Wait until it has stopped, as `keephold wait` does.")
@config_option
@store_option
@json_option
@click.pass_context
def spawn(
    context: click.Context,
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
    need_mcp()
    given = _pairs(values)
    loaded = the_config(config)
    place = store or store_of(loaded)
    id = f"{tool}-{secrets.token_hex(3)}" if id is None else id
    from keephold.cli.mcp import connected

    connection = connected(place, loaded, None)
    if connection is None:
        raise KeepholdError(
            "no server can start it: a `memory:` store and [mcp] background_secs = 0 have none. Name a file "
            "by --store, or start `keephold serve`",
            code="unsupported_store",
        )
    reply = _spawned(connection, tool, given, id)
    if waits:
        from keephold.cli.wait import wait

        where = {"store": place, "server": None, "token_file": None}
        context.invoke(wait, id=(id,), any_of_them=False, timeout=None, conversation=None, as_json=as_json, **where)
        return
    if as_json:
        print_json(reply)
    elif reply.get("is_error"):
        click.echo(f"{one_line(id)}: {one_line(reply['result'])}", err=True)
    else:
        click.echo(f"{one_line(id)}: {reply['state']}")
    context.exit(int(bool(reply.get("is_error"))))


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


def _spawned(connection: "socket.socket", tool: str, given: Mapping[str, str], id: str) -> dict[str, Any]:
    """Return the reply of the spawn. Raise `KeepholdError` if it was refused."""
    with closing(connection), connection.makefile("rwb") as stream:
        session = _Session(stream)
        session.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=_ME)
        session.tell("notifications/initialized")
        stateful = {
            each["name"]: known
            for each in session.ask("tools/list")["tools"]
            if (known := each["inputSchema"].get("properties", {})).keys() & {"spawn", "action"}
        }
        if tool not in stateful:
            listed = ", ".join(f"`{name}`" for name in stateful)
            raise KeepholdError(
                f"`{tool}` cannot be spawned on this server; tools that can: {listed}. A tool needs "
                "`spawn = { stateful = true }` in its table of keephold.toml. A running `keephold serve` reads a "
                "changed file only after SIGHUP",
                code="invalid_arguments",
            )
        known = stateful[tool]
        arguments = {name: _value(text, known.get(name)) for name, text in given.items()}
        result = session.ask("tools/call", name=tool, arguments={**arguments, "spawn": id})
    reply = result["content"][0]["text"]  # further blocks are notifications of earlier calls
    if result.get("isError"):
        raise KeepholdError(reply.partition("\nTry: ")[0], code="tool_error")  # that line is a call, for a model
    parsed: dict[str, Any] = json.loads(reply)
    return parsed


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

    def tell(self, method: str, **params: Any) -> None:
        """Send a notification."""
        self._send({"method": method, "params": params})

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

    def _send(self, message: dict[str, Any]) -> None:
        self._stream.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._stream.flush()
