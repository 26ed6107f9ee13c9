"""Checks of durable effects, without and with a crash: journaled steps, sleeps, events from outside, results that come
later, and the rest of a call's life."""

import asyncio
import time
from typing import Any

from keephold.durable.deferred import Pending
from keephold.errors import ToolError
from keephold.handles.question import Question
from keephold.handles.state import Failure, Ok
from keephold.testing.conformance.site import (
    CONVERSATION,
    MEANINGS,
    RESOLUTIONS,
    EffectsSuite,
    Story,
    code_of,
    crashing,
    until,
)
from keephold.tools.base import RetryPolicy
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


class WaitChecks(EffectsSuite):
    """E5, D3 to D5."""

    async def check_E5_a_sleep_lasts_at_least_as_long_as_it_says(self) -> None:
        @self.tool()
        async def work(call: Call) -> None:
            fx = call.durable()
            await fx.sleep(0)
            await fx.sleep(-5)
            await asyncio.gather(fx.sleep(0.4), fx.sleep(0.2))

        async with self.make([work]) as site:
            begun = time.time()
            response = await site.run("work")
        assert not response.is_error and time.time() - begun >= 0.4, response.result

    @crashing
    async def check_E5_a_sleep_keeps_its_time(self) -> None:
        story = Story()

        @self.tool()
        async def work(call: Call) -> str:
            await call.durable().sleep(0.01 if story.dies else 3600)
            await story.cut_here()
            return "rested"

        assert (await self.relive(work, story)).outcome == Ok("rested")

    async def check_D4_D5_the_first_resolution_counts_before_and_after_anyone_waits(self) -> None:
        keys: dict[str, str] = {}
        resolved = asyncio.Event()

        @self.tool()
        async def work(call: Call, early: bool) -> list[Any]:
            fx = call.durable()
            for status in RESOLUTIONS:
                keys[status] = str(await fx.external_event_key(status))
            if early:
                await resolved.wait()

            async def event(status: str) -> Any:
                code = await code_of(fx.await_event_json(keys[status]))
                return code or await fx.await_event_json(keys[status])

            return await asyncio.gather(*map(event, RESOLUTIONS))

        async with self.make([work]) as site:
            for early in (True, False):
                keys.clear()
                await site.spawn("work", str(early), early=early)
                await until(lambda: len(keys) == len(RESOLUTIONS))
                for status, payload in RESOLUTIONS.items():
                    assert await site.resolve(keys[status], status, payload) == "accepted"
                    assert await site.resolve(keys[status], "ok", "second") == "already_resolved"
                resolved.set()
                outcome = (await site.ended(str(early))).outcome
                assert outcome == Ok(list(MEANINGS.values())), outcome

    async def check_D5_E5_a_revoked_key_ends_the_wait_and_is_worth_nothing(self) -> None:
        keys: list[str] = []

        @self.tool()
        async def work(call: Call) -> list[Any]:
            fx = call.durable()
            keys.append(await fx.external_event_key("n"))
            foreign = await code_of(fx.await_event_json("hf1.00000000.WyJhIl0.AAAA"))
            keys.append(await fx.external_event_key("n"))
            empty = await code_of(fx.external_event_key(""))
            return [foreign, empty, await code_of(fx.await_event_json(keys[0]))]

        async with self.make([work]) as site:
            await site.spawn("work")
            await until(lambda: len(keys) == 2)
            assert keys[0] == keys[1]

            async def revoked() -> bool:  # the key counts when its row is there
                return await site.runtime.revoke_keys(CONVERSATION) > 0

            await until(revoked)
            outcome = (await site.ended()).outcome
            assert await site.resolve(keys[0], "ok") == "unknown_or_revoked"
        unknown = "await_event_unknown_or_revoked"
        assert outcome == Ok([unknown, "durable_effect_empty_event_key", unknown]), outcome

    @crashing
    async def check_E5_an_event_finds_the_call_in_its_next_life(self) -> None:
        story, keys = Story(), list[str]()

        @self.tool()
        async def work(call: Call) -> Any:
            fx = call.durable()
            keys.append(await fx.external_event_key("before"))
            before = await fx.await_event_json(keys[-1])
            keys.append(await fx.external_event_key("after"))
            await story.cut_here()
            return [before, await fx.await_event_json(keys[-1])]

        async with self.make([work]) as site:
            await site.spawn("work")
            await until(lambda: len(keys) == 1)
            assert await site.resolve(keys[0], "ok", 1) == "accepted"
            await story.crash(site)
            await until(lambda: len(keys) == 4)
            assert await site.resolve(keys[1], "ok", 2) == "accepted"
            assert (await site.ended()).outcome == Ok([1, 2])
        assert keys[:2] == keys[2:], "the same names give the same keys"


