"""A runtime whose models are offered all wait tools (K10)."""

from collections.abc import Iterable
from typing import Any

from keephold import Runtime, Tool
from keephold.tools.waiting import NAMES


def with_wait_tools(tools: Iterable[Tool] = (), **options: Any) -> Runtime:
    return Runtime(tools, builtins=NAMES, **options)
