"""Tokens as commands are given them: in `KEEPHOLD_TOKEN`, or in files. What cannot be one is refused, and never shown
(K5): it may be a token with a mistake in it, or something else that is secret.
"""

import re
from pathlib import Path

from keephold.errors import ConfigError, KeepholdError

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
