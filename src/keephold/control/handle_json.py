"""A handle as JSON, and why it has not started: `ps`, `show`, `/api` and the dashboard use the same words.

The API's OpenAPI schemas are derived from the structs. Text of tools, models and users may contain keys; here each key
is replaced by its id (K5).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import astuple

from keephold.durable.keys import masked
from keephold.handles.facts import NOTHING, Fact
from keephold.handles.gate import LANE_POST, RESOURCE
from keephold.handles.handle import Handle, HandleInfo, info_in
from keephold.handles.question import Question, question_key
from keephold.handles.state import Failure, Outcome, PendingState, Progress, Running, Stopped, Waiting
from keephold.store.base import ENGINE_AT, Allowed, Entry, HandleQuery, Kind, ProcessEvent, Record, Store, WaitRow
from keephold.text import as_text, plain, printable, time_of_day
from keephold.tools.keeper.record import read_record

if TYPE_CHECKING:
    from keephold.handles.output import Output

Seconds = Annotated[float, msgspec.Meta(description="Seconds since 1970.")]
MaybeSeconds = Annotated[float | None, msgspec.Meta(description="Seconds since 1970.")]
Owner = Literal["alive", "gone", None]
"""Whether the process that runs it is alive; None if no process does."""

_MESSAGE = 200
"""Characters of an error in a list."""
_LINE_BYTES = 2048
"""How far back the last line of an output is searched for."""
_LINE = 300
"""Characters of the last line."""


class Shape(msgspec.Struct):
    """A JSON object of the API."""


class OpenQuestion(Shape):
    """A question with all its fields."""

    id: str
    key: str | None
    """Which question of its call it is; None if that is not known here."""
    text: str
    pre_amble: str | None
    answer_type: Any
    default: Any
    secret: bool


class KeptBy(Shape):
    """A process that survives its runtime. The times are null while a runtime has it."""

    host: str
    since: Annotated[float | None, msgspec.Meta(description="Since when no runtime has it, in seconds since 1970.")]
    until: Annotated[float | None, msgspec.Meta(description="When it is ended, unless a runtime takes it back.")]


class HandleRef(Shape):
    """A handle by its names."""

    id: str
    uid: str


class HeldUp(Shape):
    """Why a pending handle has not started, and the handles in front of it, as far as they are known."""

    by: Annotated[
        Literal["permission", "lane", "resource", "slot"],
        msgspec.Meta(description="An open prompt, the serial lane, a resource, or a limit on how many run at once."),
    ]
    name: Annotated[
        str | None,
        msgspec.Meta(
            description="The id of the prompt, the resource, or the limit: `tool:NAME`, `agent:ID`, `runtime`."
        ),
    ]
    behind: list[HandleRef]
    count: Annotated[int, msgspec.Meta(description="How many handles are in front of it.")]


class HandleGlance(Shape, kw_only=True):
    """A handle in a list. Responses of a server always have the fields from `here` on."""

    id: str
    uid: str
    tool: str
    kind: Kind
    conversation: str
    turn: str
    stateful: bool
    state: Literal["pending", "running", "waiting", "stopped"]
    parked: bool
    suspended: Annotated[bool, msgspec.Meta(description="It runs on an engine and only waits: no worker has it.")]
    ready: bool
    owner: Owner
    kept: KeptBy | None
    attempt: int
    next_attempt_at: MaybeSeconds
    priority: int
    created: Seconds
    started: MaybeSeconds
    stopped: MaybeSeconds
    deadline: MaybeSeconds
    ok: bool | None
    ended_by: str | None
    code: str | None
    message: str | None
    progress: dict[str, Any] | None
    question: OpenQuestion | None
    held_up: Annotated[list[HeldUp], msgspec.Meta(description="Why a pending handle has not started.")]
    here: bool | UnsetType = UNSET
    terminal: bool | UnsetType = UNSET
    last_line: str | UnsetType | None = UNSET
    output_bytes: int | UnsetType | None = UNSET
    lingering: bool | UnsetType = UNSET
    driver: Literal["person", None] | UnsetType = UNSET
    reading: bool | UnsetType = UNSET


class CallGlance(HandleGlance, kw_only=True):
    """A call of a conversation, spawned or one-shot."""

    batch: int
    position: int
    call_id: str
    waits_on: list[str]
    serial: bool


class JournalEntry(Shape):
    """A recorded step: its input and its result. Of kind `attempt`: why an attempt failed that was retried."""

    kind: str
    name: str
    ok: bool
    input: Any
    value: Any
    at: Annotated[
        float | None,
        msgspec.Meta(description="When it was recorded, in seconds since 1970; null if that is not kept any more."),
    ] = None


class EmittedEvent(Shape):
    """An event of a process, which a tool has emitted: its own call, or one in the workflow or agent."""

    sequence: int
    type: str
    payload: Any
    at: Seconds


class OpenWait(Shape):
    """An outside result that a call waits for, without its key."""

    kind: str
    name: str
    key_id: str
    resolution: Any
    revoked: bool


class OutputSize(Shape):
    bytes: int
    tail: str | UnsetType = UNSET


class AllowedBy(Shape):
    """The permission with which a call ran: of the configuration (`run = "unattended"`), of its conversation (mode
    `unattended`), of `detached = "auto"`, of the user, or a standing permission. `unknown`: it was not recorded."""

    by: Literal["configuration", "conversation", "detached", "standing", "user", "unknown"]
    at: MaybeSeconds
    who: str | None
    permission: str | None


class HandleDetails(HandleGlance, kw_only=True):
    """A handle in full. `allowed_by` is null while it has not started."""

    call_id: str
    batch: int
    position: int
    resources: list[str]
    metadata: dict[str, Any]
    arguments: Any
    allowed_by: AllowedBy | None
    asked: MaybeSeconds
    outcome: dict[str, Any] | None
    exit_code: int | None
    signal: int | None
    on_timeout: str | None
    on_cancel: str | None
    waits: list[OpenWait]
    keys: dict[str, str] | UnsetType = UNSET
    waits_for_resume: Annotated[bool, msgspec.Meta(description="Its process died; resuming its turn runs it again.")]
    deaths: Annotated[int, msgspec.Meta(description="Processes that died while they ran it, without progress since.")]
    standing: Annotated[
        str | None, msgspec.Meta(description="`queued`: resumed calls start one at a time, and it is not its turn yet.")
    ]
    retry_of: Annotated[str | None, msgspec.Meta(description="The uid of the call that it repeats.")]
    retried_by: Annotated[
        str | None, msgspec.Meta(description="The uid of its newest retry, if no later handle has the id.")
    ]
    ui: Annotated[
        str | None, msgspec.Meta(description="The address of the page about it in the engine that runs it.")
    ] = None
    holds_up: Annotated[list[HandleRef], msgspec.Meta(description="Handles of its process that wait behind it.")] = []
    journal: list[JournalEntry]
    journal_entries: int
    process_events: Annotated[list[EmittedEvent], msgspec.Meta(description="The last ones; `sequence` counts from 1.")]
    output: OutputSize | UnsetType | None = UNSET


def as_json(shape: msgspec.Struct) -> dict[str, Any]:
    """Return a struct as JSON."""
    found: dict[str, Any] = plain(shape)
    return found


def is_parked(record: Record) -> bool:
    """Whether it waits for an outside result (D9)."""
    return record.parking is not None and record.owner is None and not isinstance(record.state, Stopped)


def is_suspended(record: Record) -> bool:
    """Whether it waits in its engine, without a worker."""
    at = (record.metadata or {}).get(ENGINE_AT) or [False]
    return bool(at[-1]) and not is_parked(record) and not isinstance(record.state, Stopped)


def owner_of(store: Store, record: Record) -> Owner:
    """Return whether the process that runs it is alive; None if it is parked or has stopped."""
    if record.owner is None or isinstance(record.state, Stopped):
        return None
    return "alive" if store.alive(record.owner) else "gone"


def kept_by(store: Store, record: Record) -> KeptBy | None:
    """Return who keeps the process of a call that runs; None if it ends with its runtime (R7)."""
    if store.directory is None or record.owner is None or not record.stateful or isinstance(record.state, Stopped):
        return None
    found = read_record(store.directory, record.uid)
    if found is None or found.exit is not None:
        return None
    since = None if found.until is None else found.until - found.keep_secs
    return KeptBy(found.host, since, found.until)


def info_of(record: Record) -> HandleInfo:
    """Describe a stored handle as `Handle.info` describes one that runs."""
    return info_in(
        record,
        tool=record.tool,
        parked=is_parked(record),
        ready=record.ready == record.attempt and not isinstance(record.state, Stopped),
        deadline=record.parking.deadline if record.parking is not None and is_parked(record) else None,
        output_bytes=record.output.total if record.output is not None else 0,
    )


_AS_IN_INFO = tuple(
    name
    for name in HandleInfo.__struct_fields__
    if name in HandleGlance.__struct_fields__[: HandleGlance.__struct_fields__.index("here")]
    and name not in ("progress", "question")
)


def glance(store: Store, record: Record, fact: Fact = NOTHING) -> HandleGlance:
    """Describe a handle for a list, from its row and what the process that runs it has posted about it."""
    info = info_of(record)
    error = info.outcome if isinstance(info.outcome, Failure) else None
    state = record.state
    return HandleGlance(
        **{name: getattr(info, name) for name in _AS_IN_INFO},
        stateful=record.stateful,
        suspended=is_suspended(record),
        owner=owner_of(store, record),
        kept=kept_by(store, record),
        ok=info.ok if info.outcome is not None else None,
        code=error.code if error else None,
        message=_short(masked(error.message)) if error else None,
        progress=progress_json(fact.progress or info.progress),
        question=open_question(state.question, state.number) if isinstance(state, Waiting) else None,
        held_up=[],
        lingering=fact.lingering,
        driver=fact.driver,
    )


def live_fields(handle: Handle | None, fact: Fact = NOTHING) -> dict[str, Any]:
    """Return the fields that only a runtime knows; `handle` is None if this runtime does not run it, and `fact` is what
    another process has posted about it."""
    here = handle is not None and handle.active and handle.run is not None
    output = handle.output if handle is not None else None
    added: dict[str, Any] = {
        "here": here,
        "terminal": handle is not None and handle.tool.source == "terminal",
        "last_line": last_line(output) if output is not None else None,
        "output_bytes": output.total if output is not None else None,
        "lingering": (handle is not None and handle.lingering) or fact.lingering,
        "driver": handle.driver if handle is not None else fact.driver,
        "reading": handle is not None and handle.reading and isinstance(handle.state, Running),
    }
    if handle is not None and handle.progress is not None:
        added["progress"] = progress_json(handle.progress)
    if handle is not None and here:
        added["deadline"] = handle.info().deadline
    return added


_AS_IN_RECORD = ("call_id", "batch", "position", "deaths", "standing", "retry_of")


def details(
    shown: HandleGlance, record: Record, waits: list[WaitRow], journal: list[Entry], entries: int, **more: Any
) -> HandleDetails:
    """Describe a handle in full; `journal` is the end of its journal, which has `entries` entries."""
    state, parking = record.state, record.parking
    stopped = state if isinstance(state, Stopped) else None
    return HandleDetails(
        **{name: getattr(shown, name) for name in HandleGlance.__struct_fields__},
        **{name: getattr(record, name) for name in _AS_IN_RECORD},
        resources=masked(record.resources),
        metadata=masked(record.metadata or {}),
        arguments=masked(record.arguments),
        allowed_by=None if shown.started is None else AllowedBy(*astuple(record.allowed or Allowed("configuration"))),
        asked=state.asked if isinstance(state, Waiting) else None,
        outcome=outcome_json(stopped.outcome) if stopped is not None else None,
        exit_code=stopped.exit_code if stopped is not None else None,
        signal=stopped.signal if stopped is not None else None,
        on_timeout=parking.on_timeout if parking is not None else None,
        on_cancel=parking.on_cancel if parking is not None else None,
        waits=[open_wait(row) for row in waits],
        journal=[journal_entry(entry) for entry in journal],
        journal_entries=entries,
        **more,
    )


def allowed_text(allowed: Mapping[str, Any]) -> str:
    """Say what allowed a call: `the user (the dashboard) at 2026-01-01T12:03:00Z`."""
    who = "" if allowed["who"] in (None, "the user") else f" ({allowed['who']})"
    at = "" if allowed["at"] is None else f" at {time_of_day(allowed['at'])}"
    match allowed["by"]:
        case "configuration":
            return 'the configuration (run = "unattended")'
        case "conversation":
            return "its conversation, which runs tools unattended"
        case "detached":
            return 'the configuration (detached = "auto")'
        case "standing":
            return f"standing permission {allowed['permission']}, given by the user{who}{at}"
        case "user":
            return f"the user{who}{at}"
    return "unknown: it is older than this record"


def held_up_text(held_up: Mapping[str, Any]) -> str:
    """Say why a handle has not started: `behind build in the serial lane`."""
    named = [each["id"] for each in held_up["behind"][:3]]
    more = held_up["count"] - len(named)
    behind = ", ".join(named) + (f" and {more} more" if more > 0 and named else "")
    match held_up["by"]:
        case "permission":
            return "waits for permission"
        case "lane":
            return f"behind {behind} in the serial lane" if behind else "queues in the serial lane"
        case "resource":
            return f"waits for {held_up['name']}" + (f", behind {behind}" if behind else "")
    limit = {"runtime": "max_running", "thread": "threads"}.get(held_up["name"], f"max_running of {held_up['name']}")
    return f"waits for a free slot ({limit})" + (f", behind {behind}" if behind else "")


def open_question(question: Question, number: int | None = None) -> OpenQuestion:
    """Describe a question; `number` says which one of its call it is."""
    return OpenQuestion(
        id=question.id,
        key=None if number is None else question_key(question, number),
        text=masked(question.text),
        pre_amble=masked(question.pre_amble),
        answer_type=masked(msgspec.to_builtins(question.answer_type)),
        default=masked(question.default),
        secret=question.secret,
    )


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """Describe how a handle ended."""
    given = {name: getattr(outcome, name) for name in outcome.__struct_fields__}
    fields = {name: msgspec.to_builtins(each, enc_hook=as_text) for name, each in given.items() if each is not UNSET}
    return {"type": outcome.__struct_config__.tag, **masked(fields)}


def open_wait(row: WaitRow) -> OpenWait:
    """Describe an outside result that a call waits for, without its key."""
    from keephold.durable.deferred import resolution_json

    return OpenWait(
        kind=row.kind,
        name=row.name,
        key_id=row.key_id,
        resolution=None if row.resolution is None else masked(resolution_json(row.resolution)),
        revoked=row.revoked,
    )


def journal_entry(entry: Entry, at: float | None = None) -> JournalEntry:
    """Describe a recorded step; `at` says when it was recorded."""
    given = getattr(entry, "input", b"")
    return JournalEntry(
        kind=entry.kind,
        name=entry.name,
        ok=entry.ok and entry.kind != "attempt",  # about a failed attempt, and kept when errors are forgotten
        input=masked(msgspec.json.decode(given)) if given else None,
        value=masked(msgspec.json.decode(entry.value)),
        at=at,
    )


def emitted_event(event: ProcessEvent) -> EmittedEvent:
    """Describe an event of a process."""
    return EmittedEvent(event.sequence, masked(event.type), masked(event.payload), event.at)


def last_line(output: "Output") -> str | None:
    """Return the last line of an output that is not blank, safe to show."""
    text = printable(output.before(output.total, _LINE_BYTES).decode("utf-8", "replace"))
    for line in reversed(text.splitlines()):
        if line.strip():
            return str(masked(line.strip()))[:_LINE]
    return None


def progress_json(progress: Progress | None) -> dict[str, Any] | None:
    """Return a progress with all its fields."""
    if progress is None:
        return None
    return {"done": progress.done, "total": progress.total, "message": masked(progress.message)}


def _short(message: str) -> str:
    return message if len(message) <= _MESSAGE else f"{message[: _MESSAGE - 1]}…"


# Why a pending handle has not started, and which handles wait behind one. The process of a handle knows its position in
# each queue. Other processes know what it has posted: its open prompt, and the names that it queues for. The lane's
# holder is a post, too, and the holders of a resource are in the store; who has the slots of another process is not
# known.

_SHOWN = 20
"""The most handles in front of another, or behind it, that are named."""
_LANES = ("serial:", "call:")


def obstacle(name: str, behind: Iterable[Handle | Record], count: int) -> HeldUp:
    """Describe what a handle queues for, by the name that its queue has."""
    handles = [HandleRef(each.id, each.uid) for _, each in zip(range(_SHOWN), behind, strict=False)]
    if name.startswith(_LANES):
        return HeldUp("lane", None, handles, count)
    if name.startswith(RESOURCE):
        return HeldUp("resource", masked(name.removeprefix(RESOURCE)), handles, count)
    return HeldUp("slot", name, handles, count)


def waiting_behind(handle: Handle) -> list[HandleRef]:
    """Return the handles of this process that wait behind one of it, the next first."""
    return [HandleRef(each.id, each.uid) for each in handle.in_front_of()[:_SHOWN]]


async def prompts_of(store: Store) -> dict[str, str]:
    """Return the posted prompts for permission to start a call: their ids by the uid of its handle."""
    from keephold.turn.prompts import DeliverResult, RunTool, begins  # not for every `keephold ps`

    posts = [post for post in await store.posts("prompt") if store.alive(post.owner)]
    prompts = {post.id: msgspec.json.decode(post.body, type=RunTool | DeliverResult) for post in posts}
    return {uid: id for id, each in prompts.items() if (uid := begins(each)) is not None}


async def held_up_elsewhere(
    store: Store, records: Sequence[Record], facts: Mapping[str, Fact]
) -> dict[str, list[HeldUp]]:
    """Return what holds up these pending handles, by uid, as their processes have posted it."""
    queues = {each.uid: facts[each.uid].queue for each in records if facts.get(each.uid, NOTHING).queue}
    if not queues:
        return {}
    holders = await _holders(store, {name for queue in queues.values() for name in queue})
    return {
        uid: [obstacle(name, holders.get(name, ()), len(holders.get(name, ()))) for name in queue]
        for uid, queue in queues.items()
    }


async def _holders(store: Store, names: set[str]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    if any(name.startswith(_LANES) for name in names):
        for post in await store.posts("lane"):
            lane = post.id.removeprefix(LANE_POST)
            holder = await store.handle(post.body.decode()) if lane in names and store.alive(post.owner) else None
            if holder is not None and not isinstance(holder.state, Stopped):
                found[lane] = [holder]
    if any(name.startswith(RESOURCE) for name in names):
        for record in await store.handles(HandleQuery(live=True, stateful=None)):
            if not isinstance(record.state, PendingState):
                for name in names.intersection(record.resources):
                    found.setdefault(name, []).append(record)
    return found
