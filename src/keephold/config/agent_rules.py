"""Rules of `[agents.<id>]` that tie several keys together (G2)."""

from collections.abc import Collection, Iterator, Mapping

from keephold.config.model import AgentSettings
from keephold.config.rules import Problem
from keephold.tools.toolbox import name_problem

_OF_A_MODEL = (
    "model", "assistant", "instructions", "tools", "max_requests", "max_tokens", "max_cost", "context_tokens",
)  # fmt: skip
_OF_A_PROGRAM = ("env", "cwd")


def agent_problems(agents: Mapping[str, AgentSettings], tools: Collection[str]) -> Iterator[Problem]:
    """What is wrong with agents, whose ids are names of tools beside those that are configured."""
    for id, agent in agents.items():
        where = ("agents", id)
        wrong = name_problem(id)
        if wrong is not None:
            yield where, f"an agent is a tool: {wrong}"
        if id in tools:
            yield where, f"[conversation.tools.{id}] is a tool of the same name; give one of them another"
        if agent.command is not None:
            for key in (key for key in _OF_A_MODEL if key in agent.model_fields_set):
                yield (*where, key), "is for agents of a model; this one is a program with a model of its own"
        else:
            for key in (key for key in _OF_A_PROGRAM if key in agent.model_fields_set):
                yield (*where, key), "is for agents that are programs (`command`)"
