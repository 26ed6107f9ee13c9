"""A task: something that is to be done, its status, and how long it has been worked on (W9).

The timer counts only while the task is in progress and not paused: time that it was blocked or paused is no work.
A task is data; every change makes a new one.
"""

from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from keephold.tools.waiting.view import elapsed, instant, milliseconds

TaskStatus = Literal["not-started", "in-progress", "completed", "blocked"]
STATUSES: tuple[TaskStatus, ...] = ("not-started", "in-progress", "completed", "blocked")


class Task(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One task, as the metadata of its handle holds it. Times are seconds since the epoch."""

    task_id: str
    task_name: str
    status: TaskStatus = "not-started"
    metadata: dict[str, Any] = {}
    started: float | None = None
    ended: float | None = None
    worked: float = 0.0
    """Seconds, up to when the timer last stood still."""
    since: float | None = None
    """When the timer began to run; None: it stands still."""
    paused: bool = False

    def running(self, now: float) -> "Task":
        """With the timer running."""
        if self.since is not None:
            return self
        return replace(self, since=now, started=self.started or now, paused=False)

    def standing(self, now: float, *, paused: bool) -> "Task":
        """With the timer standing still."""
        worked = self.worked if self.since is None else self.worked + now - self.since
        return replace(self, worked=worked, since=None, paused=paused)

    def moved(self, status: TaskStatus, now: float, *, timer: bool = True) -> "Task":
        """In another status. `timer`: it runs while the task is in progress."""
        task = replace(self, status=status, ended=None)
        if status == "completed":
            return replace(task.standing(now, paused=False), ended=now)
        if not timer:
            return task
        if status == "in-progress":
            return task.running(now)
        return task.standing(now, paused=status == "blocked" and task.started is not None)

    def elapsed_ms(self, now: float) -> int:
        return milliseconds(self.standing(now, paused=self.paused).worked)

    def timer(self, now: float) -> dict[str, Any]:
        """The timer, as replies show it."""
        took = self.elapsed_ms(now)
        shown: dict[str, Any] = {"timerActive": self.since is not None, "isPaused": self.paused}
        shown |= {"elapsedMs": took, "elapsedTime": elapsed(took)}
        shown |= {} if self.started is None else {"startTime": instant(self.started)}
        return shown | ({} if self.ended is None else {"endTime": instant(self.ended)})

    def shown(self, now: float) -> dict[str, Any]:
        """The task, as replies show it."""
        named = {"taskId": self.task_id, "taskName": self.task_name, "status": self.status}
        return named | self.timer(now) | {"metadata": self.metadata}


def to_metadata(task: Task) -> dict[str, Any]:
    """A task as the metadata of a handle; None where a key is to go."""
    metadata: dict[str, Any] = msgspec.to_builtins(task)
    return metadata


def from_metadata(metadata: dict[str, Any]) -> Task:
    return msgspec.convert(metadata, Task)
