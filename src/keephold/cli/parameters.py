"""Options that several commands share, and kinds of values that are refused before a command does anything.

A value that cannot be a token is refused without being shown (K5): it may be a token with a mistake in it.
"""

import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from keephold.errors import ConfigError, KeepholdError
from keephold.platforms import machine
from keephold.text import exact_line

if TYPE_CHECKING:
    from keephold.config import Config

TOKEN = "KEEPHOLD_TOKEN"
LEAST = 16
"""The shortest token that nobody guesses, in characters."""
CLIENT_PROMPTS = "prompts=client"
"""In the line of a principal: the client's user, not the owner, decides the principal's prompts."""
RIGHT = "a token is one line of visible ASCII characters"
_TOKEN = re.compile("[!-~]([ -~]*[!-~])?")  # an HTTP header carries these characters unchanged


class _Name(click.types.StringParamType):
    """The name of a conversation. An empty one, from a variable that is not set, would mean none in one command and all
    of them in another."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name: str = super().convert(value, param, ctx)
        if not name.strip():
            self.fail("it is empty; a conversation has a name", param, ctx)
        if any("\ud800" <= each <= "\udfff" for each in name):
            self.fail("it is not UTF-8", param, ctx)
        return name


class _Address(click.types.StringParamType):
    """The address of a server, to which paths are added."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from keephold.config.values import BASE, is_base  # slow to import

        url: str = super().convert(value, param, ctx)
        if not is_base(url):
            raise click.UsageError(f"{'' if param is None else param.opts[0]} {BASE}", ctx)
        return url


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_OLDEST = 100 * 365 * 86_400
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)")


