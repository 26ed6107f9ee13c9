"""Deferred completion: what a tool returns to wait for an outside result, and how that wait ends (D1–D5)."""

import math
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from keephold.errors import ToolError
from keephold.limits import nested_deeper
from keephold.store.base import Parking, Resolution
from keephold.text import as_text, has_no_number

if TYPE_CHECKING:
    from keephold.tools.base import Tool


@dataclass(frozen=True, slots=True)
class Pending:
    """Return this from a tool whose result comes from outside, after `await call.completion_key()`.

    `deadline` is seconds from now or an aware datetime; None waits indefinitely.
    """

    deadline: float | datetime | None = None
    on_timeout: Literal["error_as_result", "fail_turn"] = "error_as_result"
    on_cancel: Literal["cancel_external_work", "ignore"] = "cancel_external_work"

    def __post_init__(self) -> None:
        deadline = self.deadline
        if isinstance(deadline, datetime):
            if deadline.tzinfo is None:
                raise ValueError("a deadline needs a time zone: datetime.now(timezone.utc) + timedelta(hours=1)")
        elif deadline is not None and not (isinstance(deadline, int | float) and 0 < deadline < math.inf):
            raise ValueError(f"a deadline is a number of seconds above 0, or None for no deadline; not {deadline!r}")
        if self.on_timeout not in ("error_as_result", "fail_turn"):
            raise ValueError(f'on_timeout is "error_as_result" or "fail_turn", not {self.on_timeout!r}')
        if self.on_cancel not in ("cancel_external_work", "ignore"):
            raise ValueError(f'on_cancel is "cancel_external_work" or "ignore", not {self.on_cancel!r}')


@dataclass(frozen=True, slots=True)
class TimedPending(Pending):
    """Return a copy with its own message for when the deadline passes (W5)."""

    timed_out: str | None = None


def parking(pending: Pending, now: float, tool: "Tool") -> Parking:
    """Return the terms on which a call of the tool waits, with the deadline as a time of day (D7)."""
    deadline = pending.deadline
    at = deadline.timestamp() if isinstance(deadline, datetime) else None if deadline is None else now + deadline
    timed_out = pending.timed_out if isinstance(pending, TimedPending) else None
    make = _shared if at is None else Parking
    return make(
        at,
        pending.on_timeout,
        pending.on_cancel,
        hook=tool.has_cancel_hook,
        hold=tool.result != "unattended",
        carriers=tool.spawn.notifications.deliver,
        timed_out=timed_out,
    )


_shared = lru_cache(maxsize=64)(Parking)
"""Return terms without a deadline. Ten thousand parked calls of one tool share them."""


class ResolveOutcome(msgspec.Struct, frozen=True):
    """The result of resolving a key. `str()` of it is the status; `terminal` says how the wait ended."""

    status: Literal["accepted", "already_resolved", "unknown_or_revoked"]
    terminal: dict[str, Any] | None = None

    def __str__(self) -> str:
        return self.status


def read_resolution(given: Any, nesting: int) -> Resolution:
    """Return a resolution as it was sent (D4), or raise an error that says how to send one. `nesting`: levels of
    JSON."""
    right = (
        '{"status":"ok","payload":…}, {"status":"err","payload":{"code":…,"message":…}}, {"status":"timeout"} or '
        '{"status":"cancelled"}'
    )
    if isinstance(given, Resolution):
        given = resolution_json(given)
    if not isinstance(given, dict) or not set(given) <= {"status", "payload"}:
        raise ToolError(f"not a resolution; it must be {right}", code="invalid_resolution")
    if nested_deeper(given, nesting):
        raise ToolError(
            f"the resolution is nested deeper than {nesting} levels ([limits] nesting)", code="limit_exceeded"
        )
    status, payload = given.get("status"), given.get("payload")
    if status == "ok":
        return Resolution("ok", _payload(payload))
    if status == "err":
        texts = isinstance(payload, dict) and all(isinstance(payload.get(key), str) for key in ("code", "message"))
        if not texts or not set(payload) <= {"code", "message", "raw"}:  # type: ignore[arg-type]
            raise ToolError(
                'the payload of "err" must be an object with the strings `code` and `message`, and `raw` if you like',
                code="invalid_resolution",
            )
        return Resolution("err", _payload(payload))
    if status in ("timeout", "cancelled") and "payload" not in given:
        return Resolution(status)
    raise ToolError(f"not a resolution; it must be {right}", code="invalid_resolution")


def _payload(value: Any) -> Any:
    try:
        if has_no_number(value):
            raise ValueError("it holds a float that is not a number")
        return msgspec.json.decode(msgspec.json.encode(value, enc_hook=as_text))
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ToolError(f"the payload of the resolution is not JSON: {error}", code="invalid_resolution") from None


def resolution_json(resolution: Resolution) -> dict[str, Any]:
    """Return a resolution as in D4."""
    if resolution.status in ("ok", "err"):
        return {"status": resolution.status, "payload": resolution.payload}
    return {"status": resolution.status}
