"""Checks values of `keephold.toml` that have a form of their own: sizes, addresses, names. Errors show a right one."""

import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, Field

from keephold.tools.environment import wrong_names

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def as_size(value: Any) -> Any:
    """Return the bytes of `"100MiB"`; numbers are checked later."""
    match = re.fullmatch(r"(\d+) ?([A-Za-z]+)", value) if isinstance(value, str) else None
    if match is not None and match[2] in _UNITS:
        return int(match[1]) * _UNITS[match[2]]
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError('must be a size like "100MiB" or "3GiB" (units: B, KiB, MiB, GiB, TiB), or a number of bytes')


def terminal_name(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"[!-.0-~]+", value):
        return value
    raise ValueError('must be the name of a kind of terminal, such as "xterm-256color" or "dumb"')


def question_target(value: Any) -> Any:
    if value in ("user", "assistant") or isinstance(value, dict):
        return value
    raise ValueError('must be "user", "assistant" or a table of model settings, which means the assistant')


def fixed_answer(value: Any) -> Any:
    if isinstance(value, bool | str | dict):
        return value
    raise ValueError("must be true or false, a string, or a table for a form: the answers a question can have")


def command_words(value: Any) -> Any:
    words = [value] if isinstance(value, str) else value
    if isinstance(words, list) and words and all(isinstance(word, str) for word in words) and words[0]:
        return value
    raise ValueError('must be a program, or a list of it and its arguments: ["program", "argument"]')


def variable_name(value: Any) -> Any:
    if wrong_names([value]) is None:
        return value
    raise ValueError('must be the name of an environment variable, such as "GITHUB_TOKEN"')


_HOST = re.compile(r"(\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", re.IGNORECASE)


def host_pattern(value: Any) -> Any:
    if isinstance(value, str) and _HOST.fullmatch(value):
        return value
    raise ValueError('must be a host, such as "api.example.com", "*.example.com" or "api.example.com:8443"')


def http_url(value: Any, example: str = "https://example.org/mcp") -> Any:
    if isinstance(value, str) and re.match("https?://[^/]", value):
        return value
    raise ValueError(f'must be an address like "{example}"')


def provider_url(value: Any) -> Any:
    return value if value is None else http_url(value, "https://models.example.org/v1")


def tool_prefix(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch("[A-Za-z0-9_-]{0,32}", value):
        return value
    raise ValueError("must be up to 32 characters of A-Z, a-z, 0-9, `_` and `-`, for it begins the names of tools")


def mime_or_schema(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"[a-z]+/[a-z0-9.+-]+", value):
        return value
    if isinstance(value, dict) and value.get("type") == "object":
        return value
    raise ValueError('must be a MIME type such as "image/png", or the JSON Schema of an object: type = "object", …')


_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


def tool_hints(value: Any) -> Any:
    if isinstance(value, dict) and all(
        isinstance(hint, bool) if name in _HINTS else isinstance(hint, str) and name in ("title", "kind")
        for name, hint in value.items()
    ):
        return value
    raise ValueError(f"must be a table of `title` and `kind`, which are strings, and of booleans: {', '.join(_HINTS)}")


def store_address(value: Any) -> Any:
    known = ("sqlite:///", "postgresql://", "postgres://")
    if value == "memory:" or (isinstance(value, str) and value.startswith(known)):
        return value
    raise ValueError('must be "memory:", "sqlite:///path" or "postgresql://user@host/database"')


def server_address(value: Any) -> Any:
    if isinstance(value, str) and re.fullmatch(r"([a-z0-9._-]+|\[[0-9a-f:.]+\]):[0-9]{1,5}", value, re.IGNORECASE):
        return value
    raise ValueError('must be a host and a port, such as "127.0.0.1:7233" or "temporal.example.org:7233"')


def tls_files(value: Any) -> Any:
    """Return the table; `true` is one without files, `false` is none."""
    if isinstance(value, bool):
        return {} if value else None
    if value is None or isinstance(value, dict | BaseModel):
        return value
    raise ValueError("must be true, false, or a table of files: ca_file, cert_file and key_file")


VariableNames = list[Annotated[str, BeforeValidator(variable_name)]]
Size = Annotated[int, BeforeValidator(as_size), Field(ge=1)]
Milliseconds = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


BASE = "must begin with http:// or https:// and name a host, like https://keephold.example.org"


def is_base(url: str) -> bool:
    """Return whether a path can be added to the address (`[serve] url`, `--url`)."""
    try:
        parts = urlsplit(url)
        there = parts.hostname is not None and parts.port != 0
    except ValueError:  # an invalid address in brackets, or an invalid port
        return False
    plain = url.isprintable() and " " not in url
    return there and plain and parts.scheme in ("http", "https") and not parts.query and not parts.fragment
