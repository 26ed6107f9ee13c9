"""What a turn has taken of its model, and how much it may take (G1, G2).

A turn of a sub-agent spends for those above it, too: a limit holds for a turn and for everything it starts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from pydantic_ai.messages import ModelResponse

from keephold.agent.events import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What one turn may take. None: as much as it needs."""

    max_requests: int = 100
    max_tokens: int | None = None
    max_cost: float | None = None


class Spending:
    """What one turn has taken so far."""

    def __init__(
        self,
        allowance: Allowance,
        above: "Callable[[], Spending | None]" = lambda: None,
        window: int | None = None,
        told: Callable[[Usage], None] = lambda _: None,
    ) -> None:
        """`told` gets what each answer has taken, once, however many turns it counts for."""
        self._allowance = allowance
        self._above = above
        self._told = told
        self.usage = Usage(context_window=window)
        """Of the turn itself and of what it started."""
        self._own_requests = 0
        """Of the turn itself: a limit of requests is one of rounds."""

    def start(self, context_tokens: int) -> None:
        """How long the history was before this turn."""
        self.usage = msgspec.structs.replace(self.usage, context_tokens=context_tokens)

    def resume(self, own: Sequence[ModelResponse], of_agents: Sequence[ModelResponse]) -> None:
        """What the turn and its agents had taken when their process died; those above count that themselves."""
        self._own_requests += len(own)
        for response in (*own, *of_agents):
            self.usage = total(self.usage, usage_of(response))

    def add(self, response: ModelResponse) -> None:
        """A response came."""
        self._own_requests += 1
        taken = usage_of(response)
        self.count(taken)
        context = taken.input_tokens + taken.output_tokens
        if context:
            self.usage = msgspec.structs.replace(self.usage, context_tokens=context)

    def count(self, taken: Usage) -> None:
        """An answer was paid for: to the turn, to an inquiry, or a summary."""
        self._told(taken)
        self._count(taken)

    def _count(self, taken: Usage) -> None:
        self.usage = total(self.usage, taken)
        above = self._above()
        if above is not None:
            above._count(taken)

    def exhausted(self) -> str | None:
        """Which limit is reached, of this turn or of one above it; None: none."""
        if self._own_requests >= self._allowance.max_requests:
            return f"{self._own_requests} requests to the model in one turn (max_requests)"
        return self.spent_up()

    def spent_up(self) -> str | None:
        """Of tokens or money; rounds are each turn's own."""
        allowance, usage, above = self._allowance, self.usage, self._above()
        tokens = usage.input_tokens + usage.output_tokens
        if allowance.max_tokens is not None and tokens >= allowance.max_tokens:
            return f"{tokens} tokens in one turn (max_tokens = {allowance.max_tokens})"
        if allowance.max_cost is not None and (usage.cost or 0.0) >= allowance.max_cost:
            return f"${usage.cost:.4f} in one turn (max_cost = {allowance.max_cost:g})"
        return above.spent_up() if above is not None else None


def usage_of(response: ModelResponse) -> Usage:
    """What one response has taken."""
    usage = response.usage
    try:
        cost: float | None = float(response.cost().total_price)
    except (LookupError, ValueError, AssertionError):  # no price is known
        cost = None
    return Usage(
        requests=1,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cost=cost,
    )


def total(one: Usage, other: Usage) -> Usage:
    """Both together; of the context, the newest that is known."""
    known = [cost for cost in (one.cost, other.cost) if cost is not None]
    return msgspec.structs.replace(
        one,
        requests=one.requests + other.requests,
        input_tokens=one.input_tokens + other.input_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        cache_read_tokens=one.cache_read_tokens + other.cache_read_tokens,
        cost=sum(known) if known else None,
        context_tokens=other.context_tokens or one.context_tokens,
    )
