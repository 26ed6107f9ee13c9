"""Messages between front end, engine and worker.

The engine carries the call to a worker (`EngineCall`), what its attempts find (`Given`) and how they end (`Report`).
Output, progress, questions and input take the channel, which is HTTP from the worker to the front end: `Talk` and
`TalkAnswer`. The channel's frames are numbered in each attempt, so that one that is sent twice counts once. Workers
also say which calls end, many in one request: `POST /engines/` takes a JSON object of the authority of each call by its
uid, and answers with the list of those that another front end has. That is a hint: the outcome is the engine's.
"""

import hashlib
import hmac
from typing import Any, Literal

import msgspec

from keephold.handles.state import Failure, Outcome

PATH = "/engines/"
"""Where a front end serves the channel: `POST /engines/<uid>`."""
ENDS_AT_ONCE = 1000
"""Calls in one message about ends. A front end refuses more: it looks up each call before it knows the sender."""
ENDS_BYTES = 256 << 10
"""The longest such message."""
ELSEWHERE = 421
"""Status of a front end that does not have the call: another one behind the same address may."""
REFUSES = "keephold-refuses"
"""Header of a front end's refusal. A proxy between may refuse a worker for reasons of its own, which end no call."""


class EngineCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call, as the engine gets it."""

    uid: str
    id: str
    tool: str
    arguments: dict[str, Any]
    call_id: str
    conversation: str
    turn: str
    stateful: bool
    secret_id: str
    secret: str
    """Signs the keys of this call, and nothing else; in hex."""
    url: str | None = None
    """Where front ends take the channel."""
    process: str | None = None
    retry_of: str | None = None
    repeats: bool = False
    """Whether it runs again if its worker dies."""

    @property
    def bearer(self) -> str:
        """The authority to use the channel."""
        return f"{self.secret_id}.{bearer(bytes.fromhex(self.secret))}"


def bearer(secret: bytes) -> str:
    """Return the authority to use the channel of the call that has this secret."""
    return hmac.new(secret, b"channel", hashlib.sha256).hexdigest()


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the journal in an engine. The value is JSON, or the hash of one that the front end's store has."""

    kind: Literal["step", "sleep", "event", "resolved"]
    """`resolved`: a resolution, in the pages of a large journal."""
    name: str
    digest: str = ""
    value: Any = None
    ok: bool = True
    stored: str | None = None


