"""What MCP clients and ACP editors are told so that they find keephold: one snippet each, in the client's own format.

Programs with windows are not started by a shell and do not have its PATH, so a snippet names the program and the
configuration by their whole paths. A token is never in a snippet: where one goes, a placeholder stands.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
    server = _program(words)
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
    agent = {**_program(words), "env": {}}
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


def _program(words: list[str]) -> dict[str, Any]:
    return {"command": words[0], "args": words[1:]}


def _json(value: Any) -> str:
    """Indented, with lists of words on one line."""
    return _LIST.sub(lambda found: f"[{_BREAK.sub(' ', found[1])}]", json.dumps(value, indent=2, ensure_ascii=False))


def _quoted(value: Any) -> str:
    """Text, or a list of it, for TOML and Lua, which write strings as JSON does."""
    return json.dumps(value, ensure_ascii=False)
