"""Which handles a wait tool is about (W4, W7)."""

from collections.abc import Sequence

from keephold.errors import ToolError
from keephold.handles.handle import Handle
from keephold.tools.call import Call

_OURS = "call:"
"""How the ids of one-shot calls begin, those of `sleep` among them (S6, W1)."""


async def find_all(call: Call, ids: Sequence[str]) -> dict[str, Handle]:
    """The handles of these ids, each once. Raises one error that names every id that there is none of."""
    found: dict[str, Handle] = {}
    wrong: list[str] = []
    code = "handle_not_found"
    for id in dict.fromkeys(ids):
        try:
            found[id] = await find(call, id)
        except ToolError as error:
            wrong.append(error.message)
            code = error.code
    if wrong:
        raise ToolError(". ".join(wrong), code=code if len(wrong) == 1 else "handle_not_found")
    return found


async def find(call: Call, id: str) -> Handle:
    """The newest handle of the id, or the running `sleep` that `list_wait_handles` shows under it."""
    try:
        return await call.handles.find(id)
    except ToolError as error:
        timer = await _timer(call, id) if id.startswith(_OURS) else None
        if timer is not None:
            return timer
        raise in_our_words(id, error) from None


def named(call: Call, id: str) -> Handle:
    """The handle of the id that the call itself names (`Tool.names`), so that its batch has loaded it."""
    try:
        return call.handles.named(id)
    except ToolError as error:
        raise in_our_words(id, error) from None


def in_our_words(id: str, error: ToolError) -> ToolError:
    if error.code == "handle_expired":
        return ToolError(f"Wait handle {id} expired: it settled long ago and its result is gone", code=error.code)
    return ToolError(f"Wait handle {id} not found", code=error.code)


async def _timer(call: Call, id: str) -> Handle | None:
    registry = call._durability.registry
    timers = await registry.store.handles(
        conversation=call.conversation, kind="timer", status="pending", stateful=False, timers=True
    )
    record = next((each for each in reversed(timers) if each.id == id), None)
    return None if record is None else registry.adopt(record)
