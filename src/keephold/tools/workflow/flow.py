"""How the parts of the engine tell each other what happened: what a step ended with, and what ends more than a step."""

from dataclasses import dataclass
from typing import Any

from keephold.errors import ToolError
from keephold.tools.workflow.frame import Deadline


@dataclass(frozen=True, slots=True)
class Ended:
    """A step has ended, with a result or with an error. `at` is recorded, so a replay finds the same."""

    at: float
    result: Any = None
    error: ToolError | None = None
    skipped: bool = False


class Failure(Exception):
    """A step failed and nothing around it has handled that yet."""

    def __init__(self, error: ToolError) -> None:
        super().__init__(error.message)
        self.error = error


class Cut(Exception):
    """The time of somebody is up, who is this step or around it; that ends everything up to them."""

    def __init__(self, name: str, at: float) -> None:
        super().__init__(name)
        self.name = name
        self.at = at
        self.recorded = False
        """Whether the step that it hit is among the records."""


class LimitReached(Exception):
    """The run has reached one of its limits; nothing handles that."""

    def __init__(self, error: ToolError) -> None:
        super().__init__(error.message)
        self.error = error


def nearer(one: Deadline | None, other: Deadline | None) -> Deadline | None:
    """The deadline that comes first; of two at once the first."""
    if one is None or other is None:
        return one or other
    return other if other.at < one.at else one


def timed_out(seconds: float) -> ToolError:
    return ToolError(f"it timed out after {seconds * 1000:.0f} ms", code="timeout", transient=True)
