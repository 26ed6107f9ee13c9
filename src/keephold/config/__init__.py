"""Finds and reads `keephold.toml`, decides whether it may act, and builds its tools (F, L4, K7).

Names are imported at their first use: whether a file is trusted is known without the models of its tables.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keephold.config.build import build_tools, configure_builtin
    from keephold.config.load import load_config
    from keephold.config.model import Config
    from keephold.config.trust import find_config

__all__ = ["Config", "build_tools", "configure_builtin", "find_config", "load_config"]

_HOMES = {
    "Config": "model",
    "build_tools": "build",
    "configure_builtin": "build",
    "find_config": "trust",
    "load_config": "load",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module `keephold.config` has no `{name}`")
        value = globals()[name] = getattr(import_module(f"keephold.config.{_HOMES[name]}"), name)
        return value
