"""`keephold init`: a configuration to begin with, and what MCP clients and ACP editors are told to find it.

The file works as it is. Nothing is ever overwritten: a file that is there stays, with --force under another name. Exit
code 0 when it was written or only the snippets were wanted, 2 when it could not be.

What MCP clients and ACP editors are told so that they find keephold: one snippet each, in the client's own format.

Programs with windows are not started by a shell and do not have its PATH, so a snippet names the program and the
configuration by their whole paths. A token is never in a snippet: where one goes, a placeholder stands.
"""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import click

from keephold.cli.printing import print_json
from keephold.errors import KeepholdError

PLACEHOLDER = "YOUR_TOKEN"
"""Stands where the token goes that `keephold serve` prints."""

_LIST = re.compile(r"\[\n +([^\[\]{}]*)\n +\]")
_BREAK = re.compile(r"\n +")


class Snippet(NamedTuple):
    """What is written into which file of a client. `face` is what it speaks, `by` how it reaches keephold."""

    client: str
    face: str
    by: str
    file: str
    format: str
    text: str


def snippets(program: Sequence[str], config: Path, url: str) -> list[Snippet]:
    """All of them: `program` is how keephold is started, `url` where `keephold serve` listens."""
    mcp = [*program, "mcp", "--config", str(config)]
    acp = [*program, "acp", "--config", str(config)]
    return [*_stdio(mcp), *_http(f"{url}/mcp"), *_acp(acp)]


def _stdio(words: list[str]) -> Iterator[Snippet]:
    """Clients that start `keephold mcp` themselves."""
    server = _program_json(words)
    here = _json({"mcpServers": {"keephold": server}})
    yield Snippet("Claude Desktop", "mcp", "stdio", "claude_desktop_config.json", "json", here)
    yield Snippet("Claude Code", "mcp", "stdio", ".mcp.json", "json", here)
    yield Snippet("Cursor", "mcp", "stdio", ".cursor/mcp.json", "json", here)
    vscode = _json({"servers": {"keephold": {"type": "stdio", **server}}})
    yield Snippet("VS Code", "mcp", "stdio", ".vscode/mcp.json", "json", vscode)
    codex = f"[mcp_servers.keephold]\ncommand = {_quoted(words[0])}\nargs = {_quoted(words[1:])}"
    yield Snippet("Codex", "mcp", "stdio", "~/.codex/config.toml", "toml", codex)
    zed = _json({"context_servers": {"keephold": {**server, "env": {}}}})
    yield Snippet("Zed", "mcp", "stdio", "~/.config/zed/settings.json", "json", zed)


def _http(url: str) -> Iterator[Snippet]:
    """Clients of a `keephold serve` that runs. Claude Desktop takes addresses only of servers on the internet."""
    server = {"url": url, "headers": {"Authorization": f"Bearer {PLACEHOLDER}"}}
    typed = {"type": "http", **server}
    yield Snippet("Claude Code", "mcp", "http", ".mcp.json", "json", _json({"mcpServers": {"keephold": typed}}))
    yield Snippet("Cursor", "mcp", "http", ".cursor/mcp.json", "json", _json({"mcpServers": {"keephold": server}}))
    yield Snippet("VS Code", "mcp", "http", ".vscode/mcp.json", "json", _json({"servers": {"keephold": typed}}))
    codex = f'[mcp_servers.keephold]\nurl = {_quoted(url)}\nbearer_token_env_var = "KEEPHOLD_TOKEN"'
    yield Snippet("Codex", "mcp", "http", "~/.codex/config.toml", "toml", codex)
    zed = _json({"context_servers": {"keephold": server}})
    yield Snippet("Zed", "mcp", "http", "~/.config/zed/settings.json", "json", zed)


def _acp(words: list[str]) -> Iterator[Snippet]:
    """Editors that start `keephold acp` as their agent."""
    agent = {**_program_json(words), "env": {}}
    zed = _json({"agent_servers": {"keephold": {"type": "custom", **agent}}})
    yield Snippet("Zed", "acp", "stdio", "~/.config/zed/settings.json", "json", zed)
    jetbrains = _json({"agent_servers": {"keephold": agent}})
    yield Snippet("JetBrains IDEs", "acp", "stdio", "~/.jetbrains/acp.json", "json", jetbrains)
    arguments = ", ".join(map(_quoted, words[1:]))
    avante = (
        'require("avante").setup({\n'
        '  provider = "keephold",\n'
        "  acp_providers = {\n"
        f"    keephold = {{ command = {_quoted(words[0])}, args = {{ {arguments} }} }},\n"
        "  },\n"
        "})"
    )
    yield Snippet("Neovim (avante.nvim)", "acp", "stdio", "~/.config/nvim/init.lua", "lua", avante)


