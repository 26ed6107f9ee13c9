"""The conversations of sub-agents (G2): their names alone tell whose they are, also after a crash.

The conversation of a sub-agent is named `<conversation of its caller>/<agent>@<uid of its handle>`.
"""

import re

_OWN = re.compile(r"/([^/]+)@([0-9a-f]{32})\Z")
_STEP = re.compile(r"([0-9a-f]{32}):")


def conversation_of(caller: str, agent: str, uid: str) -> str:
    """Name the conversation of the agent that runs as that handle of the caller's conversation."""
    return f"{caller}/{agent.replace('/', '-')}@{uid}"


def parent_of(conversation: str) -> str | None:
    """Return the conversation that called it; None if it does not belong to a sub-agent."""
    own = _OWN.search(conversation)
    return None if own is None else conversation[: own.start()]


def agent_of(conversation: str) -> tuple[str, str] | None:
    """Return the id of the agent that the conversation belongs to, and the uid of its handle; None if to no agent."""
    own = _OWN.search(conversation)
    return None if own is None else (own[1], own[2])


def caller_of(conversation: str, call_id: str) -> str | None:
    """Return the uid of the call that made a call: of the workflow whose step it is, or of the agent whose conversation
    it is in. None: a model or a client made it."""
    step, agent = _STEP.match(call_id), agent_of(conversation)
    return step[1] if step is not None else None if agent is None else agent[1]


def outside_label(label: str) -> str:
    """Return the label of a call that a model or a client makes. They choose it, and labels of steps are trusted: so it
    never looks like one."""
    return f"_{label}" if _STEP.match(label) else label


def root_of(conversation: str) -> str:
    """Return the top-level conversation, where the user is."""
    while (parent := parent_of(conversation)) is not None:
        conversation = parent
    return conversation


def depth_of(conversation: str) -> int:
    """Return how many agents are above it."""
    parent = parent_of(conversation)
    return 0 if parent is None else 1 + depth_of(parent)
