"""`keephold trust` and `keephold untrust`: which configuration files that are found may act (K7).

Commands that act by a found file ask `trusted_config` for it, which asks the user at a terminal and raises elsewhere.
`keephold mcp` cannot ask, because a client has its input and output. It starts as if there were no file, and says so in
every session until the file is trusted (`load_trusted`).
"""

import difflib
import logging
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from keephold.cli.parameters import json_option
from keephold.cli.printing import tell
from keephold.config.trust import FILE_NAME, Found, Record, examine, find_config
from keephold.errors import ConfigError
from keephold.text import exact, exact_line, time_of_day

if TYPE_CHECKING:
    from keephold.config import Config
    from keephold.runtime import Runtime

_log = logging.getLogger("keephold.trust")

_QUIET_SECS = 0.7
"""How long keys are ignored after the question has appeared, as for other prompts (`prompter`, slow to import)."""
_SCOPE = "Trust covers the bytes of this file. Programs, scripts and modules that it names can change later."
_TOO_LONG = "Not all of this fits on the terminal, so you are not asked whether you trust it. To read the file"


# For other commands


def trusted_config(found: Found, *, ask: bool = True) -> "Config":
    """Return the configuration of a found file that the user trusts, or trusts now. Raise `ConfigError` otherwise."""
    from keephold.config.load import load_config

    if found.refused:
        raise ConfigError([refusal(found)])
    config = load_config(found.path, found.data)
    if found.trusted:
        return config
    shown = explained(found, config)
    if not (ask and _at_terminal()):
        raise ConfigError([f"{shown}\n{_remedies(found)}"])
    if not _fits(shown):  # the beginning would scroll away, and be trusted unseen
        raise ConfigError([f"{shown}\n{_TOO_LONG}: less {_quoted(found.path)}\n{_remedies(found)}"])
    click.echo(f"{shown}\n", err=True)
    _forget_typed_ahead()
    if not click.confirm("Trust this file?", default=False, err=True):
        raise ConfigError([f"{exact_line(str(found.path))} is not trusted; nothing in it was used"])
    record(found, config)
    return config


def record(found: Found, config: "Config") -> None:
    """Trust the file as it was read."""
    from keephold.config.secrets import without_secrets

    Record().add(found.path, found.data, without_secrets(config, found.data.decode()))


def refusal(found: Found) -> str:
    """Return why the file cannot be trusted."""
    other = f"; or name {other}" if (other := _other(found.path)) else ""
    return f"{exact_line(str(found.path))} is not used: {exact_line(found.refused)}{other}"


def explained(found: Found, config: "Config") -> str:
    """Return that the file is not trusted, what it would do, and what has changed in it."""
    from keephold.config.secrets import without_secrets
    from keephold.config.would_do import would_do

    changed = found.entry is not None
    state = "has changed since you trusted it" if changed else "is not trusted"
    does = would_do(config)
    lines = [f"{exact_line(str(found.path))} {state}, so nothing in it was used." + (" It would:" if does else "")]
    lines += [f"  - {each}" for each in does]
    if found.entry is not None:
        now = without_secrets(config, found.data.decode())
        lines += ["Changes:", *(f"  {line}" for line in _diff(found.entry.text, now))]
    return "\n".join([*lines, _SCOPE])


def ignored(found: Found) -> str:
    """Return in one sentence, for a log, that the file was found and is not used."""
    if found.refused:
        return refusal(found)
    state = "has changed since it was trusted" if found.entry is not None else "is not trusted"
    return f"{exact_line(str(found.path))} {state}, so it is not used; to trust it: {_command(found.path)}"


def _diff(before: str | None, now: str | None) -> Iterator[str]:
    if before is None or now is None:
        yield "(they cannot be shown: the text is long, or has secrets; read the file)"
        return
    # By line feeds alone, as TOML does: `splitlines` would let other characters pass for the end of a comment.
    lines = list(difflib.unified_diff(before.split("\n"), now.split("\n"), n=1, lineterm=""))[2:]
    yield from map(exact, lines)
    if not lines:
        yield "(only secrets or line ends)"


def _remedies(found: Found) -> str:
    record = Record()
    record.read()
    problem = f"{record.problem}\n" if record.problem else ""
    other = _other(found.path)
    return f"{problem}To trust it: {_command(found.path)}" + (f"\nTo do without, name {other}" if other else "")


def _other(path: Path) -> str:
    """Return the option of this command that needs no trust, if it has one."""
    context = click.get_current_context(silent=True)
    options = set() if context is None else {option for each in context.command.params for option in each.opts}
    if "--config" in options:
        return f"the file: --config {_quoted(path)}"
    return "a store: --store URL" if "--store" in options else ""


def _command(path: Path) -> str:
    return f"keephold trust {_quoted(path)}"


