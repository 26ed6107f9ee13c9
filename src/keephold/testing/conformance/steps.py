"""Journaled steps, without and with a crash."""

import asyncio
from typing import Any

from keephold.errors import ToolError
from keephold.handles.state import Failure, Ok
from keephold.testing.conformance.site import EffectsSuite, Story, code_of, crashing
from keephold.tools.call import Call

_OWN = "mine"


class StepChecks(EffectsSuite):
    """E1 to E4, E7."""

    async def check_E1_effects_are_declared_never_inferred(self) -> None:
        @self.tool(on_crash="fail")
        async def work(call: Call) -> None:
            call.durable()

        async with self.make([work]) as site:
            response = await site.run("work")
        assert response.code == "durable_effects_unavailable" and 'on_crash="replay"' in response.result

    async def check_E2_E3_a_step_runs_once_and_is_refused_before_it_runs(self) -> None:
        ran: list[Any] = []
        numbers = [0, -1, 2**53 + 1, 0.1, 1e300, True, None, "\N{SNOWMAN}"]

        @self.tool()
        async def work(call: Call) -> list[Any]:
            fx = call.durable()

            async def give(given: Any) -> Any:
                ran.append(given)
                return (given, numbers)

            async def fail(given: Any) -> Any:
                ran.append(given)
                raise ToolError("no", code=_OWN)

            async def strange(given: Any) -> Any:
                return object()

            made = [await fx.run_json("a", 1, give)]
            both = await asyncio.gather(code_of(fx.run_json("b", 2, give)), code_of(fx.run_json("b", 2, give)))
            refused: list[Any] = [("a", 9, give), ("", 9, give), ("c", 3, fail), ("c", 9, give)]
            refused += [("d", object(), give), ("e", 4, strange)]
            return made + sorted(both, key=str) + [await code_of(fx.run_json(*each)) for each in refused]

        async with self.make([work]) as site:
            await site.spawn("work")
            outcome = (await site.ended()).outcome
        twice, strange = "durable_effect_duplicate_step_id", "durable_effect_not_json"
        codes = [None, twice, twice, "durable_effect_empty_step_id", _OWN, twice, strange, strange]
        assert outcome == Ok([[1, numbers], *sorted(codes[:2], key=str), *codes[2:]]), outcome
        assert ran == [1, 2, 3], ran

    @crashing
    async def check_E2_what_is_recorded_is_returned_and_not_done_again(self) -> None:
        story = Story()
        error = ToolError("the till is locked", code=_OWN, transient=True)

        @self.tool()
        async def work(call: Call) -> list[Any]:
            fx = call.durable()
            told: list[Any] = [await fx.run_json("first", {"n": 1}, story.step("first", {"made": [1, None]}))]
            for id, raised in (("own", error), ("any", KeyError("x"))):
                try:
                    await fx.run_json(id, None, story.step(id, raised))
                except ToolError as caught:
                    told.append([caught.message, caught.code, caught.transient])
            await story.cut_here()
            return [*told, await fx.run_json("second", told[0], story.step("second"))]

        info = await self.relive(work, story)
        first = {"made": [1, None]}
        errors = [["the till is locked", _OWN, True], ["KeyError: 'x'", "tool_error", False]]
        assert info.outcome == Ok([first, *errors, first]), info.outcome
        assert story.did == ["first", "own", "any", "second"] and info.attempt > 1 and info.ended_by == "self"

    @crashing
    async def check_E3_the_input_belongs_to_the_step_and_the_order_of_its_keys_does_not(self) -> None:
        story = Story()

        @self.tool()
        async def work(call: Call) -> None:
            fx = call.durable()
            given = {"a": 1, "b": {"c": 2, "d": 3}} if story.dies else {"b": {"d": 3, "c": 2}, "a": 1}
            await fx.run_json("same", given, story.step("same"))
            await fx.run_json("step", {"first": story.dies}, story.step("step"))
            await story.cut_here()

        outcome = (await self.relive(work, story)).outcome
        assert isinstance(outcome, Failure) and outcome.code == "durable_effect_hash_conflict", outcome
        assert "`step`" in outcome.message and story.did == ["same", "step"], story.did

    @crashing
    async def check_E3_E4_a_step_without_a_record_runs_again(self) -> None:
        story, keys = Story(), list[str]()

        @self.tool()
        async def work(call: Call) -> Any:
            fx = call.durable()
            result = object() if story.dies else "json"
            await code_of(fx.run_json("strange", None, story.step("strange", result)))

            async def pay(given: Any) -> str:
                keys.append(call.idempotency_key)
                await story.cut_here()
                return "paid"

            return [await fx.run_json("pay", None, pay), call.attempt > 1]

        assert (await self.relive(work, story)).outcome == Ok(["paid", True])
        assert story.did == ["strange", "strange"] and len(keys) == 2 and keys[0] == keys[1], (story.did, keys)

    @crashing
    async def check_E7_a_gather_replays_in_whichever_order_its_steps_are_reached(self) -> None:
        story = Story()

        @self.tool()
        async def work(call: Call) -> Any:
            fx, names = call.durable(), ["a", "b", "c", "d", "e"]
            done = await asyncio.gather(
                *(fx.run_json(name, name, story.step(name)) for name in (names if story.dies else names[::-1]))
            )
            await story.cut_here()
            return done

        assert (await self.relive(work, story)).outcome == Ok(["e", "d", "c", "b", "a"])
        assert sorted(story.did) == ["a", "b", "c", "d", "e"], story.did
