"""What a person sends to a handle of this runtime: input, keys, or the answer to its open question.

A person's act is an `apply` that no model made. It may answer what only a person may (Q4), and needs no permission.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from keephold.errors import ToolError
from keephold.handles.handle import Handle
from keephold.handles.question import Question, select_options
from keephold.handles.state import Reply, Waiting
from keephold.turn.slot import Slot, ToolCall

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
    """Send it; the handle's state when it has settled. Raises `ToolError` if it is refused. None closes its stdin.

    A `secret` is the answer to a question for one, or is not sent at all; so is what `answers` a question (`Slot`).
    """
    if given is UNSET and not keys:
        raise ToolError(
            "there is nothing to send: give a text or keys, or null to close its stdin", code="invalid_arguments"
        )
    if given is None and keys:
        raise ToolError("send either keys or the end of the input (null), not both", code="invalid_arguments")
    if keys and "keys" not in handle.tool.action_parameters.get("apply", {}):
        raise ToolError(
            f"tool `{handle.tool.name}` is no terminal and takes no keys; send a text", code="invalid_arguments"
        )
    if isinstance(handle.state, Waiting) and isinstance(given, str):
        given = read_answer(handle.state.question, given)
    slot = Slot(ToolCall(handle.call_id, handle.tool.name), 0)
    slot.tool, slot.action, slot.handle_id, slot.by = handle.tool, "apply", handle.id, "person"
    slot.secret, slot.answers = secret, answers
    slot.arguments = {"keys": list(keys)} if keys else {}
    if given is not UNSET:
        slot.arguments["input"] = given
    answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    actions.act(slot, handle, lambda reply: None if answered.done() else answered.set_result(reply))
    reply = await answered
    if reply.is_error:
        raise ToolError(reply.result, code=reply.code or "tool_error")
    return reply


def read_answer(question: Question, text: str) -> Any:
    """What a person typed, as an answer of the question's type; as it is where it is none."""
    said = text.strip()
    if question.answer_type == "Boolean":
        return _WORDS.get(said.lower(), text)
    options = select_options(question)
    if options is None:
        return text.removesuffix("\n")
    if said in options:
        return said
    return options[int(said) - 1] if said.isdecimal() and 1 <= int(said) <= len(options) else text