class DeferredCallChecks(EffectsSuite):
    """D1, D2, D7."""

    async def check_D1_a_completion_key_is_one_and_pending_needs_it(self) -> None:
        keys: list[str] = []

        @self.tool(on_crash="fail")
        async def work(call: Call, takes: bool) -> Any:
            if takes:
                keys.extend([await call.completion_key(), await call.completion_key()])
                return "at once"
            return Pending()

        async with self.make([work]) as site:
            refused, plain = await site.run("work", takes=False), await site.run("work", takes=True)
            late = await site.resolve(keys[0], "ok", "late")
        assert refused.code == "pending_tool_missing_completion_key", refused.result
        assert plain.result == "at once" and keys[0] == keys[1] and late == "already_resolved", (plain.result, late)

    async def check_D2_D7_a_parked_call_ends_at_its_deadline_or_by_its_key(self) -> None:
        keys: dict[str, str] = {}
        cancelled: list[str] = []

        @self.tool(on_crash="fail")
        async def work(call: Call, deadline: float) -> Pending:
            keys[call.id] = await call.completion_key()
            return Pending(deadline)

        @work.on_cancel
        async def cancel(key: str, arguments: dict[str, Any]) -> None:
            cancelled.append(key)

        async with self.make([work]) as site:
            for id, deadline in (("late", 0.05), ("done", 3600), ("aborted", 3600)):
                await site.spawn("work", id, deadline=deadline)
            late = (await site.ended("late")).outcome
            assert (await site.parked("done")).state == "running"
            assert await site.resolve(keys["done"], "ok", {"n": 1}) == "accepted"
            assert (await site.ended("done")).outcome == Ok({"n": 1})
            await site.parked("aborted")
            await site.abort("work", "aborted")
            await until(lambda: cancelled == [keys["aborted"]])
        assert isinstance(late, Failure) and late.code == "tool_completion_timeout", late

    @crashing
    async def check_E10_the_replayed_call_has_the_same_key_and_parks(self) -> None:
        story, keys = Story(), list[str]()

        @self.tool()
        async def work(call: Call) -> Pending:
            keys.append(await call.completion_key())
            await story.cut_here()
            return Pending()

        async with self.make([work]) as site:
            await site.spawn("work")
            await story.crash(site)
            await site.parked()
            await site.crash()
            assert await site.resolve(keys[0], "ok", "yes") == "accepted"
            assert (await site.ended()).outcome == Ok("yes")
        assert len(keys) == 2 and keys[0] == keys[1], keys


class ProcessEventChecks(EffectsSuite):
    """E8."""

    async def check_E8_the_events_of_a_process_are_numbered(self) -> None:
        @self.tool()
        async def work(call: Call) -> Any:
            fx = call.durable()
            codes = [await code_of(fx.emit_process_event("opened", {"n": 1}))]
            codes.append(await code_of(fx.emit_process_event("", {})))
            codes.append(await code_of(fx.emit_process_event("t", object())))
            codes.append(await code_of(call.process_events().emit("noted")))
            return codes

        async with self.make([work]) as site:
            outside = await site.run("work")
            await site.spawn("work")
            info = await site.ended()
            events = await site.runtime.process_events(info.uid)
        refused = ["durable_effect_empty_process_event_type", "durable_effect_not_json"]
        nowhere = "durable_effect_process_event_unavailable"
        assert outside.result.count(nowhere) >= 2, outside.result
        assert info.outcome == Ok([None, *refused, None]), info.outcome
        assert [(each.sequence, each.type, each.payload) for each in events] == [
            (1, "opened", {"n": 1}),
            (2, "noted", None),
        ]

    @crashing
    async def check_E8_E10_an_event_is_appended_once(self) -> None:
        story = Story()

        @self.tool()
        async def work(call: Call) -> str | None:
            fx = call.durable()
            for _ in range(2):
                await fx.emit_process_event("opened", {"first": story.dies})
                await fx.sleep(0)
            await story.cut_here()
            await fx.emit_process_event("closed")
            return call.process_id

        async with self.make([work]) as site:
            await site.spawn("work")
            await story.crash(site)
            info = await site.ended()
            events = await site.runtime.process_events(info.uid)
        assert info.outcome == Ok(info.uid)
        opened = ("opened", {"first": True})
        assert [(each.type, each.payload) for each in events] == [opened, opened, ("closed", None)]


