"""The configuration that a command uses: the option `--config`, else the keephold.toml found upwards from here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from keephold.errors import ConfigError

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
