"""What a person said for the rest of the turn (Q5, P5). Lost with the process, on purpose: it was said to this turn."""

from typing import Any

_NOTHING = object()


class Remembered:
    """By conversation, as a conversation has one turn at a time."""

    def __init__(self) -> None:
        self._answers: dict[str, dict[tuple[str, str], Any]] = {}
        self._runs: dict[str, dict[str, bool]] = {}

    def answer(self, conversation: str, tool: str, question: str) -> tuple[bool, Any]:
        """Whether there is an answer to this question of this tool, and which."""
        found = self._answers.get(conversation, {}).get((tool, question), _NOTHING)
        return found is not _NOTHING, found

    def answered(self, conversation: str, tool: str, question: str, answer: Any) -> None:
        self._answers.setdefault(conversation, {})[tool, question] = answer

    def may_run(self, conversation: str, tool: str) -> bool | None:
        """Whether calls of this tool may run; None: nobody has said."""
        return self._runs.get(conversation, {}).get(tool)

    def decided(self, conversation: str, tool: str, may_run: bool) -> None:
        self._runs.setdefault(conversation, {})[tool] = may_run

    def forget(self, conversation: str) -> None:
        """The turn is over."""
        self._answers.pop(conversation, None)
        self._runs.pop(conversation, None)
