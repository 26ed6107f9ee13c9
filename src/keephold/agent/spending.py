"""A turn's usage of models, and its limits (G1, G2).

A sub-agent's usage counts for the turns above it, too: a limit holds for a turn and for everything it starts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.usage import RequestUsage

from keephold.agent.events import Usage
from keephold.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The limits of one turn; None: unlimited."""

    max_requests: int = 100
    max_tokens: int | None = None
    max_cost: float | None = None


class Spending:
    """The usage of one turn so far."""

    def __init__(
        self,
        allowance: Allowance,
        above: "Callable[[], Spending | None]" = lambda: None,
        window: int | None = None,
        on_answer: Callable[[Usage], None] = lambda _: None,
    ) -> None:
        """`on_answer` gets the usage of each answer once, even if it counts for several turns."""
        self._allowance = allowance
        self._above = above
        self._on_answer = on_answer
        self.usage = Usage(context_window=window)
        """The usage of the turn and of everything it started."""
        self._own_requests = 0
        """The turn's own requests: `max_requests` limits rounds, not those of agents."""
        self._unpriced = False
        """The price of an answer is not known."""

    @property
    def max_cost(self) -> float | None:
        """The limit of cost, of this turn or of one above it."""
        above = self._above()
        return self._allowance.max_cost or (None if above is None else above.max_cost)

    def start(self, context_tokens: int) -> None:
        self.usage = msgspec.structs.replace(self.usage, context_tokens=context_tokens)

    def resume(self, own: Sequence[ModelResponse], of_agents: Sequence[ModelResponse]) -> None:
        """Count the usage of the turn and its agents before their process died; turns above count it themselves."""
        self._own_requests += len(own)
        for response in (*own, *of_agents):
            self._take(usage_of(response))

    def add(self, response: ModelResponse) -> None:
        self._own_requests += 1
        taken = usage_of(response)
        self.count(taken)
        context = taken.input_tokens + taken.output_tokens
        if context:
            self.usage = msgspec.structs.replace(self.usage, context_tokens=context)

    def count(self, taken: Usage) -> None:
        """Count a paid answer: to the turn, to an inquiry, or a summary."""
        self._on_answer(taken)
        self._count(taken)

    def _take(self, taken: Usage) -> None:
        self.usage = total(self.usage, taken)
        self._unpriced = self._unpriced or taken.cost is None

    def _count(self, taken: Usage) -> None:
        self._take(taken)
        above = self._above()
        if above is not None:
            above._count(taken)

    def exhausted(self) -> str | None:
        """Return the limit that is reached, of this turn or of one above it; None if there is room."""
        if self._own_requests >= self._allowance.max_requests:
            return f"{self._own_requests} requests to the model in one turn (max_requests)"
        return self.spent_up()

    def spent_up(self) -> str | None:
        """Return the limit of tokens or cost that is reached; rounds are each turn's own."""
        allowance, usage, above = self._allowance, self.usage, self._above()
        tokens = usage.input_tokens + usage.output_tokens
        if allowance.max_tokens is not None and tokens >= allowance.max_tokens:
            return f"{tokens} tokens in one turn (max_tokens = {allowance.max_tokens})"
        if allowance.max_cost is not None and (usage.cost or 0.0) >= allowance.max_cost:
            return f"${usage.cost:.4f} in one turn (max_cost = {allowance.max_cost:g})"
        if allowance.max_cost is not None and self._unpriced:
            return f"an answer whose price is not known, so max_cost = {allowance.max_cost:g} cannot be enforced"
        return above.spent_up() if above is not None else None


def need_price(model: Model[Any], max_cost: float | None) -> None:
    """Raise `ConfigError` if the cost is limited and the model's price is not known: the limit would not hold."""
    if max_cost is None:
        return
    for each in getattr(model, "models", (model,)):  # a FallbackModel asks several
        asked = ModelResponse(
            [],
            usage=RequestUsage(input_tokens=1, output_tokens=1),
            model_name=each.model_name,
            provider_name=each.system,
            provider_url=each.base_url,
        )
        if usage_of(asked).cost is None:
            raise ConfigError(
                [
                    f"max_cost = {max_cost:g} cannot be enforced: the price of model `{each.model_name}` is not known; "
                    "limit `max_tokens` instead of `max_cost`, or choose another model"
                ]
            )


def usage_of(response: ModelResponse) -> Usage:
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
    """Return the sum; the context is the newest known."""
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
