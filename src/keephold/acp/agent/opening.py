"""What there is of a session from before, read and, if its client wants that, shown again."""

from typing import TYPE_CHECKING

from keephold.acp.agent.calls import SHOWN
from keephold.acp.agent.ends import End, ended
from keephold.acp.agent.replay import Handles, Replayed, replay
from keephold.acp.wire import Peer
from keephold.handles.state import Stopped
from keephold.store.base import Record, Store

if TYPE_CHECKING:
    from keephold.agent.conversation import Conversation

_PAGE = 1000
_DRAIN = 100
"""Updates after which the client is waited for."""


async def shown_again(conversation: "Conversation", peer: Peer | None) -> Replayed:
    """Read the transcript of a conversation and show it to a client, if one is given."""
    runtime = conversation.runtime
    registry = runtime.registry

    def end(record: Record) -> End:
        assert isinstance(record.state, Stopped)
        handle = registry.revive(record)
        try:
            return ended(runtime.replies, handle, record.state, SHOWN)
        finally:
            if handle.output is not None:
                handle.output.close()

    turn = await registry.store.turn(conversation.id) if conversation.interrupted else None
    before = replay(
        await conversation.lines(),
        tool=runtime.toolbox.get,
        handles=await _handles(registry.store, conversation.id),
        end=end,
        interrupted=None if turn is None else turn.turn,
    )
    for at, update in enumerate(before.updates if peer is not None else ()):
        assert peer is not None
        peer.notify("session/update", {"sessionId": conversation.id, "update": update})
        if at % _DRAIN == _DRAIN - 1:
            await peer.drain()
    return before


async def _handles(store: Store, conversation: str) -> Handles:
    found: dict[tuple[str, int, int], Record] = {}
    after: str | None = None
    while page := await store.handles(conversation=conversation, stateful=None, after=after, limit=_PAGE):
        found.update(((record.turn, record.batch, record.position), record) for record in page)
        after = page[-1].uid
    return found
