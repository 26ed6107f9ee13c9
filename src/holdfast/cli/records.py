"""Handles as commands see them: records of the store, found by id and described."""

from collections.abc import Iterable
from typing import Any

from holdfast.cli.printing import relative
from holdfast.cli.store import place_of
from holdfast.errors import HoldfastError
from holdfast.handles.state import Error, Pending, Stopped, name
from holdfast.store.base import Expired, Record, Store

_PAGE = 1000


async def find(store: Store, ids: Iterable[str], conversation: str | None) -> list[Record]:
    """The newest handle of each id or uid, in a conversation or in whichever has it. Of several that have an id the one
    that is live is meant, if one is; else it is an error that lists them."""
    wanted = list(dict.fromkeys(ids))
    found: dict[str, list[Record]] = {}
    for id in wanted:
        record = await store.handle(id)
        if record is not None and conversation in (None, record.conversation):
            found[id] = [record]
    unknown = [id for id in wanted if id not in found]
    if unknown:
        found |= await (_everywhere(store, unknown) if conversation is None else _in(store, conversation, unknown))
    for id in wanted:
        records = found.get(id, [])
        live = [record for record in records if not isinstance(record.state, Stopped)]
        if len(live) == 1:  # whoever names it means the one that runs
            found[id] = records = live
        if len(records) > 1:
            where = ", ".join(f"`{record.conversation}`" for record in records)
            raise HoldfastError(
                f"Handle `{id}` is in {len(records)} conversations: {where}; name one by --conversation",
                code="handle_not_found",
            )
    missing = [f"Handle `{id}` not found in {place_of(store)}" for id in wanted if id not in found]
    if missing:
        raise HoldfastError(f"{'. '.join(missing)}; `holdfast ps --all` lists those there are", code="handle_not_found")
    return [found[id][0] for id in wanted]


async def _in(store: Store, conversation: str, ids: list[str]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for id in ids:
        record: Record | Expired | None = await store.named(conversation, id)
        if record is None and id.startswith("call:"):
            record = await store.called(conversation, id.removeprefix("call:"))
        if isinstance(record, Expired):
            raise HoldfastError(
                f"Handle `{id}` expired: it stopped long ago and its result is gone", code="handle_expired"
            )
        if record is not None:
            found[id] = [record]
    return found


async def _everywhere(store: Store, ids: list[str]) -> dict[str, list[Record]]:
    """By id: the newest handle that bears it of each conversation that has one."""
    wanted, after = set(ids), None
    newest: dict[str, dict[str, Record]] = {}
    while page := await store.handles(stateful=None, after=after, limit=_PAGE):
        for record in page:  # oldest first, so the last one is the newest
            if record.id in wanted:
                newest.setdefault(record.id, {})[record.conversation] = record
        after = page[-1].uid
    return {id: list(records.values()) for id, records in newest.items()}


def is_parked(record: Record) -> bool:
    """Waits for its completion from outside (D9)."""
    return record.parking is not None and record.owner is None and not isinstance(record.state, Stopped)


def owner_of(store: Store, record: Record) -> str | None:
    """`alive` or `gone`: whether the process lives that runs it. None: nobody does, it is parked or has stopped."""
    if record.owner is None or isinstance(record.state, Stopped):
        return None
    return "alive" if store.alive(record.owner) else "gone"


def facts(store: Store, record: Record) -> dict[str, Any]:
    """What one wants to know of a handle at a glance, as `--json` prints it."""
    state = record.state
    stopped = state if isinstance(state, Stopped) else None
    return {
        "id": record.id,
        "uid": record.uid,
        "tool": record.tool,
        "kind": record.kind,
        "conversation": record.conversation,
        "turn": record.turn,
        "state": name(state),
        "parked": is_parked(record),
        "owner": owner_of(store, record),
        "attempt": record.attempt,
        "next_attempt_at": record.next_attempt_at,
        "created": state.created,
        "started": None if isinstance(state, Pending) else state.started,
        "stopped": stopped.stopped if stopped else None,
        "deadline": record.parking.deadline if record.parking is not None and is_parked(record) else None,
        "ok": not isinstance(stopped.outcome, Error) if stopped else None,
        "ended_by": stopped.ended_by if stopped else None,
    }


def standing(fact: dict[str, Any], now: float) -> str:
    """The state and what else is to be said of it: `running, parked`, `running, attempt 2, owner gone`."""
    if fact["state"] == "stopped":
        how = "ok" if fact["ok"] else "error" if fact["ended_by"] == "self" else fact["ended_by"]
        return f"stopped, {how}"
    said = [fact["state"]]
    if fact["parked"]:
        said.append("parked")
    if fact["attempt"] > 1:
        said.append(f"attempt {fact['attempt']}")
    if fact["next_attempt_at"] is not None:
        said.append(f"next {relative(fact['next_attempt_at'], now)}")
    if fact["owner"] == "gone":
        said.append("owner gone")
    return ", ".join(said)


async def waits_for_resume(store: Store, record: Record) -> bool:
    """Whether a call whose owner is gone is left to whoever resumes its turn (B9): not begun, or a built-in's."""
    from holdfast.tools.builtin import NAMES
    from holdfast.tools.waiting import LASTING

    if not isinstance(record.state, Pending) and (record.tool not in NAMES or record.tool in LASTING):
        return False
    turn = await store.turn(record.conversation)
    return turn is not None and turn.waits_for(record)
