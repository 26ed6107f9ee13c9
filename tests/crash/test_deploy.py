"""The story this is all for: a deployment that waits for a human's approval, and a machine that does not wait.

The process dies after the first step. It is started again three minutes later by its clock, and goes on where it was:
the first step is not repeated. The approval comes from another process altogether. The model gets its answer.
"""

import asyncio
from pathlib import Path

from tests.crash.driver import NewLife
from tests.crash.stage import store_file
from tests.crash.world import effects

from keephold import Runtime


async def test_E2_a_deployment_is_approved_after_the_machine_died(new_life: NewLife, tmp_path: Path) -> None:
    life = new_life(tmp_path, ("deployment",))

    # A model calls `deploy`. The tool creates the release, asks for an approval, and the machine dies.
    first = life.start()
    asked = first.hear("key")
    assert asked is not None
    first.kill()
    life.over(first)

    # Three minutes later the program starts again. The tool runs from its beginning; the first step is only remembered.
    second = life.start(clock=180.0)
    asked_again = second.hear("key")
    assert asked_again is not None
    assert asked_again["key"] == asked["key"]
    assert second.hear("step", step="create") is not None

    # Somebody approves, from a process of their own that knows nothing but the key.
    async with Runtime(store=life.url or f"sqlite:///{store_file(tmp_path)}") as elsewhere:
        approval = {"status": "ok", "payload": {"approved by": "Ada"}}
        assert str(await elsewhere.resolve(asked["key"], approval)) == "accepted"
        late = await elsewhere.resolve(asked["key"], {"status": "timeout"})
        assert (late.status, late.terminal) == ("already_resolved", approval)
        answer = await asyncio.to_thread(second.hear, "answered")

    # The model gets its result.
    assert answer is not None
    assert answer["resumed"]
    ((_, result, is_error),) = answer["responses"]
    assert (is_error, '"approved by":"Ada"' in result) == (False, True)
    life.over(second)
    assert [(effect.what, effect.run) for effect in effects(tmp_path)] == [
        ("begin", 0),
        ("create", 0),
        ("begin", 1),
        ("release", 1),
    ]