class TalkChecks(EffectsSuite):
    """E10."""

    @crashing
    async def check_E10_answers_and_input_are_replayed(self) -> None:
        story = Story()

        @self.tool()
        async def work(call: Call) -> list[Any]:
            said = [await call.ask(Question(id="name", text="Name?", answer_type="Text")), await call.input()]
            await story.cut_here()
            said.append(await call.ask(Question(id="sure", text="Sure?", answer_type="Boolean")))
            try:
                while True:
                    said.append(await call.input())
            except EOFError:
                return said

        async with self.make([work]) as site:
            await site.spawn("work")
            await site.reaches("waiting")
            await site.send("Ann")
            await site.reaches("running")
            await site.send({"line": 1})
            await story.crash(site)
            await site.reaches("waiting")
            question = (await site.info()).question
            assert question is not None and question.text == "Sure?", question
            await site.send(True)
            await site.reaches("running")
            await site.send("two")
            await site.send(None)
            info = await site.ended()
        assert info.outcome == Ok(["Ann", {"line": 1}, True, "two"]), info.outcome


class LifeChecks(EffectsSuite):
    """R1, R5, C7."""

    async def check_R5_a_retry_keeps_what_succeeded_and_forgets_what_failed(self) -> None:
        ran: list[str] = []
        keys: set[str] = set()

        @self.tool(retry=RetryPolicy(policy="safe", max_attempts=3, base_delay_ms=1))
        async def work(call: Call, luck: int) -> int:
            fx = call.durable()
            keys.add(call.idempotency_key)

            async def good(given: Any) -> None:
                ran.append("good")

            async def bad(given: Any) -> None:
                ran.append("bad")
                if ran.count("bad") < luck:
                    raise ToolError("not yet", transient=True)

            await fx.run_json("good", None, good)
            await fx.run_json("bad", None, bad)
            return luck

        async with self.make([work]) as site:
            lucky = await site.run("work", luck=3)
            assert lucky.result == "3" and ran == ["good", "bad", "bad", "bad"] and len(keys) == 1, (lucky, ran)
            unlucky = await site.run("work", luck=100)
        assert unlucky.is_error and "not yet" in unlucky.result and ran.count("bad") == 6, (unlucky, ran)

    async def check_C7_an_abort_reaches_a_call_that_works_and_one_that_waits(self) -> None:
        began: list[str] = []
        cleaned: list[str] = []

        @self.tool()
        async def work(call: Call) -> None:
            fx = call.durable()
            key = await fx.external_event_key("never")
            try:
                began.append(call.id)
                await (asyncio.sleep(3600) if call.id == "works" else fx.await_event_json(key))
            finally:
                cleaned.append(call.id)

        async with self.make([work]) as site:
            for id in ("works", "waits"):
                await site.spawn("work", id)
            await until(lambda: len(began) == 2)
            for id in ("works", "waits"):
                assert not (await site.abort("work", id)).is_error
                info = await site.ended(id)
                assert isinstance(info.outcome, Failure) and info.ended_by == "abort", info
        assert sorted(cleaned) == ["waits", "works"]

    @crashing
    async def check_R1_a_crash_ends_a_call_that_is_not_replayed(self) -> None:
        story = Story()

        @self.tool(on_crash="fail")
        async def work(call: Call) -> None:
            story.did.append("began")
            await story.cut_here()

        info = await self.relive(work, story)
        assert isinstance(info.outcome, Failure) and info.outcome.transient, info.outcome
        assert info.ended_by == "crash" and story.did == ["began"], info
