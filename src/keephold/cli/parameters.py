"""Kinds of parameters whose values are refused before the command does anything."""

from typing import Any

import click


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
        from keephold.config.serve_rules import BASE, is_base  # takes a while

        url: str = super().convert(value, param, ctx)
        if not is_base(url):
            raise click.UsageError(f"{'' if param is None else param.opts[0]} {BASE}", ctx)
        return url


NAME = _Name()
ADDRESS = _Address()
