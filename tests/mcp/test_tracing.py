"""The context that an MCP client sends with a call is the parent of what is done for it."""

import pytest
from tests.mcp.clients import ERAS, connected
from tests.mcp.serving import serving
from tests.patience import until
from tests.spans import Spans, spans, trace_of

__all__ = ["spans"]


@pytest.mark.parametrize("era", ERAS)
async def test_M1_a_call_belongs_to_the_trace_of_its_client(era: str, spans: Spans) -> None:
    async with serving() as here, connected(here.url, era) as client:
        with spans.tracer.start_as_current_span("agent") as agent:
            await client.call_tool("echo", {"text": "hello"})
        await until(lambda: bool(spans.named("execute_tool echo")))
    assert trace_of(spans.one("execute_tool echo")) == agent.get_span_context().trace_id
