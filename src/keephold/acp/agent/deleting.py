"""The end of a session that its client deletes: what was kept of it ends, and what was said in it goes.

Conversations of its sub-agents go with it: nothing else would lead to them.
"""

from typing import TYPE_CHECKING

from keephold.handles.state import Error
from keephold.store.base import Forgotten, Store
from keephold.turn.closing import end_conversation
from keephold.turn.lineage import root_of

if TYPE_CHECKING:
    from keephold.runtime import Runtime

_PAGE = 1000
_ENDED = Error("Aborted: its session was deleted.", "aborted")


async def delete(runtime: "Runtime", session: str) -> None:
    """Let go of all that there is of a session that is not open. That there is none is no error."""
    registry = runtime.registry
    await end_conversation(registry, runtime.admission, session, _ENDED)
    conversations = await _below(registry.store, session)
    for conversation in conversations:  # of sub-agents that a crash has left
        await end_conversation(registry, runtime.admission, conversation, _ENDED)
    await registry.write([Forgotten(each) for each in (session, *conversations)])


async def _below(store: Store, session: str) -> list[str]:
    """The conversations of its sub-agents, and of theirs."""
    found: list[str] = []
    before: tuple[float, str] | None = None
    while page := await store.conversations(before=before, limit=_PAGE):
        found += [row.id for row in page if row.id != session and root_of(row.id) == session]
        before = page[-1].updated, page[-1].id
    return found