def _program_json(words: list[str]) -> dict[str, Any]:
    return {"command": words[0], "args": words[1:]}


def _json(value: Any) -> str:
    """Indented, with lists of words on one line."""
    return _LIST.sub(lambda found: f"[{_BREAK.sub(' ', found[1])}]", json.dumps(value, indent=2, ensure_ascii=False))


def _quoted(value: Any) -> str:
    """Text, or a list of it, for TOML and Lua, which write strings as JSON does."""
    return json.dumps(value, ensure_ascii=False)


NAME = "keephold.toml"
URL = "http://127.0.0.1:8420"
"""Where `keephold serve` listens unless it is told otherwise (`ServeSettings`, which takes a while to import)."""

_FACES = {
    ("mcp", "stdio"): "For MCP clients that start it themselves",
    ("mcp", "http"): f"For MCP clients of a `keephold serve` that runs; {PLACEHOLDER} stands for the token it prints",
    ("acp", "stdio"): "For editors that have it as their agent, over ACP; it needs a model and `keephold[agent]`",
}


@click.command()
@click.argument("DIR", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Write it even if one is there, which stays as keephold.toml.bak.")
@click.option("--snippets", "only_snippets", is_flag=True, help="Write nothing: only print the snippets.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def init(dir: Path | None, force: bool, only_snippets: bool, as_json: bool) -> None:
    """Write a keephold.toml to begin with into DIR, by default the working directory.

    It has a command and a terminal as examples, and every other setting commented out with its default. Then it prints
    what MCP clients and ACP editors are told to find it, and the next steps.
    """
    file = (dir or Path()).absolute() / NAME
    kept = None if only_snippets else _write(file, force=force)
    listed = snippets(_program(), file, URL)
    if as_json:
        facts: dict[str, Any] = {"config": str(file), "written": not only_snippets}
        facts["kept"] = None if kept is None else str(kept)
        print_json(facts | {"snippets": [snippet._asdict() for snippet in listed]})
        return
    if not only_snippets:
        click.echo(f"wrote {file}")
        if kept is not None:
            click.echo(f"the one that was there is {kept}")
        click.echo()
    _show(listed)
    if not only_snippets:
        _show_steps(file.parent)


def _write(file: Path, *, force: bool) -> Path | None:
    """Write the file; where the one is that was there, if there was one."""
    text = Path(__file__).with_name("starter.toml").read_bytes()
    kept = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if force and file.exists():
            kept = next(path for path in _backups(file) if not path.exists())
            file.rename(kept)
        with file.open("xb") as new:  # `x`: of two that write at once, one is told that the other was first
            new.write(text)
    except FileExistsError as error:
        raise KeepholdError(
            f"{file} is there already, and stays as it is; --force writes a new one and keeps it as {NAME}.bak, "
            "--snippets writes nothing",
            code="config_invalid",
        ) from error
    except OSError as error:
        raise KeepholdError(
            f"{file} cannot be written: {error.strerror}; name another DIR", code="config_invalid"
        ) from error
    return kept


def _backups(file: Path) -> Iterator[Path]:
    return (file.with_name(f"{NAME}.bak{number or ''}") for number in count())


def _program() -> list[str]:
    """How this keephold is started from anywhere."""
    found = shutil.which("keephold")
    beside = Path(sys.executable).with_name("keephold")
    if found is None and beside.exists():  # of an environment that is not activated
        found = str(beside)
    return [sys.executable, "-m", "keephold"] if found is None else [found]


def _show_steps(directory: Path) -> None:
    """Last, where they are still to be seen."""
    steps = [("keephold check", "whether it is right"), ("keephold serve", "the dashboard, and MCP over HTTP")]
    steps += [("keephold init --snippets", "the above once more")]
    if not directory.samefile(Path.cwd()):
        steps.insert(0, (f"cd {shlex.quote(str(directory))}", ""))
    click.echo(click.style("Next:\n", bold=True))
    for line, meaning in steps:
        click.echo(f"    {line:<26}{meaning}".rstrip())


def _show(listed: list[Snippet]) -> None:
    for (face, by), title in _FACES.items():
        click.echo(click.style(f"{title}:\n", bold=True))
        of_face = [snippet for snippet in listed if (snippet.face, snippet.by) == (face, by)]
        for snippet in of_face:
            same = [other for other in of_face if other.text == snippet.text]
            if same[0] is not snippet:
                continue  # several clients have one format: it is shown once
            click.echo("; ".join(f"{other.client}: {click.style(other.file, fg='cyan')}" for other in same) + "\n")
            click.echo("".join(f"    {line}\n" for line in snippet.text.splitlines()))
