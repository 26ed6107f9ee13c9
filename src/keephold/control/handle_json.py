"""A handle as JSON, for whoever looks from outside: `ps`, `show`, `/api` and the dashboard say the same words.

`facts` is what one wants to know at a glance, `details` everything else that its row has. What tools, models and people
wrote may hold keys; whatever is from here has their ids instead (K5).
"""

from typing import Any

import msgspec

from keephold.durable.keys import masked
from keephold.handles.handle import Handle
from keephold.handles.output import Output
from keephold.handles.question import Question, question_key
from keephold.handles.state import Failure, Outcome, Pending, Running, Stopped, Waiting, name
from keephold.handles.text import as_text, strip_controls
from keephold.store.base import Entry, Record, Store, WaitRow

_MESSAGE = 200
"""Characters of an error at a glance."""
_LINE_BYTES = 2048
"""How far back the last line of an output is looked for."""
_LINE = 300
"""Characters of it that are shown."""


def is_parked(record: Record) -> bool:
    """Waits for its completion from outside (D9)."""
    return record.parking is not None and record.owner is None and not isinstance(record.state, Stopped)


def owner_of(store: Store, record: Record) -> str | None:
    """`alive` or `gone`: whether the process lives that runs it. None: nobody does, it is parked or has stopped."""
    if record.owner is None or isinstance(record.state, Stopped):
        return None
    return "alive" if store.alive(record.owner) else "gone"


def facts(store: Store, record: Record) -> dict[str, Any]:
    """What one wants to know of a handle at a glance, as its row has it."""
    state = record.state
    stopped = state if isinstance(state, Stopped) else None
    error = stopped.outcome if stopped is not None and isinstance(stopped.outcome, Failure) else None
    parked = is_parked(record)
    return {
        "id": record.id,
        "uid": record.uid,
        "tool": record.tool,
        "kind": record.kind,
        "conversation": record.conversation,
        "turn": record.turn,
        "stateful": record.stateful,
        "state": name(state),
        "parked": parked,
        "owner": owner_of(store, record),
        "attempt": record.attempt,
        "next_attempt_at": record.next_attempt_at,
        "priority": record.priority,
        "created": state.created,
        "started": None if isinstance(state, Pending) else state.started,
        "stopped": stopped.stopped if stopped else None,
        "deadline": record.parking.deadline if record.parking is not None and parked else None,
        "ok": error is None if stopped else None,
        "ended_by": stopped.ended_by if stopped else None,
        "code": error.code if error else None,
        "message": _short(masked(error.message)) if error else None,
        "progress": None if record.progress is None else _progress(record.progress),
        "question": question_json(state.question, state.number) if isinstance(state, Waiting) else None,
    }


def live_facts(handle: Handle | None, fact: dict[str, Any]) -> dict[str, Any]:
    """What only the process that runs a handle knows of it; None: this one does not."""
    here = handle is not None and handle.active and handle.run is not None
    output = handle.output if handle is not None else None
    added: dict[str, Any] = {
        "here": here,
        "terminal": handle is not None and handle.tool.source == "terminal",
        "last_line": last_line(output) if output is not None else None,
        "output_bytes": output.total if output is not None else None,
        "lingering": handle is not None and handle.lingering,
        "driver": handle.driver if handle is not None else None,
        "reading": handle is not None and handle.reading and isinstance(handle.state, Running),
    }
    if handle is not None and handle.progress is not None:
        added["progress"] = _progress(handle.progress)
    if handle is not None and here:
        added["deadline"] = handle.info().deadline
    return fact | added


def details(record: Record) -> dict[str, Any]:
    """What `facts` leaves out."""
    state = record.state
    stopped = state if isinstance(state, Stopped) else None
    return {
        "call_id": record.call_id,
        "batch": record.batch,
        "position": record.position,
        "resources": masked(record.resources),
        "metadata": masked(record.metadata or {}),
        "arguments": masked(record.arguments),
        "asked": state.asked if isinstance(state, Waiting) else None,
        "outcome": outcome_json(stopped.outcome) if stopped is not None else None,
        "exit_code": stopped.exit_code if stopped is not None else None,
        "signal": stopped.signal if stopped is not None else None,
        "on_timeout": record.parking.on_timeout if record.parking is not None else None,
        "on_cancel": record.parking.on_cancel if record.parking is not None else None,
    }


def question_json(question: Question, number: int | None = None) -> dict[str, Any]:
    """A question, every field of it. `key` says which question of its call it is; None: that is not known here."""
    return {
        "id": question.id,
        "key": None if number is None else question_key(question, number),
        "text": masked(question.text),
        "pre_amble": masked(question.pre_amble),
        "answer_type": masked(msgspec.to_builtins(question.answer_type)),
        "default": masked(question.default),
        "secret": question.secret,
    }


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """How a handle ended."""
    told = {name: msgspec.to_builtins(getattr(outcome, name), enc_hook=as_text) for name in outcome.__struct_fields__}
    return {"type": outcome.__struct_config__.tag, **masked(told)}


def wait_json(row: WaitRow) -> dict[str, Any]:
    """One thing that a call waits for, without its key."""
    from keephold.durable.deferred import resolution_json

    return {
        "kind": row.kind,
        "name": row.name,
        "key_id": row.key_id,
        "resolution": None if row.resolution is None else masked(resolution_json(row.resolution)),
        "revoked": row.revoked,
    }


def entry_json(entry: Entry) -> dict[str, Any]:
    """A line of a journal: what went in, and what came out."""
    given = getattr(entry, "input", b"")
    return {
        "kind": entry.kind,
        "name": entry.name,
        "ok": entry.ok,
        "input": masked(msgspec.json.decode(given)) if given else None,
        "value": masked(msgspec.json.decode(entry.value)),
    }


def last_line(output: Output) -> str | None:
    """The last line of an output that is not blank, as a person may see it."""
    text = strip_controls(output.before(output.total, _LINE_BYTES).decode("utf-8", "replace"))
    for line in reversed(text.splitlines()):
        if line.strip():
            return str(masked(line.strip()))[:_LINE]
    return None


def _progress(progress: Any) -> dict[str, Any]:
    return {"done": progress.done, "total": progress.total, "message": masked(progress.message)}


def _short(message: str) -> str:
    return message if len(message) <= _MESSAGE else f"{message[: _MESSAGE - 1]}…"
