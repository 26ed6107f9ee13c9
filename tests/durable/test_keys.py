"""Keys (D3, D5, K5): who holds one may complete that one wait, once; what is no key is told nothing."""

import asyncio
import base64
import json
import logging
import re
import string
from pathlib import Path

import pytest
from tests.durable.lives import HandClock, approval, ok, parked, power_cut, stopped, stored_in
from tests.patience import until
from tests.turn.calls import STATEFUL, opened, reply, spawn

import keephold
from keephold import Call, Key, Pending, Runtime
from keephold.outcomes import Failure, Ok
from keephold.testing import VirtualClock


async def parked_key(rt: Runtime, clock: VirtualClock, keys: list[Key], conversation: str = "main") -> Key:
    """The key of a call that is parked from now on."""
    before = len(keys)
    async with rt.turn(conversation) as turn:
        await reply(turn, spawn("approve", f"a{before}"))
        await clock.advance(1)
    return keys[before]


async def test_D3_a_key_is_safe_in_a_url_and_names_conversation_and_call(clock: VirtualClock) -> None:
    keys: list[Key] = []
    odd = "a conversation/with ?odd=characters&ünïcode"
    async with Runtime([approval(keys)], clock=clock) as rt:
        key = await parked_key(rt, clock, keys, odd)
        assert isinstance(key, str) and isinstance(key, Key)
        assert re.fullmatch(r"[A-Za-z0-9._~-]+", key)
        payload = key.split(".")[2]
        decoded = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        info = await rt.handle("a0", conversation=odd)
        assert json.loads(decoded) == [odd, info.uid, "completion"]
        assert str(await rt.resolve(str(key), ok(1))) == "accepted"


async def test_D3_the_key_id_is_stable_and_without_authority(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with Runtime([approval(keys)], clock=clock) as rt:
        key = await parked_key(rt, clock, keys)
        assert key.key_id and key.key_id not in key
        assert str(await rt.resolve(key.key_id, ok(1))) == "unknown_or_revoked"
        assert key not in repr(key) and key.key_id in repr(key)
        assert (await rt.handle("a0", conversation="main")).parked


async def test_D3_a_key_is_a_string_for_everyone(clock: VirtualClock) -> None:
    """It is published by steps, shown in events and returned as a result; on the way it is JSON like any string."""
    seen: list[str] = []

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def publish(call: Call) -> dict[str, str]:
        fx = call.durable()
        key = await fx.external_event_key("approved")

        async def send(given: dict[str, str]) -> str:
            seen.append(given["key"])
            return given["key"]

        returned = await fx.run_json("send", {"key": key}, send)
        await fx.emit_process_event("sent", {"key_id": key.key_id, "key": key})
        return {"key": key, "returned": returned}

    @keephold.tool
    async def plain(call: Call) -> str:
        return await call.completion_key()

    async with opened(clock, [publish, plain]) as (rt, turn):
        await reply(turn, spawn("publish", "p"))
        info = await stopped(rt, "p")
        assert isinstance(info.outcome, Ok), info.outcome
        assert info.outcome.value["key"] == info.outcome.value["returned"] == seen[0]
        (event,) = await rt.process_events(info.uid)
        assert event.payload["key"] == seen[0]
        (response,) = await turn.run([keephold.ToolCall("1", "plain")])
        assert response.result.startswith("hf1.")


async def test_D3_a_key_as_a_result_can_be_stored(tmp_path: Path) -> None:
    @keephold.tool(actions=STATEFUL)
    async def plain(call: Call) -> str:
        return await call.completion_key()

    @keephold.tool(actions=STATEFUL)
    async def boxed(call: Call) -> list[str]:
        return [await call.completion_key()]

    async with Runtime([plain, boxed], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([spawn("plain", "p"), spawn("boxed", "b")])
        for id in ("p", "b"):
            assert (await stopped(rt, id)).ok


async def test_D3_keys_outlive_the_process(tmp_path: Path) -> None:
    keys: list[Key] = []
    clock, store = HandClock(), stored_in(tmp_path)
    async with Runtime([approval(keys)], store=store, clock=clock) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("approve", "a"))
        await parked(rt)
        cut = power_cut(store)
    for place in (store, cut):
        async with Runtime(store=place, clock=clock) as rt:  # no tools: the key is enough
            assert str(await rt.resolve(str(keys[0]), ok("yes"))) == "accepted"
            assert (await rt.handle("a", conversation="main")).outcome == Ok("yes")


async def test_D3_rotation_makes_new_keys_with_a_new_secret_and_old_ones_stay_good(tmp_path: Path) -> None:
    keys: list[Key] = []

    @keephold.tool(actions=STATEFUL)
    async def approve(call: Call) -> Pending:
        keys.append(await call.completion_key())
        await rotated.wait()
        keys.append(await call.completion_key())
        return Pending()

    rotated, store = asyncio.Event(), stored_in(tmp_path)
    async with Runtime([approve], store=store) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("approve", "old"))
        await until(lambda: len(keys) == 1)
        secret = await rt.rotate_secret()
        rotated.set()
        await until(lambda: len(keys) == 2)
        assert keys[0] == keys[1] and secret not in keys[0]  # the call has a key, and keeps it
        await reply(turn, spawn("approve", "new"))
        await until(lambda: len(keys) == 4)
        assert keys[2].split(".")[1] == secret
    async with Runtime([approve], store=store) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("approve", "newer"))
        await until(lambda: len(keys) == 6)
        assert keys[4].split(".")[1] == secret
        assert str(await rt.resolve(keys[0], ok(1))) == "accepted"
        assert str(await rt.resolve(keys[2], ok(2))) == "accepted"


