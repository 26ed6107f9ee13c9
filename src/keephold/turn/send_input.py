"""Input that the user sends to a handle: text, keys, or the answer to its open question.

This is an `apply` that no model made. It may answer what only a person may (Q4), and needs no permission.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from keephold.errors import ToolError
from keephold.handles.handle import Handle
from keephold.handles.question import Question, form_of, select_options
from keephold.handles.state import Reply, Waiting

if TYPE_CHECKING:
    from keephold.turn.actions import Actions

_WORDS = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}


async def send(
    actions: "Actions",
    handle: Handle,
    given: Any | UnsetType,
    keys: Sequence[str] = (),
    *,
    secret: bool = False,
    answers: str | None = None,
) -> Reply:
    """Send input and return the handle's state when it has settled; None closes its stdin. Raises `ToolError`."""
    arguments: dict[str, Any] = {"keys": list(keys)} if keys else {}
    if given is not UNSET:
        arguments["input"] = given
    reply = await actions.perform(handle, "apply", arguments, by="person", secret=secret, answers=answers)
    if reply.is_error:
        raise ToolError(reply.result, code=reply.code or "tool_error")
    return reply


def read_input(handle: Handle, arguments: dict[str, Any]) -> dict[str, Any]:
    """Check what the user sends to a handle of this process; text becomes an answer of the open question's type."""
    if not arguments:
        raise ToolError(
            "there is nothing to send: give a text or keys, or null to close its stdin", code="invalid_arguments"
        )
    given, keys = arguments.get("input"), arguments.get("keys")
    if given is None and keys and "input" in arguments:
        raise ToolError("send either keys or the end of the input (null), not both", code="invalid_arguments")
    if keys and "keys" not in handle.tool.action_parameters.get("apply", {}):
        raise ToolError(
            f"tool `{handle.tool.name}` is not a terminal and takes no keys; send a text", code="invalid_arguments"
        )
    if isinstance(handle.state, Waiting) and isinstance(given, str):
        return {**arguments, "input": read_answer(handle.state.question, given)}
    return arguments


def read_answer(question: Question, text: str) -> Any:
    """Return the answer of the question's type that the text stands for, or the text itself."""
    said = text.strip()
    if question.answer_type == "Boolean":
        return _WORDS.get(said.lower(), text)
    options = select_options(question)
    if form_of(question) is not None:
        try:
            return msgspec.json.decode(said)
        except (msgspec.DecodeError, RecursionError):
            return text
    if options is None:
        return text.removesuffix("\n")
    if said in options:
        return said
    return options[int(said) - 1] if said.isdecimal() and 1 <= int(said) <= len(options) else text
