"""Finds and reads `keephold.toml`, and builds its tools (F, L4)."""

from keephold.config.build import build_tools, configure_builtin
from keephold.config.load import find_config, load_config
from keephold.config.model import Config

__all__ = ["Config", "build_tools", "configure_builtin", "find_config", "load_config"]
