"""The rule of `[serve] url`, which is that of `--url`, too: an address that others are given, with a path after it."""

from collections.abc import Iterator

from holdfast.config.model import ServeSettings
from holdfast.config.rules import Problem

BASE = "must begin with http:// or https:// and name a host, like https://holdfast.example.org"


def serve_problems(serve: ServeSettings) -> Iterator[Problem]:
    """What is wrong with the table."""
    if serve.url is not None and not is_base(serve.url):
        yield ("serve", "url"), BASE


def is_base(url: str) -> bool:
    """Whether an address with a path after it is an address."""
    from holdfast.control.remote_requests import address  # takes a while, and few files have an address

    parts = address(url)
    return parts is not None and not parts.query and not parts.fragment