async def test_D3_a_rotation_elsewhere_is_followed(tmp_path: Path) -> None:
    """Another process rotates: keys made here are good either way, and a new runtime uses the new secret."""
    keys: list[Key] = []
    store = stored_in(tmp_path)
    async with Runtime([approval(keys)], store=store) as one, Runtime(store=store) as other:
        async with one.turn("main") as turn:
            await reply(turn, spawn("approve", "a"))
            await parked(one)
            await other.rotate_secret()
            await reply(turn, spawn("approve", "b"))
            await parked(one, 2)
        for key in keys:
            assert str(await other.resolve(key, ok(1))) == "accepted"


def forged(key: Key) -> dict[str, str]:
    """Strings that are not the key, by what is wrong with them."""
    form, secret, payload, signature = key.split(".")
    inside = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))

    def sealed(*parts: str) -> str:
        text = base64.urlsafe_b64encode(json.dumps(parts, separators=(",", ":")).encode()).rstrip(b"=").decode()
        return f"{form}.{secret}.{text}.{signature}"

    other = "A" if signature[0] != "A" else "B"
    alphabet = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
    already_handled = alphabet[
        alphabet.index(signature[-1]) ^ 1
    ]  # 32 bytes leave two bits of the last character unused
    return {
        "nothing": "",
        "a word": "hello",
        "no signature": f"{form}.{secret}.{payload}.",
        "cut off": key[:-2],
        "too long": key + "AA",
        "another signature": f"{form}.{secret}.{payload}.{other}{signature[1:]}",
        "another secret": f"{form}.00000000.{payload}.{signature}",
        "another form": f"hf2.{secret}.{payload}.{signature}",
        "another conversation": sealed("other", *inside[1:]),
        "another call": sealed(inside[0], "0" * 32, inside[2]),
        "another wait": sealed(*inside[:2], "event:x"),
        "one part more": f"{form}.{secret}.{payload}.{signature}.{signature}",
        "not ascii": key[:-3] + "é€\ud800",
        "white space": f" {key}\n",
        "a zero": key + "\0",
        "a line end": key + "\n",
        "unused bits": key[:-1] + already_handled,
        "padding": key + "=",
        "a mile long": "hf1." + "A" * 100_000,
    }


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_D5_what_is_no_key_is_told_the_same_whatever_it_is(tmp_path: Path, store: str) -> None:
    keys: list[Key] = []
    url = "memory:" if store == "memory" else stored_in(tmp_path)
    async with Runtime([approval(keys)], store=url) as rt, rt.turn("main") as turn:
        await reply(turn, spawn("approve", "a"))
        await parked(rt)
        answers = {what: await rt.resolve(text, ok(1)) for what, text in forged(keys[0]).items()}
        assert {what: str(answer) for what, answer in answers.items()} == dict.fromkeys(answers, "unknown_or_revoked")
        assert all(answer.terminal is None for answer in answers.values())
        assert (await rt.handle("a", conversation="main")).parked
        assert str(await rt.resolve(keys[0], ok(1))) == "accepted"


