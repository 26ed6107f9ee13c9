"""Calls of commands and terminals whose processes are kept (R7): their start in the keeper, their output, their end.

A kept process is a child of the keeper, and its output is in the spool at all times. Everything else of a call is as
for any other: `command.py` and `terminal.py` have one child, and this file is what they do differently to get it.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from keephold.errors import KeepholdError, ToolError
from keephold.handles.output import Output
from keephold.handles.state import Failure, error_of
from keephold.store.base import KeptOutput
from keephold.tools.base import Invocation, KeepingSink
from keephold.tools.keeper.children import Hooks, KeptProcess, KeptPty, ProcessEnd
from keephold.tools.keeper.client import Elsewhere, Keeper, Returned
from keephold.tools.keeper.record import KeptRecord, read_record
from keephold.tools.keeper.times import read_times, timeline
from keephold.tools.program import Program
from keephold.tools.session import Exit

_UNKNOWN = Exit(None, None)
_GRACE = 2.0
"""Seconds for a process to end by itself whose tool, and its own grace, are not known here."""
REPLY = b"reply:"
"""How the causes of a terminal's own replies begin."""
LOST = "The process of this call was lost: {reason}."
_NOT_KEPT = Failure("The runtime ended, and no process of this call was kept.", "crashed", transient=True)


def kept_output(directory: Path, record: KeptRecord) -> KeptOutput:
    """Describe the output of a kept process so far, as its files have it."""
    times = read_times(directory, record.uid)
    total = record.exit.total if record.exit is not None else max((each.total for each in times), default=0)
    known = timeline(times)
    try:
        size = (directory / record.uid).lstat().st_size
    except OSError:
        size = 0
    return KeptOutput(
        total=total,
        head=record.head,
        ring=record.ring,
        in_file=size,
        file=record.uid,
        times=b"" if known is None else known.dump(),
    )


def is_elsewhere(directory: Path, uid: str) -> bool:
    """Return whether the process of a call may run on another host."""
    record = read_record(directory, uid)
    return record is not None and record.exit is None and record.where == "other host"


async def end_kept(keeper: Keeper, uid: str, fence: int) -> bool:
    """End the process of a call, and return when it has ended; False if it may run on another host.

    Raises `KeepholdError` if its keeper does not answer, or another runtime has it.
    """
    over = asyncio.Event()
    hooks = Hooks(output=lambda _: None, exit=lambda _: over.set(), failed=lambda _: over.set(), displaced=over.set)
    found = await keeper.take_back(uid, fence, hooks)
    if isinstance(found, Returned):
        found.child.begin()
        found.child.end(_GRACE)
        await over.wait()
    return not isinstance(found, Elsewhere)


def _last_batch(known: Sequence[bytes]) -> list[bytes]:
    """Return those causes of the last input that are of one batch: only the last may be sent again."""
    causes = [cause for cause in known if not cause.startswith(REPLY)]
    return [cause for cause in causes if cause.split(b":")[:2] == causes[-1].split(b":")[:2]]


class Keeping:
    """One call and its kept process."""

    def __init__(
        self,
        program: Program,
        invocation: Invocation,
        sink: KeepingSink,
        *,
        printed: Callable[[int], None],
        exited: Callable[[Exit], None],
        closed: Callable[[], None],
    ) -> None:
        """`printed` gets the total of the output when that has grown. `exited` gets the end of a process that ended by
        itself or was ended by us; `closed` is called before any other end is reported to the sink."""
        assert program.guard is not None, "a program runs in a runtime, which gives it a guard"
        self.keeper = program.guard.keeper
        self._invocation = invocation
        self._sink = sink
        self._exited = exited
        self._closed = closed
        self._hooks = Hooks(output=printed, exit=self._ended, failed=self._failed, displaced=sink.lost)

    @property
    def output(self) -> Output:
        return self._sink.spooled()

    def options(self) -> dict[str, Any]:
        """Return the arguments with which `Keeper` starts the process. Raises `ToolError`."""
        tool = self._invocation.tool
        try:
            layout = self.output.follow()
        except OSError as error:
            raise ToolError(
                f"The command was not started: there can be no file for its output ({error}). Make room on the disk "
                "of the store.",
                code="command_not_started",
            ) from error
        return {
            "grace": tool.spawn.abort_grace_ms / 1000,
            "keep_secs": tool.keep_secs,
            "fence": self._invocation.fence,
            "layout": layout,
            "hooks": self._hooks,
        }

    async def take_back(self) -> KeptProcess | KeptPty | None:
        """Return the process, which an earlier runtime started; None if it has ended. Raises `KeepholdError`."""
        invocation = self._invocation
        found = await self.keeper.take_back(invocation.uid, invocation.fence, self._hooks)
        match found:
            case Returned(child=child, layout=layout):
                self.output.follow_again(layout)
                return child
            case ProcessEnd():
                self._ended(found)
            case None:
                self._lost(_NOT_KEPT)
            case Elsewhere(record=record):
                raise KeepholdError(f"it is kept on {record.host}", code="crashed")
        return None

    def _ended(self, end: ProcessEnd) -> None:
        self._sink.took(_last_batch(end.causes))
        self._sink.followed(end.total)
        self.output.unfollow()
        if end.reason:
            self._lost(Failure(LOST.format(reason=end.reason), "crashed", transient=True), end.exit)
        else:
            self._forget()
            self._exited(end.exit)

    def _failed(self, error: ToolError) -> None:
        """It was not started, or its keeper has died."""
        if error.code == "crashed":
            self._lost(error_of(error))
        else:
            self._closed()
            self._forget()
            self._sink.stop(error_of(error))
            self._sink.released()

    def _lost(self, error: Failure, how: Exit = _UNKNOWN) -> None:
        self._closed()
        self._forget()
        self._sink.crashed(error, exit_code=how.code, signal=how.signal)
        self._sink.released()

    def _forget(self) -> None:
        """Remove the files of the process that nobody needs once the store has the end of the call."""
        output = self.output
        self._sink.when_stored(lambda: self.keeper.forget(self._invocation.uid, output=not output.has_file))
