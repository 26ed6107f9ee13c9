"""Kinds of parameters whose values are refused before the command does anything.

The configuration that a command uses: the option `--config`, else the keephold.toml found upwards from here.

Tokens as commands are given them: in `KEEPHOLD_TOKEN`, or in files. What cannot be one is refused, and never shown
(K5): it may be a token with a mistake in it, or something else that is secret.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from keephold.errors import ConfigError, KeepholdError


class _Name(click.types.StringParamType):
    """The name of a conversation. An empty one, of a variable that is not set, would mean none in one place and all of
    them in another."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        name: str = super().convert(value, param, ctx)
        if not name.strip():
            self.fail("it is empty; a conversation has a name", param, ctx)
        if any("\ud800" <= each <= "\udfff" for each in name):
            self.fail("it is not UTF-8", param, ctx)
        return name


class _Address(click.types.StringParamType):
    """An address that others are given, with a path after it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from keephold.config.values import BASE, is_base  # takes a while

        url: str = super().convert(value, param, ctx)
        if not is_base(url):
            raise click.UsageError(f"{'' if param is None else param.opts[0]} {BASE}", ctx)
        return url


NAME = _Name()
ADDRESS = _Address()


F = TypeVar("F", bound=Callable[..., Any])


def config_option(command: F) -> F:
    """The option `--config`."""
    return click.option(
        "--config",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="The configuration. Default: the keephold.toml found upwards from here.",
    )(command)


def the_config(path: Path | None) -> Path:
    """The file that is named, else the one found. Raises `ConfigError` that says how to get one if there is none."""
    from keephold.config import find_config

    path = path or find_config(Path.cwd())
    if path is None:
        raise ConfigError(
            ["no keephold.toml in this directory or above it; `keephold init` writes one, or name a file by --config"]
        )
    return path


TOKEN = "KEEPHOLD_TOKEN"
LEAST = 16
"""Characters of a token that nobody guesses."""
RIGHT = "a token is one line of visible ASCII characters"
_TOKEN = re.compile("[!-~]([ -~]*[!-~])?")
"""What goes through a header as it is."""


def is_token(text: str) -> bool:
    """Whether it can be sent as a token."""
    return _TOKEN.fullmatch(text) is not None


def check_own_token(token: str | None) -> None:
    """Raise `ConfigError` if a server's token can be guessed, or cannot be sent."""
    if token is not None and len(token) < LEAST:
        raise ConfigError([f"{TOKEN} has fewer than {LEAST} characters; put a long random one there"])
    if token is not None and not is_token(token):
        raise ConfigError([f"{TOKEN} has characters that no token has; {RIGHT}"])


def text_of(file: Path, option: str) -> str:
    """The text of a file that an option names. Raises `KeepholdError` if it cannot be read, or is none."""
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise KeepholdError(f"{option} `{file}` cannot be read: {why}", code="invalid_arguments") from None


def tokens_of(file: Path | None) -> dict[str, str]:
    """Tokens by principal, of a file of `principal token` lines."""
    known: dict[str, str] = {}
    for number, line in enumerate(text_of(file, "--tokens").splitlines() if file is not None else (), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        words = line.split()  # never shown: one of them is a secret (K5)
        if len(words) != 2 or words[0] in known:
            why = "a principal that was there before" if len(words) == 2 else "not a principal and a token"
            raise ConfigError([f"{file}, line {number}: {why}; each line is `principal token`, each principal once"])
        if not is_token(words[1]):
            raise ConfigError([f"{file}, line {number}: the token has characters that no token has; {RIGHT}"])
        known[words[0]] = words[1]
    return known
