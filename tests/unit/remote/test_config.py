"""`[mcp.servers.<name>]` and `source = "mcp"` in the configuration (M6, L4, K5)."""

from pathlib import Path

import pytest

import keephold
from keephold.config import load_config
from keephold.errors import ConfigError

SERVER = '[mcp.servers.git]\ncommand = "git-mcp"\n'


def loaded(text: str, directory: Path) -> keephold.Runtime:
    file = directory / "keephold.toml"
    file.write_text(text)
    return keephold.Runtime(config=file)


def problems(text: str, directory: Path) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        loaded(text, directory)
    return [problem.partition("keephold.toml:")[2] for problem in raised.value.problems]


def test_M6_a_server_is_read(tmp_path: Path) -> None:
    file = tmp_path / "keephold.toml"
    file.write_text(
        """
        [conversation.tools."*"]
        run = "unattended"
        scheduling = "serial"

        [mcp.servers.git]
        command = ["git-mcp", "--quiet"]
        args = ["."]
        env = { TOKEN = "t" }
        cwd = "sub"
        tools = ["log", "push"]
        prefix = "git_"
        stateful = true

        [mcp.servers.web]
        url = "https://example.org/mcp"
        headers = { Authorization = "Bearer t" }
        timeout_secs = 5

        [mcp.servers.off]
        command = "off"
        enabled = false

        [conversation.tools.push]
        source = "mcp"
        server = "git"
        run = "ask"
        spawn.actions = ["spawn", "abort"]

        [conversation.tools.history]
        source = "mcp"
        server = "git"
        tool = "log"
        on_crash = "fail"
        """
    )
    git, web = load_config(file).mcp_servers()
    assert (git.name, git.command, git.env, git.cwd) == (
        "git",
        ("git-mcp", "--quiet", "."),
        {"TOKEN": "t"},
        str(tmp_path / "sub"),
    )
    assert (git.tools, git.prefix, git.timeout_secs, git.url) == (("log", "push"), "git_", 30, None)
    assert (git.like.run, git.like.scheduling, git.like.on_crash) == ("unattended", "serial", "replay")
    assert (git.like.actions, web.like.actions) == (("spawn", "fetch", "apply", "abort"), ())
    assert {name: tool for name, (tool, _) in git.named.items()} == {"push": "push", "history": "log"}
    assert (git.named["push"][1].run, git.named["push"][1].actions) == ("ask", ("spawn", "abort"))
    assert git.named["history"][1].on_crash == "fail"
    assert (web.url, web.headers, web.timeout_secs, web.cwd) == (
        "https://example.org/mcp",
        {"Authorization": "Bearer t"},
        5,
        None,
    )


def test_P1_tools_of_servers_ask_unless_told(tmp_path: Path) -> None:
    file = tmp_path / "keephold.toml"
    file.write_text(SERVER)
    (server,) = load_config(file).mcp_servers()
    assert server.like.run == "ask"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[mcp.servers.a]", '1: mcp.servers.a: write either: `command = ["program", "argument"]` for a program'),
        (
            "[mcp.servers.a]\nurl = 'x'",
            '2: mcp.servers.a.url: must be an address like "https://example.org/mcp", not a',
        ),
        ("[mcp.servers.a]\ncommand = []", "2: mcp.servers.a.command: must be a program, or a list of it and its"),
        (
            "[mcp.servers.a]\ncommand = 'x'\nheaders = { a = 'b' }",
            "3: mcp.servers.a.headers: is for a server with a `url`",
        ),
        ("[mcp.servers.a]\nurl = 'http://x'\nargs = []", "3: mcp.servers.a.args: is for a server with a `command`"),
        ("[mcp.servers.a]\ncomand = 'x'", "2: mcp.servers.a.comand: unknown key; did you mean `command`?"),
        ("[mcp.server.a]\ncommand = 'x'", "1: mcp.server: unknown key; did you mean `servers`?"),
        ("[mcp.servers.'a b']\ncommand = 'x'", '1: mcp.servers."a b": a server\'s name has 1 to 64 characters'),
        (SERVER + "prefix = 'a.'", "3: mcp.servers.git.prefix: must be up to 32 characters of"),
        (SERVER + "timeout_secs = 0", "3: mcp.servers.git.timeout_secs: must be above 0, not 0"),
        (
            SERVER + "[conversation.tools.t]\nsource = 'mcp'\nserver = 'gti'",
            '5: conversation.tools.t.server: must be one of "git", not "gti"; did you mean "git"?',
        ),
        (
            SERVER + "[conversation.tools.t]\nsource = 'mcp'",
            "3: conversation.tools.t.server: missing; what would be right",
        ),
        (
            SERVER + "tools = ['a']\n[conversation.tools.t]\nsource = 'mcp'\nserver = 'git'",
            '4: conversation.tools.t.tool: `tools` in [mcp.servers.git] does not take "t"; add it there',
        ),
        (
            SERVER + "[conversation.tools.t]\nsource = 'mcp'\nserver = 'git'\ncommand = 'x'",
            '6: conversation.tools.t.command: has no meaning for source = "mcp": the server is started by',
        ),
        (
            SERVER + "[conversation.tools.t]\nsource = 'mcp'\nserver = 'git'\non_crash = 'external'",
            "6: conversation.tools.t.on_crash: a tool of a server takes no completion key",
        ),
        (
            "[conversation.tools.t]\nsource = 'local'\ncommand = 'x'\nserver = 'git'",
            '4: conversation.tools.t.server: has no meaning for source = "local": servers have the tools with',
        ),
    ],
)
def test_L4_mistakes_are_named_with_what_would_be_right(text: str, expected: str, tmp_path: Path) -> None:
    (found,) = problems(text, tmp_path)
    assert found.startswith(expected)


@pytest.mark.parametrize(
    "text",
    [
        "[mcp.servers.a]\ncommand = 'x'\nenv = { TOKEN = 12345678 }",
        "[mcp.servers.a]\nurl = 'http://x'\nheaders = { Authorization = 12345678 }",
        "[mcp.servers.a]\nurl = 12345678",
    ],
)
def test_K5_secrets_are_not_repeated(text: str, tmp_path: Path) -> None:
    assert "12345678" not in " ".join(problems(text, tmp_path))


def test_M6_two_servers_or_tools_of_one_name_are_refused() -> None:
    one, other = (keephold.mcp_server("a", command=[name]) for name in ("x", "y"))
    with pytest.raises(ConfigError, match="two MCP servers are named `a`"):
        keephold.Runtime(servers=[one, other])


def test_M6_a_named_tool_may_not_have_the_name_of_another(tmp_path: Path) -> None:
    @keephold.tool
    async def push() -> str:
        return ""

    file = tmp_path / "keephold.toml"
    file.write_text(SERVER + "[conversation.tools.push]\nsource = 'mcp'\nserver = 'git'")
    with pytest.raises(ConfigError, match="two tools are named `push`"):
        keephold.Runtime([push], config=file)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "give it either a `command`"),
        ({"command": ["x"], "url": "http://x"}, "give it either a `command`"),
        ({"command": "x y"}, "`command` must be a list of words"),
        ({"url": "ftp://x"}, "its url must begin with http:// or https://"),
        ({"command": ["x"], "timeout_secs": 0}, "timeout_secs must be above 0"),
    ],
)
def test_a_server_that_cannot_be_is_refused(options: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        keephold.mcp_server("a", **options)  # type: ignore[arg-type]