def _quoted(path: Path) -> str:
    """Return the path for a shell, in ASCII if it has characters that are not shown."""
    if exact_line(str(path)) == str(path):
        return shlex.quote(str(path))
    plain = (chr(each) if 32 < each < 127 and each not in b"'\\" else f"\\x{each:02x}" for each in os.fsencode(path))
    return f"$'{''.join(plain)}'"


def _at_terminal() -> bool:
    with suppress(AttributeError, ValueError):  # a stream may be missing or closed
        return sys.stdin.isatty() and sys.stderr.isatty()
    return False


def _fits(text: str) -> bool:
    """Return whether a text is on the screen as a whole, with a blank row and the question below it."""
    from rich.cells import cell_len  # slow to import

    size = os.get_terminal_size(sys.stderr.fileno())
    columns, rows = size.columns or 80, size.lines or 24
    narrower = max(columns - 1, 1)  # a wide character does not fit into the last column
    return sum(1 + cell_len(line.expandtabs()) // narrower for line in text.split("\n")) + 3 <= rows


def _forget_typed_ahead() -> None:
    """Let only an answer count that is typed after the question was there to be read (K4)."""
    import termios

    time.sleep(_QUIET_SECS)
    with suppress(termios.error):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


# The commands


@click.command()
@click.argument("PATH", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--list", "listing", is_flag=True, help="List the trusted files instead.")
@json_option
def trust(path: Path | None, listing: bool, as_json: bool) -> None:
    """Let a keephold.toml act where it is found: import, start, connect and write.

    PATH is the file or its directory. Default: the file of this directory or the nearest one above it. Trust covers the
    file as it is now; when it changes, trust it again. It prints what the file may do.
    """
    if listing:
        if path is not None:
            raise click.UsageError("--list takes no PATH")
        _list(as_json=as_json)
        return
    from keephold.config.load import load_config
    from keephold.config.would_do import would_do

    found = examine(_named(path))
    if found.refused:
        raise ConfigError([refusal(found)])
    config = load_config(found.path, found.data)
    may = would_do(config)
    record(found, config)
    lines = [f"{exact_line(str(found.path))} is trusted." + (" It may:" if may else "")]
    lines += [*(f"  - {each}" for each in may), _SCOPE, f"To undo: keephold untrust {_quoted(found.path)}"]
    tell({"path": str(found.path), "sha256": found.sha256, "may": may}, lines, as_json=as_json)


@click.command()
@click.argument("PATH", required=False, type=click.Path(path_type=Path))
@json_option
def untrust(path: Path | None, as_json: bool) -> None:
    """Remove a keephold.toml from the trusted files.

    PATH is the file or its directory, which may be gone. Default: the file of this directory or the nearest one above.
    """
    named = _named(path)
    file = named.parent.resolve() / named.name
    was = Record().remove(file)
    text = f"{exact_line(str(file))} is {'not trusted any more' if was else 'not in the record of trusted files'}"
    tell({"path": str(file), "untrusted": was}, text, as_json=as_json)


def _named(path: Path | None) -> Path:
    file = find_config(Path.cwd()) if path is None else path if path.name == FILE_NAME else path / FILE_NAME
    if file is None:
        raise ConfigError([f"no {FILE_NAME} in this directory or above it; name a file or its directory"])
    if path is not None and path.is_file() and path.name != FILE_NAME:
        raise ConfigError(
            [f"only a file called {FILE_NAME} is found; name {exact_line(str(path))} by --config, which needs no trust"]
        )
    return file


def _list(*, as_json: bool) -> None:
    record = Record()
    entries = record.read()
    if record.problem:
        raise ConfigError([record.problem])
    rows = [(path, entry, _state(Path(path))) for path, entry in sorted(entries.items())]
    listed = [{"path": path, "state": state, "sha256": entry.sha256, "at": entry.at} for path, entry, state in rows]
    lines = [f"{state:<8}  {time_of_day(entry.at)}  {exact_line(path)}" for path, entry, state in rows]
    tell({"trusted": listed}, lines or "no file is trusted; `keephold trust` trusts one", as_json=as_json)


def _state(path: Path) -> str:
    found = examine(path)
    if not path.is_file():
        return "gone"
    return "refused" if found.refused else "trusted" if found.trusted else "changed"


# For servers that cannot ask


async def load_trusted(runtime: "Runtime", config: "Config") -> None:
    """Load the configuration of a file that was ignored and is trusted now."""
    left = runtime.reload(config)
    for server in config.mcp_servers():
        await runtime.add_server(server)
    needed = [table for table in left if table != "mcp" or config.mcp.model_fields_set - {"servers"}]
    _log.warning("the configuration is trusted now%s", restart_for(needed))


def restart_for(tables: list[str]) -> str:
    """Return the end of a sentence that says for which tables a restart is needed."""
    return f"; a restart is needed for {', '.join(tables)}" if tables else ""
