"""The keywords shared by every way to make a tool in Python, and the fields of `Tool` they set."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from keephold.errors import ConfigError
from keephold.tools.base import (
    ACTIONS,
    Action,
    NotificationPolicy,
    OnTurnEnd,
    RetryPolicy,
    RunMode,
    Scheduling,
    SpawnPolicy,
    TaskMode,
)


class Policies(TypedDict, total=False):
    """Keywords with the same meaning and default as for `@keephold.tool`."""

    summary: str | None
    examples: Sequence[str]
    scheduling: Scheduling
    resources: Sequence[str]
    max_running: int | None
    run: RunMode
    run_actions: Mapping[str, RunMode]
    result: RunMode
    timeout_secs: float | None
    on_turn_end: OnTurnEnd | None
    turn_end_timeout_secs: float
    ready: str | None
    assistant: Mapping[str, Any]
    notifications: NotificationPolicy | None
    priority: int
    on_crash: Literal["fail", "replay", "keep"]
    keep_secs: float
    retry: RetryPolicy | Literal["never", "safe", "idempotent"]
    task: TaskMode
    hints: Mapping[str, Any]


def tool_fields(
    name: str,
    *,
    examples: Sequence[str] = (),
    actions: Sequence[Action] = (),
    resources: Sequence[str] = (),
    on_turn_end: OnTurnEnd | None = None,
    turn_end_timeout_secs: float = 300,
    assistant: Mapping[str, Any] = {},
    notifications: NotificationPolicy | None = None,
    ready: str | None = None,
    priority: int = 0,
    retry: RetryPolicy | Literal["never", "safe", "idempotent"] = "never",
    **same_name: Any,
) -> dict[str, Any]:
    """Return the fields of `Tool`. Raises `ConfigError` for actions that no tool can have."""
    if isinstance(actions, str) or not set(actions) <= set(ACTIONS) or (actions and "spawn" not in actions):
        right = f'a tuple of "spawn" and any of {ACTIONS[1:]}'
        raise ConfigError([f"tool `{name}`: actions must be {right}, not {actions!r}"])
    spawn = SpawnPolicy(
        ready=ready,
        priority=priority,
        on_turn_end=on_turn_end,
        turn_end_timeout_secs=turn_end_timeout_secs,
        assistant=dict(assistant),
        notifications=notifications or NotificationPolicy(),
    )
    return {
        "name": name,
        "examples": tuple(examples),
        "actions": tuple(actions),
        "resources": tuple(resources),
        "spawn": spawn,
        "retry": RetryPolicy(policy=retry) if isinstance(retry, str) else retry,
        **same_name,
    }
