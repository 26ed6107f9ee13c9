"""The rule of `[serve] url`, which is that of `--url`, too: an address that others are given, with a path after it."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from keephold.config.model import ServeSettings
from keephold.config.rules import Problem

BASE = "must begin with http:// or https:// and name a host, like https://keephold.example.org"


def serve_problems(serve: ServeSettings) -> Iterator[Problem]:
    """What is wrong with the table."""
    if serve.url is not None and not is_base(serve.url):
        yield ("serve", "url"), BASE


def is_base(url: str) -> bool:
    """Whether an address with a path after it is an address."""
    try:
        parts = urlsplit(url)
        there = parts.hostname is not None and parts.port != 0
    except ValueError:  # what is in brackets is no address, or the port no number
        return False
    plain = url.isprintable() and " " not in url
    return there and plain and parts.scheme in ("http", "https") and not parts.query and not parts.fragment
