"""`read_output` at the edges of what is kept (O4): the last part is the last part, and it reads on into the result."""

import json
from typing import Any

import keephold

FEW_LINES = keephold.policies.OutputPolicy(model=keephold.policies.OutputView(limit=100, max_lines=3))


@keephold.tool(output=FEW_LINES)
async def count(call: keephold.Call, to: int, result: str) -> str:
    """Emit numbers, then return something."""
    for number in range(to):
        call.emit(f"{number}\n")
    return result


async def read(to: int, result: str, **arguments: Any) -> dict[str, Any]:
    async with keephold.Runtime([count]) as rt, rt.turn("main") as turn:
        await turn.run([keephold.ToolCall("1", "count", {"to": to, "result": result})])
        [response] = await turn.run([keephold.ToolCall("2", "read_output", {"call_id": "1", **arguments})])
        assert not response.is_error, response.result
        found: dict[str, Any] = json.loads(response.result)
        return found


async def test_O4_from_end_alone_is_the_last_part_also_when_lines_are_the_cap() -> None:
    kept = await read(1000, "", from_end=True)
    assert kept["content"] == "997\n998\n999\n"
    assert kept["end"] == kept["total"] == kept["offset"] + len(kept["content"])


async def test_O4_from_end_with_an_offset_reads_on_from_there() -> None:
    kept = await read(1000, "", from_end=True, offset=8)
    assert kept["content"] == "998\n999\n"
    kept = await read(1000, "", from_end=True, offset=40)
    assert kept["content"] == "990\n991\n992\n"
    assert kept["end"] < kept["total"]


async def test_O4_a_piece_goes_on_from_what_was_emitted_into_the_result() -> None:
    assert (await read(2, "done"))["content"] == "0\n1\ndone"
    assert (await read(1000, "done", from_end=True))["content"] == "998\n999\ndone"
