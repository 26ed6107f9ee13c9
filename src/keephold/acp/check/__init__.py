"""A conformance kit for ACP agents in any language: `keephold acp-check COMMAND…` (X5).

A *scene* starts the agent, plays a client and records every message. A *check* is a small function that examines a
recording, or an agent of its own, and passes, fails or is skipped with a reason.
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from keephold.acp.check import checks  # noqa: F401 - they register the checks
from keephold.acp.check.probe import Check, Failed, Level, Skipped, known
from keephold.acp.check.scenes import Scenes, Settings, scenes

_TOPICS = ("handshake", "sessions", "updates", "turn_complete", "cancelling", "permission", "robustness")

CHECKS = sorted(known, key=lambda check: _TOPICS.index(check.topic))
"""All of them, in the order they are run."""


class Result(msgspec.Struct, frozen=True):
    """The result of a check. `messages`: those concerned, each with its sender (`from`: `client`, `agent`)."""

    name: str
    topic: str
    level: Level
    says: str
    outcome: Literal["passed", "failed", "skipped"]
    why: str = ""
    messages: tuple[dict[str, Any], ...] = ()


class Report(msgspec.Struct, frozen=True):
    """The results, in the order of the checks, and the agent's name and version."""

    command: tuple[str, ...]
    agent: dict[str, Any]
    checks: tuple[Result, ...]
    problem: str = ""
    """Why the agent could not be used, with the end of its standard error; empty if it could."""

    def count(self, outcome: str, level: Level | None = None) -> int:
        return sum(result.outcome == outcome and level in (None, result.level) for result in self.checks)

    @property
    def checked(self) -> bool:
        """Whether there was an agent to check: a failed `initialize` alone says that there was none."""
        return any(
            each.outcome == "passed" or (each.outcome == "failed" and each.name != "initialize") for each in self.checks
        )

    @property
    def ok(self) -> bool:
        """Whether something was checked and nothing failed: an agent of which all is skipped has not passed."""
        return self.count("failed") == 0 and self.count("passed") > 0


async def run(
    settings: Settings, only: Iterable[str] = (), *, on_result: Callable[[Result], None] | None = None
) -> Report:
    """Examine an agent; `on_result` gets each result at once. `only`: names of checks or topics; all if empty."""
    wanted = set(only)
    results: list[Result] = []
    agent: dict[str, Any] = {}
    async with scenes(settings) as stage:
        for check in CHECKS:
            if wanted and not wanted & {check.name, check.topic}:
                continue
            result = await _run(check, stage)
            agent = agent or stage.agent_info
            results.append(result)
            if on_result is not None:
                on_result(result)
        return Report(settings.command, agent, tuple(results), stage.problem)


async def _run(check: Check, stage: Scenes) -> Result:
    outcome: Literal["passed", "failed", "skipped"] = "passed"
    why = ""
    messages: tuple[dict[str, Any], ...] = ()
    try:
        await check.examine(stage)
    except Skipped as reason:
        outcome, why = "skipped", str(reason)
    except Failed as failure:
        outcome, why = "failed", str(failure)
        found = sorted(failure.messages, key=lambda entry: entry.number)
        messages = tuple({"from": "client" if each.ours else "agent", "message": each.message} for each in found)
    return Result(check.name, check.topic, check.level, check.says, outcome, why, messages)


__all__ = ["CHECKS", "Report", "Result", "Settings", "run"]