async def test_D5_a_key_of_another_store_is_never_issued_here(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with Runtime([approval(keys)], clock=clock) as one, Runtime([approval(keys)], clock=clock) as other:
        key = await parked_key(one, clock, keys)
        await parked_key(other, clock, keys)
        answer = await other.resolve(key, ok(1))
        assert (str(answer), answer.terminal) == ("unknown_or_revoked", None)


async def test_D5_a_revoked_key_is_worth_nothing_and_its_call_is_stopped(clock: VirtualClock) -> None:
    keys: list[Key] = []
    events: list[Key] = []

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def listens(call: Call) -> str:
        fx = call.durable()
        events.append(await fx.external_event_key("ready"))
        return str(await fx.await_event_json(events[0]))

    async with Runtime([approval(keys), listens], clock=clock) as rt:
        key = await parked_key(rt, clock, keys)
        resolved = await parked_key(rt, clock, keys)
        foreign = await parked_key(rt, clock, keys, "other")
        await rt.resolve(resolved, ok("before"))
        async with rt.turn("main") as turn:
            await reply(turn, spawn("listens", "l"))
            await clock.advance(1)
            assert await rt.revoke_keys("main") == 2
            answer = await rt.resolve(key, ok("late"))
            assert (str(answer), answer.terminal) == ("unknown_or_revoked", None)
            assert str(await rt.resolve(events[0], ok("late"))) == "unknown_or_revoked"
            for id in ("a0", "l"):
                outcome = (await stopped(rt, id)).outcome
                assert isinstance(outcome, Failure) and outcome.code == "await_event_unknown_or_revoked"
        assert str(await rt.resolve(resolved, ok("again"))) == "already_resolved"
        assert str(await rt.resolve(foreign, ok("fine"))) == "accepted"
        assert await rt.revoke_keys("main") == 0


async def test_D5_revoked_before_the_tool_returns_pending(clock: VirtualClock) -> None:
    @keephold.tool(actions=STATEFUL)
    async def slow(call: Call) -> Pending:
        await call.completion_key()
        await asyncio.sleep(10)
        return Pending()

    async with opened(clock, [slow]) as (rt, turn):
        await reply(turn, spawn("slow", "s"))
        await clock.advance(1)
        assert await rt.revoke_keys("main") == 1
        info = await stopped(rt, "s", within=60)
        assert isinstance(info.outcome, Failure) and info.outcome.code == "await_event_unknown_or_revoked"
        assert info.stopped == pytest.approx(info.created + 10)


async def test_D5_resolving_before_anyone_waits_is_kept(clock: VirtualClock) -> None:
    keys: list[Key] = []

    @keephold.tool(actions=STATEFUL)
    async def slow(call: Call) -> Pending:
        keys.append(await call.completion_key())
        await asyncio.sleep(10)
        return Pending(deadline=60)

    async with opened(clock, [slow]) as (rt, turn):
        batch = asyncio.create_task(turn.run([keephold.ToolCall("1", "slow"), spawn("slow", "s")]))
        await clock.advance(1)
        for key in keys:
            assert str(await rt.resolve(key, ok("early"))) == "accepted"
            second = await rt.resolve(key, ok("second"))
            assert (str(second), second.terminal) == ("already_resolved", ok("early"))
        assert (await rt.handle("s", conversation="main")).state == "running"
        assert (await batch)[0].result == "early"
        info = await stopped(rt, "s")
        assert info.outcome == Ok("early") and info.stopped == pytest.approx(info.created + 10)


async def test_D5_of_many_that_resolve_at_once_one_is_accepted(tmp_path: Path) -> None:
    keys: list[Key] = []
    store = stored_in(tmp_path)
    async with Runtime([approval(keys)], store=store) as one, Runtime(store=store) as two, one.turn("main") as turn:
        await reply(turn, spawn("approve", "a"))
        await parked(one)
        answers = await asyncio.gather(*((one, two)[n % 2].resolve(keys[0], ok(n)) for n in range(20)))
        accepted = [n for n, answer in enumerate(answers) if str(answer) == "accepted"]
        assert len(accepted) == 1
        late = [answer for answer in answers if str(answer) != "accepted"]
        assert all((str(each), each.terminal) == ("already_resolved", ok(accepted[0])) for each in late)
        assert (await stopped(one, "a")).outcome == Ok(accepted[0])
        assert (await stopped(two, "a")).outcome == Ok(accepted[0])


async def test_D5_a_resolution_is_kept_as_long_as_the_tombstone(clock: VirtualClock) -> None:
    keys: list[Key] = []
    async with Runtime([approval(keys)], clock=clock) as rt:
        key = await parked_key(rt, clock, keys)
        await rt.resolve(key, ok("yes"))
        for secs, status in ((2 * 3600, "already_resolved"), (89 * 86_400, "already_resolved")):
            await clock.advance(secs)
            async with rt.turn("other"):
                pass  # a turn collects
            answer = await rt.resolve(key, ok("late"))
            assert (str(answer), answer.terminal) == (status, ok("yes"))
        await clock.advance(2 * 86_400)
        async with rt.turn("other"):
            pass
        assert str(await rt.resolve(key, ok("late"))) == "unknown_or_revoked"


async def test_K5_no_key_reaches_a_log_or_an_error(clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> None:
    keys: list[Key] = []

    @keephold.tool
    async def breaks(call: Call) -> str:
        keys.append(await call.completion_key())
        raise ValueError(f"could not publish {keys[0]!r}")

    caplog.set_level(logging.DEBUG)
    async with opened(clock, [breaks]) as (_, turn):
        (response,) = await turn.run([keephold.ToolCall("1", "breaks")])
        assert response.is_error and keys[0] not in response.result
    assert keys[0] not in caplog.text and keys[0].key_id in caplog.text
