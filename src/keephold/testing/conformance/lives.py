"""The rest of a call's life: process events, questions and input, retries, abort, crash."""

import asyncio
from typing import Any

from keephold.errors import ToolError
from keephold.handles.question import Question
from keephold.handles.state import Failure, Ok
from keephold.testing.conformance.site import EffectsSuite, Story, code_of, crashing, until
from keephold.tools.base import RetryPolicy
from keephold.tools.call import Call


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
