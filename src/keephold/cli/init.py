"""`keephold init`: write a first configuration, and print the settings for MCP clients and ACP editors.

No file is ever overwritten. Desktop programs do not have the shell's PATH, so snippets name the program and the
configuration by their whole paths. Snippets contain a placeholder, never a token.
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

from keephold.cli.parameters import json_option
from keephold.cli.printing import print_json
from keephold.errors import KeepholdError
from keephold.platforms import machine

NAME = "keephold.toml"
URL = "http://127.0.0.1:8420"
"""Where `keephold serve` listens by default (`ServeSettings`, which is slow to import)."""
PLACEHOLDER = "YOUR_TOKEN"
"""Stands for the token that `keephold serve` prints."""

_FACES = {
    ("mcp", "stdio"): "For MCP clients that start it themselves",
    ("mcp", "http"): f"For MCP clients of a running `keephold serve`; {PLACEHOLDER} stands for the token it prints",
    ("acp", "stdio"): "For editors that have it as their agent, over ACP; it needs a model and `keephold[agent]`",
}
_LIST = re.compile(r"\[\n +([^\[\]{}]*)\n +\]")
_BREAK = re.compile(r"\n +")


class Snippet(NamedTuple):
    """The text for a client's own file. `face` is the protocol, `by` the way to reach keephold."""

    client: str
    face: str
    by: str
    file: str
    format: str
    text: str


def snippets(program: Sequence[str], config: Path, url: str) -> list[Snippet]:
    """Return all snippets. `program` starts keephold, `url` is where `keephold serve` listens."""
    mcp = [*program, "mcp", "--config", str(config)]
    acp = [*program, "acp", "--config", str(config)]
    return [*_stdio(mcp), *_http(f"{url}/mcp"), *_acp(acp)]


def _stdio(words: list[str]) -> Iterator[Snippet]:
    """Yield those of clients that start `keephold mcp` themselves."""
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
    """Yield those of clients of a running `keephold serve`. Claude Desktop takes only servers on the internet."""
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
    """Yield those of editors that start `keephold acp` as their agent."""
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
    """Return JSON indented, with lists of words on one line."""
    return _LIST.sub(lambda found: f"[{_BREAK.sub(' ', found[1])}]", json.dumps(value, indent=2, ensure_ascii=False))


def _quoted(value: Any) -> str:
    """Quote a text or a list for TOML and Lua, which write strings as JSON does."""
    return json.dumps(value, ensure_ascii=False)


@click.command()
@click.argument("DIR", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace an existing file, which is kept as keephold.toml.bak.")
@click.option("--snippets", "only_snippets", is_flag=True, help="Write nothing; print the snippets only.")
@json_option
def init(dir: Path | None, force: bool, only_snippets: bool, as_json: bool) -> None:
    """Write a first keephold.toml into DIR (default: the working directory).

    It has a command and a terminal as examples, and every other setting commented out with its default. Then it prints
    the settings by which MCP clients and ACP editors find keephold, and the next steps.
    """
    file = (dir or Path()).absolute() / NAME
    kept = None if only_snippets else _write(file, force=force)
    if not only_snippets:
        _trust(file)
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
    """Write the file. Return where the old one is kept, if there was one."""
    text, kept = _starter(), None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if force and file.exists():
            backups = (file.with_name(f"{NAME}.bak{number or ''}") for number in count())
            kept = next(path for path in backups if not path.exists())
            file.rename(kept)
        with file.open("xb") as new:  # `x`: if two write at once, the second fails
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


def _starter() -> bytes:
    """Return the first configuration. Its tools are programs; where none can be run, they are comments."""
    text = Path(__file__).with_name("starter.toml").read_bytes()
    return re.sub(rb"^(?=[^#\r\n])", b"#", text, flags=re.MULTILINE) if machine.no_programs else text


def _trust(file: Path) -> None:
    """Trust the file that was just written. If others can write it, commands will refuse it: say so now."""
    from keephold.cli.trust import refusal
    from keephold.config.trust import Record, examine

    try:
        found, text = examine(file), _starter()
        Record().add(found.path, text, text.decode())
        why = refusal(found) if found.refused else ""
    except KeepholdError as error:
        why = error.message
    if why:
        click.echo(f"note: {why}", err=True)


def _program() -> list[str]:
    """Return the words that start this keephold from anywhere."""
    found = shutil.which("keephold")
    beside = Path(sys.executable).with_name("keephold")
    if found is None and beside.exists():  # the environment is not activated
        found = str(beside)
    return [sys.executable, "-P", "-m", "keephold"] if found is None else [found]


def _show_steps(directory: Path) -> None:
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
                continue  # clients that share a format are shown together
            click.echo("; ".join(f"{other.client}: {click.style(other.file, fg='cyan')}" for other in same) + "\n")
            click.echo("".join(f"    {line}\n" for line in snippet.text.splitlines()))
