"""Side questions to a model, beside the conversation (Q2, Q6, T2): the inquiry seam.

`Runtime(inquiry=…)` takes a coroutine function that gets an `Inquiry` and returns the JSON object the model answered
with, which keephold checks against `schema`. An exception counts as a failed inquiry.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec


class Inquiry(msgspec.Struct, frozen=True, kw_only=True):
    """One structured question to a model."""

    id: str
    """`<call_id>.<question_id>.<attempt>`, or `<turn>.end.<round>` at the end of a turn (Q6)."""
    purpose: Literal["question", "turn_end"]
    conversation: str
    turn: str
    text: str
    """The request, in words for the model."""
    schema: dict[str, Any]
    """JSON Schema of the answer, an object."""
    tool: str | None = None
    """The tool that asks, if one does."""
    handles: tuple[dict[str, Any], ...] = ()
    """At the end of a turn: the handles that still run, as T2 lists them."""
    assistant: Mapping[str, Any] = {}
    """Settings of the model to ask: the question's or tool's own over the conversation's."""


Inquire = Callable[[Inquiry], Awaitable[Any]]
"""Asks the model and returns its answer, decoded. Cancelled when the answer is no longer needed."""
