"""Whose sub-agent a conversation belongs to (G2), told by its name alone: nothing has to be looked up after a crash.

The conversation of a sub-agent is named `<conversation of its caller>/<agent>@<uid of its handle>`.
"""

import re

_OWN = re.compile(r"/[^/]+@[0-9a-f]{32}\Z")


def conversation_of(caller: str, agent: str, uid: str) -> str:
    """The conversation of the agent that runs as that handle of the caller's conversation."""
    return f"{caller}/{agent.replace('/', '-')}@{uid}"


def parent_of(conversation: str) -> str | None:
    """The conversation that called it; None: it is no sub-agent's."""
    own = _OWN.search(conversation)
    return None if own is None else conversation[: own.start()]


def root_of(conversation: str) -> str:
    """The conversation at the top, where a person is."""
    while (parent := parent_of(conversation)) is not None:
        conversation = parent
    return conversation


def depth_of(conversation: str) -> int:
    """How many agents are above it."""
    parent = parent_of(conversation)
    return 0 if parent is None else 1 + depth_of(parent)
