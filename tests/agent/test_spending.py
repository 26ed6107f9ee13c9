"""What a turn may take (G1, G2): requests, tokens, money; for itself and for what it started."""

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse
from pydantic_ai.usage import RequestUsage
from tests.agent.scripted import Reply, Script, called
from tests.agent.talk import talking, written
from tests.patience import until

import keephold
from keephold.agent.events import Usage, Used
from keephold.agent.spending import Allowance, Spending, need_price, total, usage_of
from keephold.errors import ConfigError
from keephold.testing import VirtualClock


@keephold.tool
async def note(text: str) -> str:
    """Take a note."""
    return f"noted {text}"


def response(input: int, output: int, model: str | None = None, provider: str | None = None) -> ModelResponse:
    return ModelResponse(
        [], usage=RequestUsage(input_tokens=input, output_tokens=output), model_name=model, provider_name=provider
    )


PRICED: Any = {"model": "gpt-4o", "provider": "openai"}


def test_G1_what_a_response_took() -> None:
    assert usage_of(response(10, 5)) == Usage(requests=1, input_tokens=10, output_tokens=5)
    priced = usage_of(response(1_000_000, 100_000, **PRICED))
    assert priced.cost is not None and 0.1 < priced.cost < 100


def test_G1_totals() -> None:
    one = Usage(requests=1, input_tokens=10, output_tokens=5, cost=0.5, context_tokens=15, context_window=100)
    other = Usage(requests=2, input_tokens=1, output_tokens=1, cost=None, context_tokens=0)
    assert total(one, other) == Usage(
        requests=3, input_tokens=11, output_tokens=6, cost=0.5, context_tokens=15, context_window=100
    )
    assert total(Usage(), Usage()).cost is None
    assert total(one, one).cost == 1.0


def test_G1_each_limit() -> None:
    by_requests = Spending(Allowance(max_requests=2))
    by_tokens = Spending(Allowance(max_tokens=30))
    by_cost = Spending(Allowance(max_cost=0.000_1))
    for spending in (by_requests, by_tokens, by_cost):
        assert spending.exhausted() is None
        spending.add(response(10, 5, **PRICED))
        assert spending is by_cost or spending.exhausted() is None
        spending.add(response(1000, 500, **PRICED))
    for spending, name in ((by_requests, "max_requests"), (by_tokens, "max_tokens = 30"), (by_cost, "max_cost")):
        assert name in (spending.exhausted() or "")
    assert by_requests.usage.context_tokens == 1500


def test_G1_an_answer_without_a_price_ends_a_turn_whose_cost_is_limited() -> None:
    """A provider may answer with a model that was not asked for."""
    limited, unlimited = Spending(Allowance(max_cost=100)), Spending(Allowance())
    for spending in (limited, unlimited, Spending(Allowance(), lambda: limited)):
        spending.add(response(1, 1))
    assert "max_cost = 100 cannot be enforced" in (limited.exhausted() or "")
    assert unlimited.exhausted() is None


async def test_F1_a_limit_of_cost_needs_a_price(clock: VirtualClock, tmp_path: Path) -> None:
    """For the model itself, for an agent under the limit of its caller, for each model of several, for an inquiry."""
    from pydantic_ai.models.fallback import FallbackModel
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    free, provider = Script("Hello.").model, OpenAIProvider(api_key="none")
    priced = OpenAIChatModel("gpt-4o", provider=provider)
    config = written(tmp_path, "[conversation]\nmax_cost = 2.5")
    async with keephold.Runtime([note], clock=clock, config=config) as rt:
        rt.conversation(model=priced)
        for model in (free, FallbackModel(priced, free), OpenAIChatModel("qwen3-coder", provider=provider)):
            with pytest.raises(ConfigError, match=r"max_cost = 2.5 .* `(scripted|qwen3-coder)` .* `max_tokens`"):
                rt.conversation(model=model)
    under = Spending(Allowance(), lambda: Spending(Allowance(max_cost=1)))
    assert under.max_cost == 1
    with pytest.raises(ConfigError, match="max_cost = 1"):
        need_price(free, under.max_cost)


@pytest.mark.parametrize("left", [0, 1])
def test_G2_it_spends_for_those_above(left: int) -> None:
    """Whether or not the one above has requests of its own left: those are rounds, each turn's own."""
    top = Spending(Allowance(max_requests=1 + left, max_tokens=100))
    middle = Spending(Allowance(), lambda: top)
    bottom = Spending(Allowance(), lambda: middle)
    top.add(response(10, 5))
    assert bottom.exhausted() is None
    bottom.add(response(80, 10))
    assert "max_tokens = 100" in (bottom.exhausted() or "")
    assert "max_tokens = 100" in (middle.exhausted() or "")
    assert (top.usage.requests, middle.usage.requests, bottom.usage.requests) == (2, 1, 1)
    assert top.usage.context_tokens == 15


async def test_G1_max_tokens_of_a_turn(clock: VirtualClock, tmp_path: Path) -> None:
    lines = [Reply(f"Words {at}.", [called("c", "note", text="a")], usage=(100, 10)) for at in range(20)]
    script = Script(*lines)
    async with talking(script, note, clock=clock, config=written(tmp_path, "[conversation]\nmax_tokens = 300")) as talk:
        answer = await talk.prompt()
        assert (answer.stop_reason, answer.text) == ("max_turn_requests", "Words 2.")
        assert "max_tokens = 300" in (answer.error or "")
        assert len(script.read) == 3
        await talk.prompt("More")  # each turn has its own
    assert len(script.read) == 6


async def test_G1_what_is_told_of_it(clock: VirtualClock) -> None:
    script = Script(Reply(calls=[called("c", "note", text="a")], usage=(100, 10)), Reply("Done.", usage=(200, 20)))
    async with talking(script, note, clock=clock) as talk:
        answer = await talk.prompt()
    assert [used.usage.requests for used in talk.heard(Used)] == [1, 2]
    assert answer.usage == talk.heard(Used)[-1].usage
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.context_tokens) == (300, 30, 220)


async def test_G1_a_turn_that_is_resumed_has_spent_before(tmp_path: Path) -> None:
    import asyncio

    from keephold import KeepholdError, Runtime

    store = f"sqlite:///{tmp_path / 'work.db'}"
    file = written(tmp_path, "[conversation]\nmax_requests = 3")
    first = Script([called("c1", "note", text="a")], [called("c2", "note", text="b")], Reply("Never.", pause=3600))
    rt = Runtime([note], store=store, config=file)
    async with rt:
        conversation = rt.conversation("main", model=first.model)
        task = asyncio.create_task(conversation.prompt("Go."))
        await until(lambda: len(first.read) == 3)
        task_ended = asyncio.ensure_future(asyncio.wait([task], timeout=0))
        await task_ended
        closing = asyncio.create_task(rt.close())
        await closing
        task.cancel()
    with pytest.raises((KeepholdError, asyncio.CancelledError)):
        await task
    second = Script(*[[called("c", "note", text="c")]] * 5)
    async with talking(second, note, store=store, config=file) as talk:
        await talk.conversation.open()
        assert talk.conversation.interrupted
        answer = await talk.resume()
    assert answer.stop_reason == "max_turn_requests"
    assert len(second.read) == 1
    assert answer.usage.requests == 3
