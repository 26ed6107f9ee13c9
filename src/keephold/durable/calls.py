"""The durable side of one call: its keys, its journal, its process (D1, E1, E8)."""

from collections.abc import Sequence

from keephold.durable.deferred import Pending, parking
from keephold.durable.effects import CallEffects, ProcessEvents
from keephold.durable.host import Host, Keys
from keephold.durable.journal import Journal
from keephold.durable.keys import Key
from keephold.durable.waits import Waits
from keephold.errors import KeepholdError, ToolError
from keephold.handles.registry import Registry
from keephold.ids import caller_of
from keephold.store.base import Entry, Parking
from keephold.tools.base import Invocation


class DurableCall:
    """The durable side of one call in one attempt."""

    __slots__ = ("_effects", "_host", "_invocation", "_waits", "journal", "key", "process", "taken")

    def __init__(self, host: Host, waits: Keys, invocation: Invocation, process: str | None) -> None:
        self._host = host
        self._waits = waits
        self._invocation = invocation
        self._effects: CallEffects | None = None
        self.process = process
        """The process that the call belongs to (E8)."""
        self.key: Key | None = None
        """The completion key, once it was taken."""
        self.taken = False
        """Whether the key was requested: from then on it may be in the store."""
        replays = invocation.tool.on_crash == "replay"
        self.journal = Journal(host, invocation.uid, invocation.fence, invocation.entries) if replays else None

    async def completion_key(self) -> Key:
        """Return the key that completes this call: the same one each time (D1)."""
        call = self._invocation
        self.taken = True
        if self.key is None:
            try:
                self.key = await self._waits.take(
                    call.uid, call.fence, call.conversation, "completion", parking=self._parking()
                )
            except KeepholdError:
                self.taken = False
                raise
        return self.key

    def _parking(self) -> Parking | None:
        tool = self._invocation.tool
        if tool.on_crash != "external":
            return None
        return parking(Pending(tool.deadline_secs), self._host.clock.now(), tool)

    def effects(self) -> CallEffects:
        """The durable effects of the call (E1)."""
        call = self._invocation
        if self.journal is None:
            raise ToolError(
                f'tool `{call.tool.name}` has no durable effects: declare them with @keephold.tool(on_crash="replay")',
                code="durable_effects_unavailable",
            )
        if not call.call_id:
            raise ToolError(
                "durable effects need a call with an id; give the ToolCall one", code="durable_effects_missing_call_id"
            )
        if self._effects is None:
            self._effects = CallEffects(
                self._host,
                self._waits,
                self.journal,
                uid=call.uid,
                fence=call.fence,
                conversation=call.conversation,
                process=self.process,
            )
        return self._effects

    def process_events(self) -> ProcessEvents:
        return ProcessEvents(self._host, self.process)

    @property
    def waits_in_effects(self) -> bool:
        """Whether the call waits for an event or sleeps (T1)."""
        return self._effects is not None and bool(self._effects.waits)


class Durability:
    """Keys and journals of one runtime."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.waits = Waits(registry)
        self.complete_url: str | None = None
        """Where keys are taken over HTTP, if anywhere: a wait is completed at `<complete_url>/<key>` (K2)."""

    def call(self, invocation: Invocation) -> DurableCall:
        handle = self.registry.loaded(invocation.uid)
        if handle is not None and handle.unwritten is not None:
            self.registry.write_down(handle)
        process = invocation.uid if invocation.stateful else None
        if process is None and handle is not None:  # its label is trusted, and the one that was sent is not
            process = caller_of(handle.conversation, handle.call_id)
        return DurableCall(self.registry, self.waits, invocation, process)

    async def entries(self, uid: str) -> Sequence[Entry]:
        """Return the journal of a call whose next attempt begins."""
        return await self.registry.store.journal(uid)
