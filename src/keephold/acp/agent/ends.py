"""What is told of a call that is over: whether it failed, in words, and as data."""

from typing import Any

import msgspec

from keephold.acp.agent.updates import fenced
from keephold.handles.handle import Handle
from keephold.handles.state import Error, Ok, Printed, Reply, Stopped
from keephold.turn.replies import Replies

End = tuple[bool, str, Any]
"""Whether it failed, the words, and the data (`rawOutput`)."""


def ended(replies: Replies, handle: Handle, state: Stopped, most: int) -> End:
    """The end of a handle. One that was aborted has failed, as ACP has no other word; the words say why."""
    never_ran = state.started is None
    if not handle.stateful:
        reply = replies.outcome(handle)
        failed = reply.is_error or never_ran or isinstance(state.outcome, Error)
        is_output = bool(reply.model) and not never_ran and handle.tool.source in ("local", "terminal")
        return failed, fenced(reply.model) if is_output else reply.model, response_output(reply.model)
    printed = replies.tail(handle, most)
    shown = fenced(printed) if printed else ""
    match state.outcome:
        case Error(message, code):
            return True, "\n\n".join(part for part in (message, shown) if part), {"error": message, "code": code}
        case Printed():
            return never_ran, shown, {"exit_code": state.exit_code}
        case Ok(value):
            said = replies.printed(handle)
            return never_ran, "\n\n".join(part for part in (shown, said) if part), value
        case Reply(_, model, is_error):
            return is_error or never_ran, model, response_output(model)


def response_output(text: str) -> Any:
    """What a model was answered, as data where it is an object or a list."""
    if text[:1] in ("{", "["):
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return text
    return text or None
