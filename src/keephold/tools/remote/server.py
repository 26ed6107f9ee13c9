"""`keephold.mcp_server(…)`: an MCP server whose tools become tools of a runtime, with their policies.

A server is a program on pipes (`command`) or a service at an address (`url`). Its environment, headers and address may
hold secrets, so they are left out wherever a server is shown.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

from keephold.errors import ConfigError, MissingExtra, ToolError
from keephold.extras import MCP, SERVE, need
from keephold.platforms import machine
from keephold.tools.base import ACTIONS, Invocation, Live, RunMode, Sink, Tool
from keephold.tools.environment import passed, wrong_names
from keephold.tools.remote.login import LoginFile


def need_mcp(extra: str = "mcp") -> None:
    """Raise an error that names the missing extra if `mcp` is not installed in a version that can be used."""
    need(extra, "MCP", *(SERVE if extra == "serve" else MCP))
    if (found := version("mcp")).partition(".")[0] != "2":
        raise MissingExtra(
            f"MCP needs mcp 2, but mcp {found} is installed: pip install 'keephold[{extra}]' in another environment"
        )


class NotMade:
    """A runtime for patterns, which hold policies and are not tools themselves."""

    def start(self, invocation: Invocation, sink: Sink) -> Live:
        raise ToolError(f"`{invocation.tool.name}` is a pattern of tools, not one", code="unknown_tool")


def pattern(run: RunMode = "ask", stateful: bool = False) -> Tool:
    """Return the default policies of a server's tools: they ask before they run (P1), and a task of the server is
    followed further after a crash.
    """
    actions = ACTIONS if stateful else ()
    return Tool(name="", runtime=NotMade(), source="mcp", actions=actions, run=run, on_crash="replay")


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """An MCP server and the policies of its tools. Made by `keephold.mcp_server` or from the configuration."""

    name: str
    command: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    pass_env: tuple[str, ...] = field(default=(), repr=False)
    """Variables of our environment that its program gets, besides the few that every program needs."""
    cwd: str | None = None
    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    login: LoginFile | None = field(default=None, repr=False)
    """The user's login, for a server that needs one (OAuth)."""
    timeout_secs: float = 30
    """Seconds for connecting and listing its tools."""
    tools: tuple[str, ...] | None = None
    """The tools to use; None: all."""
    prefix: str = ""
    like: Tool = field(default_factory=pattern, repr=False)
    """The policies of tools without settings of their own."""
    named: Mapping[str, tuple[str, Tool]] = field(default_factory=dict, repr=False)
    """Tools with settings of their own: our name → the server's, and the policies."""

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise ConfigError([f"MCP server `{self.name[:100]}`: {problem}" for problem in problems])

    def _problems(self) -> list[str]:
        found = []
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", self.name):
            found.append("its name must be 1 to 64 characters of A-Z, a-z, 0-9, `_` and `-`")
        if bool(self.command) == (self.url is not None):
            found.append('give it either a `command`, such as ["program", "argument"], or a `url`')
        if self.command and machine.no_programs:
            found.append(machine.no_programs)
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            found.append("its url must begin with http:// or https://")
        if not self.timeout_secs > 0:
            found.append(f"timeout_secs must be above 0, not {self.timeout_secs!r}")
        return found

    @property
    def place(self) -> tuple[object, ...]:
        """Its address: two servers with the same one are the same server."""
        return self.command, self.env, self.pass_env, self.cwd, self.url, self.headers, self.login

    def without_secrets(self, text: str) -> str:
        """Return the text with the server's possible secrets masked (K5)."""
        secret = {
            *self.env.values(),
            *passed(self.pass_env).values(),
            *self.headers.values(),
            *(() if self.url is None else (self.url,)),
            *(() if self.login is None else self.login.seen),
        }
        for value in sorted((each for each in secret if len(each) > 3), key=len, reverse=True):
            text = text.replace(value, "***")
        return text


def mcp_server(
    name: str,
    *,
    command: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    pass_env: Sequence[str] = (),
    cwd: str | None = None,
    url: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_secs: float = 30,
    tools: Sequence[str] | None = None,
    prefix: str = "",
    run: RunMode = "ask",
    stateful: bool = False,
) -> McpServer:
    """Make an MCP server for `Runtime(servers=[…])`: a program to start (`command`) or a service over HTTP (`url`).

    `tools` are the names of the tools to use, `prefix` is put before their names. `timeout_secs` limits connecting and
    listing, not calls. A program gets `env`, the variables that `pass_env` names, and HOME, LOGNAME, PATH, SHELL, TERM
    and USER. `run` says whether calls need permission. With `stateful`, models can spawn the tools; otherwise calls are
    one-shot. Settings of single tools are written in a configuration file.
    """
    if isinstance(command, str):
        raise ConfigError([f'MCP server `{name}`: `command` must be a list of words, such as ["program", "argument"]'])
    wrong = wrong_names(pass_env)
    if wrong is not None:
        raise ConfigError([f"MCP server `{name}`: `pass_env` {wrong}"])
    return McpServer(
        name=name,
        command=tuple(command),
        env=dict(env or {}),
        pass_env=tuple(pass_env),
        cwd=cwd,
        url=url,
        headers=dict(headers or {}),
        timeout_secs=timeout_secs,
        tools=None if tools is None else tuple(tools),
        prefix=prefix,
        like=pattern(run, stateful),
    )
