"""What commands say of handles."""

from typing import Any

from keephold.cli.printing import relative
from keephold.control.handle_json import facts
from keephold.control.resolve_handle import find

__all__ = ["facts", "find", "standing"]


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
