"""What a conversation spends, in numbers and in spans (G1)."""

from prometheus_client.parser import text_string_to_metric_families
from tests.agent.scripted import Reply, Script
from tests.agent.talk import talking
from tests.spans import Spans, said, spans

import keephold
from keephold.serve.metrics import Prometheus

__all__ = ["spans"]


@keephold.tool
async def note(text: str) -> str:
    """Take a note."""
    return f"noted {text}"


async def test_G1_requests_to_a_model_belong_to_the_turn(spans: Spans) -> None:
    script = Script(Reply(calls=[("1", "note", {"text": "x"})], usage=(100, 20)), Reply("Done.", usage=(150, 5)))
    metrics = Prometheus()
    async with talking(script, note, metrics=metrics) as talk:
        await talk.prompt()
    model = script.model.model_name
    chats = spans.named(f"chat {model}")
    assert [spans.path(chat) for chat in chats] == [["invoke_agent", f"chat {model}"]] * 2
    assert [said(chat)["gen_ai.usage.input_tokens"] for chat in chats] == [100, 150]
    assert {said(chat)["gen_ai.operation.name"] for chat in chats} == {"chat"}
    assert spans.path(spans.one("execute_tool note")) == ["invoke_agent", "execute_tool note"]
    body, _ = await metrics.render()
    tokens = {
        sample.labels["direction"]: sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
        if sample.name == "keephold_model_tokens_total"
    }
    assert tokens == {"input": 250, "output": 25}