def age(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Return the seconds of an age such as `12h`."""
    if value is None:
        return None
    found = _AGE.fullmatch(value.strip())
    if found is None:
        raise click.BadParameter("an age such as `90s`, `30m`, `12h` or `7d`", context, parameter)
    seconds = float(found[1]) * _UNITS[found[2] or "s"]
    if seconds > _OLDEST:
        raise click.BadParameter("an age of 100 years at most", context, parameter)
    return seconds


NAME = _Name()
ADDRESS = _Address()

config_option = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Use this configuration, which needs no `keephold trust`. Default: the keephold.toml of this directory or the "
    "nearest one above it, else the one in ~/.config/keephold.",
)


def _names(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Return the names of built-ins in a list with commas."""
    if value is None:
        return None
    from keephold.tools.builtin import NAMES, unknown_builtins  # slow to import

    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if unknown := unknown_builtins(names):
        raise click.BadParameter(f"there is no built-in `{unknown[0]}`; use *, {', '.join(NAMES)}", ctx, param)
    return names


builtins_option = click.option(
    "--builtins",
    metavar="NAMES",
    callback=_names,
    help="Offer MCP clients these built-in tools, separated by commas; `*`: all. Default: [mcp] builtins, else those "
    "that can be used here.",
)
conversation_option = click.option(
    "--conversation", metavar="C", type=NAME, help="Look only in this conversation; needed if several have the ID."
)
mcp_conversation_option = click.option(
    "--conversation",
    metavar="C",
    type=NAME,
    help="Keep the handles of all clients in this conversation; those of a principal in C:PRINCIPAL. Default: one for "
    "each client and directory on stdio, `mcp` and `mcp:PRINCIPAL` over HTTP.",
)
detached_option = click.option(
    "--detached", is_flag=True, help="Ask nobody, even if a terminal is there; `detached` decides instead."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
json_lines_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")


model_option = click.option(
    "--model",
    metavar="M",
    envvar="KEEPHOLD_MODEL",
    help="Use this model, `provider:name`. Default: $KEEPHOLD_MODEL, else the one of keephold.toml.",
)


def near(word: str, known: Collection[str]) -> str:
    """Return the sentence for an unknown word: the nearest known one, else all of them."""
    from difflib import get_close_matches  # slow to import

    found = get_close_matches(word, [*known], n=1)
    return f"Did you mean `{found[0]}`?" if found else f"There are: {', '.join(known)}."


def no_config() -> str:
    """Return the line that says where a configuration was looked for, and how to get one (M7)."""
    where = f"in {exact_line(str(Path.cwd()))} or above it, nor in ~/.config/keephold"
    return f"there is no keephold.toml {where}; `keephold init` writes one, or name a file by --config"


def tell_source(config: "Config") -> None:
    """Print the one line of a host's log that says which file was found, or where none was (M7)."""
    found = config.source
    click.echo(no_config() if found is None else f"using {exact_line(str(found.path))}", err=True)


def the_config(path: Path | None, *, ask: bool = True) -> "Config":
    """Return the configuration of the file that is named, else of the one found, if the user trusts it (K7); the
    defaults if there is no file. Raise `ConfigError` if they do not trust it; with `ask`, they are asked first at a
    terminal."""
    from keephold.config import Config
    from keephold.config.load import load_config
    from keephold.config.trust import find

    if path is not None:
        return load_config(path)
    found = find(Path.cwd())
    if found is None:
        return Config()
    from keephold.cli.trust import trusted_config

    return trusted_config(found, ask=ask)


def config_unasked(path: Path | None, start: Path | None = None) -> "tuple[Config, str]":
    """Return the configuration of the file that is named, else of the one found from `start` (default: the working
    directory), and why a found file is ignored. The user's own file counts where there is none or it is ignored, else
    the defaults do."""
    from keephold.config import Config
    from keephold.config.load import load_config
    from keephold.config.trust import find_usable

    if path is not None:
        return load_config(path), ""
    found, left = find_usable(start or Path.cwd())
    config = Config() if found is None else load_config(found.path, found.data)
    if left is None:
        return config, ""
    from keephold.cli.trust import ignored

    return config, ignored(left)


def is_token(text: str) -> bool:
    """Return whether the text can be sent as a token."""
    return _TOKEN.fullmatch(text) is not None


def check_own_token(token: str | None) -> None:
    """Raise `ConfigError` if a server's token can be guessed, or cannot be sent."""
    if token is not None and len(token) < LEAST:
        raise ConfigError([f"{TOKEN} has fewer than {LEAST} characters; put a long random one there"])
    if token is not None and not is_token(token):
        raise ConfigError([f"{TOKEN} has characters that no token has; {RIGHT}"])


def text_of(file: Path, option: str) -> str:
    """Return the text of a file that an option names. Raise `KeepholdError` if it cannot be read or is not text."""
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise KeepholdError(f"{option} `{file}` cannot be read: {why}", code="invalid_arguments") from None


class Principals(NamedTuple):
    """The principals of a `--tokens` file."""

    tokens: dict[str, str]
    """By principal."""
    client_prompts: frozenset[str]
    """The principals whose own client asks their user for permission (K9)."""


def tokens_of(file: Path | None) -> Principals:
    """Return the principals of a file of lines `principal token`, some with a third word, `prompts=client`,
    which others cannot read."""
    known: dict[str, str] = {}
    client_prompts: set[str] = set()
    if file is not None and not machine.is_private(file.stat()):
        raise ConfigError([f"--tokens `{file}` can be read by others, who could use the server: chmod 600 {file}"])
    for number, line in enumerate(text_of(file, "--tokens").splitlines() if file is not None else (), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        words = line.split()  # never shown: one of them is a secret
        if words[2:] == [CLIENT_PROMPTS]:
            client_prompts.add(words[0])
            del words[2]
        if len(words) != 2 or words[0] in known:
            why = "a principal that was there before" if len(words) == 2 else "not a principal and a token"
            right = f"each line is `principal token` or `principal token {CLIENT_PROMPTS}`, each principal once"
            raise ConfigError([f"{file}, line {number}: {why}; {right}"])
        if not is_token(words[1]):
            raise ConfigError([f"{file}, line {number}: the token has characters that no token has; {RIGHT}"])
        known[words[0]] = words[1]
    return Principals(known, frozenset(client_prompts))


def text_of_stdin(limit: int) -> str:
    """Return the text of stdin. Raise `UsageError` if it is longer than this."""
    data = sys.stdin.buffer.read(limit + 1)
    if len(data) > limit:
        raise click.UsageError(f"stdin holds more than {limit} bytes; send less at once")
    return data.decode(errors="surrogateescape")
