"""The assistant chooses the ids of its handles, so that one batch can start a tool and name it (B2, S6)."""

import asyncio
import json

from tests.scenarios.assistant import batch, call, one

import keephold
from keephold.testing import VirtualClock

ran: list[str] = []


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def build(target: str) -> str:
    ran.append(target)
    await asyncio.sleep(10)
    return f"built {target}"


@keephold.tool
async def note(line: str) -> str:
    ran.append(line)
    return "noted"


async def rejected(turn: keephold.Turn, *calls: keephold.ToolCall) -> set[str]:
    """Every call of the batch is answered with an error; the distinct texts."""
    responses = await turn.run(calls)
    assert [response.id for response in responses] == [each.id for each in calls]
    assert all(response.is_error for response in responses)
    return {response.result for response in responses}


async def test_B2_two_spawns_with_one_id_reject_the_batch_before_any_tool_runs(clock: VirtualClock) -> None:
    ran.clear()
    async with keephold.Runtime([build, note], clock=clock) as rt, rt.turn("main") as turn:
        (told,) = await rejected(
            turn,
            call("note", {"line": "before"}),
            call("build", {"action": "spawn", "id": "build_release", "target": "a"}),
            call("build", {"action": "spawn", "id": "build_release", "target": "b"}),
            call("await", {"all": ["build_release"]}),
        )
        assert "`build_release`" in told
        await clock.advance(100)
        assert ran == []
        assert await rt.handles(conversation="main") == []


async def test_B2_an_id_of_an_active_handle_rejects_the_batch_before_any_tool_runs(clock: VirtualClock) -> None:
    ran.clear()
    async with keephold.Runtime([build, note], clock=clock) as rt, rt.turn("main") as turn:
        await one(turn, "build", {"action": "spawn", "id": "build_release", "target": "a"})
        (told,) = await rejected(
            turn,
            call("note", {"line": "before"}),
            call("build", {"action": "spawn", "id": "build_release", "target": "b"}),
        )
        assert "`build_release`" in told
        await clock.advance(1)
        assert ran == ["a"]
        # The assistant retries with a different name.
        await one(turn, "build", {"action": "spawn", "id": "build_debug", "target": "b"})
        both = await one(turn, "await", {"all": ["build_release", "build_debug"]})
        assert [handle["result"] for handle in both["completed"]] == ["built a", "built b"]


async def test_S6_a_stopped_id_may_be_used_again(clock: VirtualClock) -> None:
    ran.clear()
    async with keephold.Runtime([build], clock=clock) as rt, rt.turn("main") as turn:
        for target in ("a", "b"):
            *_, waited = await batch(
                turn,
                call("build", {"action": "spawn", "id": "build", "target": target}),
                call("await", {"all": ["build"]}),
            )
            assert waited["completed"] == [{"id": "build", "state": "stopped", "result": f"built {target}"}]


SPAWN_ID = """
{
  "properties": {
    "action": {
      "const": "spawn"
    },
    "id": {
      "type": "string",
      "description": "Handle ID for this tool instance. Must be unique across active handles."
    }
  },
  "required": [
    "action",
    "id"
  ]
}
"""


def test_C1_the_id_is_a_required_parameter_of_spawn() -> None:
    @keephold.tool(actions=("spawn", "fetch", "abort"))
    async def cargo_check() -> str:
        return "ok"

    (tool,) = (each for each in keephold.Runtime([cargo_check]).tools("canonical") if each["name"] == "cargo_check")
    spawn = tool["parameters"]["oneOf"][0]
    asked = json.loads(SPAWN_ID)
    assert spawn["properties"] == asked["properties"]
    assert spawn["required"] == asked["required"]
