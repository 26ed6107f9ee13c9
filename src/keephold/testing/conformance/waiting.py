"""Sleeps, events from outside, and results that come later."""

import asyncio
import time
from typing import Any

from keephold.durable.deferred import Pending
from keephold.handles.state import Failure, Ok
from keephold.testing.conformance.site import CONVERSATION, EffectsSuite, Story, code_of, crashing, until
from keephold.tools.call import Call

_RESOLUTIONS: dict[str, Any] = {
    "ok": {"answer": 42},
    "err": {"code": "denied", "message": "Ann said no"},
    "timeout": None,
    "cancelled": None,
}
_MEANINGS = [{"answer": 42}, "denied", "durable_effect_event_timeout", "durable_effect_event_cancelled"]


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
            for status in _RESOLUTIONS:
                keys[status] = str(await fx.external_event_key(status))
            if early:
                await resolved.wait()

            async def event(status: str) -> Any:
                code = await code_of(fx.await_event_json(keys[status]))
                return code or await fx.await_event_json(keys[status])

            return await asyncio.gather(*map(event, _RESOLUTIONS))

        async with self.make([work]) as site:
            for early in (True, False):
                keys.clear()
                await site.spawn("work", str(early), early=early)
                await until(lambda: len(keys) == len(_RESOLUTIONS))
                for status, payload in _RESOLUTIONS.items():
                    assert await site.resolve(keys[status], status, payload) == "accepted"
                    assert await site.resolve(keys[status], "ok", "second") == "already_resolved"
                resolved.set()
                outcome = (await site.ended(str(early))).outcome
                assert outcome == Ok(_MEANINGS), outcome

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


class DeferredChecks(EffectsSuite):
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