class Given(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state in which an attempt begins."""

    attempt: int
    lines: list[Line] | None = []
    """The journal; None if it is large: then it is read in pages, with the events."""
    events: dict[str, Any] = {}
    """Resolutions by the name of their event; `stored` instead of a large payload is its hash."""
    room: int = 1500
    """How many records the engine takes before the attempt must be suspended."""
    unsent: list[Any] = []
    """Frames of earlier attempts that perhaps no front end has taken, in the form of a report: this attempt sends them
    first."""
    failures: int = 0
    """How many attempts have failed."""
    deaths: float = 0
    """How many workers in a row have died or failed."""
    cancelled: bool = False
    """The call was aborted while it was suspended: its tool gets its cancellation when it waits again."""


# How an attempt ends


class Ended(msgspec.Struct, frozen=True, tag_field="report", tag="ended", omit_defaults=True):
    """The call has ended."""

    outcome: Outcome
    stored: str | None = None
    """The hash of the outcome, if it is large: then the front end's store has it."""
    crashed: bool = False
    """Its worker died (R1)."""
    unsent: list[Any] = []
    """Frames that perhaps no front end has taken, each with the attempt that made it and its number there."""


class Parked(msgspec.Struct, frozen=True, tag_field="report", tag="parked", omit_defaults=True):
    """The tool has returned `Pending`: the result comes from outside."""

    deadline: float | None = None
    on_timeout: Literal["error_as_result", "fail_turn"] = "error_as_result"
    on_cancel: Literal["cancel_external_work", "ignore"] = "cancel_external_work"
    unsent: list[Any] = []


class Suspended(msgspec.Struct, frozen=True, tag_field="report", tag="suspended", omit_defaults=True):
    """The call only waits: it continues when one of the events has come, or at the time of day `due`."""

    awaiting: list[str] = []
    due: float | None = None
    unsent: list[Any] = []


class Again(msgspec.Struct, frozen=True, tag_field="report", tag="again", omit_defaults=True):
    """The attempt has failed; the next one begins after a delay in seconds (R5)."""

    delay: float
    error: Failure
    unsent: list[Any] = []


Report = Ended | Parked | Suspended | Again


# Frames of the channel


class Output(msgspec.Struct, frozen=True, tag_field="frame", tag="out"):
    data: bytes


class Progressed(msgspec.Struct, frozen=True, tag_field="frame", tag="progress"):
    done: float
    total: float | None = None
    message: str | None = None


class Reading(msgspec.Struct, frozen=True, tag_field="frame", tag="reading"):
    """The tool waits for input, or does not. `inputs`: how many it has got."""

    yes: bool
    inputs: int = 0


class Waiting(msgspec.Struct, frozen=True, tag_field="frame", tag="wait"):
    """The call waits in its effects, or does not."""

    yes: bool


class Asking(msgspec.Struct, frozen=True, tag_field="frame", tag="ask"):
    """A question. `name` is that of its record; None if the answer is not recorded."""

    number: int
    name: str | None
    question: dict[str, Any]


class Withdrawn(msgspec.Struct, frozen=True, tag_field="frame", tag="withdraw"):
    """The open question is withdrawn."""


class Showing(msgspec.Struct, frozen=True, tag_field="frame", tag="show"):
    path: str
    old: str | None
    new: str


class Emitting(msgspec.Struct, frozen=True, tag_field="frame", tag="emit"):
    """An event of the call's process. One with a name counts once in all attempts (E8)."""

    name: str | None
    type: str
    payload: Any = None


class Taking(msgspec.Struct, frozen=True, tag_field="frame", tag="take"):
    """The call has made a key for itself."""

    kind: Literal["completion", "event"]
    name: str = ""


class Suspending(msgspec.Struct, frozen=True, tag_field="frame", tag="suspend"):
    """Nothing of the call runs until it is woken."""


Kept = Output | Showing | Emitting | Taking
"""Frames that count although their attempt is over."""


class Carried(msgspec.Struct, frozen=True, tag_field="frame", tag="carried"):
    """A frame of an earlier attempt, whose worker does not know whether a front end has it."""

    attempt: int
    number: int
    content: Kept


Frame = Kept | Progressed | Reading | Waiting | Asking | Withdrawn | Suspending | Carried


def origin(attempt: int, number: int, frame: Frame) -> tuple[int, int, Frame]:
    """Return the attempt that made a frame, the number of the frame there, and the frame itself."""
    return (frame.attempt, frame.number, frame.content) if isinstance(frame, Carried) else (attempt, number, frame)


class Talk(msgspec.Struct, frozen=True, omit_defaults=True):
    """Frames of a worker, and how much it knows already."""

    attempt: int
    first: int = 1
    """The number of the first frame."""
    frames: list[Frame] = []
    inputs: int = 0
    """How many inputs of `apply` it has got."""
    ask: int | None = None
    """The number of its open question."""
    wait: float = 0
    """Seconds in which the front end may answer later, if it has nothing to say."""
    value: Any = msgspec.UNSET
    """A value to be stored, instead of frames."""
    fetch: str | None = None
    """The hash of a stored value that is wanted."""


class TalkAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The front end's answer."""

    received: int = 0
    """The number of the last frame that it has."""
    epoch: str = ""
    """Another one than before: the front end knows nothing of an open question, or whether input is read."""
    inputs: list[Any] = []
    answer: Outcome | None = None
    end: float | None = None
    """The call is being ended, with that many seconds of grace."""
    stored: str | None = None
    value: Any = None


class Lost(Exception):
    """The attempt is not the current one: nothing that it does counts."""
