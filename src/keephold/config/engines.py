"""The engines of a configuration: `[engines.…]`."""

from pathlib import Path
from typing import TYPE_CHECKING

from keephold.config.model import Config
from keephold.extras import need

if TYPE_CHECKING:
    from keephold.engines.base import Engine
    from keephold.engines.temporal.client import Place


def engines_of(config: Config) -> "dict[str, Engine]":
    """Return the engines by name. Raises `KeepholdError` if the package of one is not installed."""
    if "temporal" not in config.engines:
        return {}
    place = temporal_place(config)
    from keephold.engines.temporal.client import Temporal

    return {"temporal": Temporal(place)}


def temporal_place(config: Config) -> "Place":
    """Return where `[engines.temporal]` is."""
    need("temporal", "[engines.temporal]", "temporalio")
    from keephold.engines.temporal.client import Place

    settings = config.engines["temporal"]
    directory = config.root
    tls = settings.tls

    def file(name: str | None) -> Path | None:
        return None if name is None else directory / name

    return Place(
        address=settings.address,
        namespace=settings.namespace,
        task_queue=settings.task_queue,
        tls=tls is not None,
        ca_file=file(tls.ca_file) if tls is not None else None,
        cert_file=file(tls.cert_file) if tls is not None else None,
        key_file=file(tls.key_file) if tls is not None else None,
        api_key_env=settings.api_key_env,
        ui=settings.ui,
    )
