"""Results that keephold reports: of a handle, of a turn, of a batch, of a resolved key, of a process."""

from keephold.durable.deferred import ResolveOutcome
from keephold.handles.state import Failure, Ok, PrintedOutput
from keephold.store.rows import ProcessEvent
from keephold.turn.ending import Ending
from keephold.turn.turn import OpenBatch

__all__ = ["Ending", "Failure", "Ok", "OpenBatch", "PrintedOutput", "ProcessEvent", "ResolveOutcome"]
