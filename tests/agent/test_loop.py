"""The turn loop (G1): from what the user says to the end of the turn, whatever the model does in between."""

import asyncio
import json
import logging
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse
from tests.agent.scripted import Reply, Script, at_end, called, spawned
from tests.agent.talk import Talk, kinds, talking, unreadable

import keephold
from keephold import Call, KeepholdError, Pending
from keephold.agent.events import (
    Answered,
    Called,
    Event,
    Interjected,
    NotificationsDelivered,
    Text,
    Thought,
    TurnFinished,
    TurnStarted,
    Used,
)
from keephold.testing import VirtualClock

STATEFUL: Any = ("spawn", "fetch", "abort")


@keephold.tool
async def note(text: str) -> str:
    """Take a note."""
    return f"noted {text}"


@keephold.tool(actions=STATEFUL)
async def work(call: Call, secs: float = 600) -> str:
    """Takes its time."""
    await asyncio.sleep(secs)
    return "worked"


@keephold.tool(actions=STATEFUL, on_turn_end="keep")
async def kept(call: Call, secs: float = 60) -> str:
    """Outlives its turn."""
    await asyncio.sleep(secs)
    return "kept on"


@keephold.tool
async def fatal(call: Call) -> Pending:
    """Takes its turn with it."""
    await call.completion_key()
    return Pending(deadline=5, on_timeout="fail_turn")


TOOLS = (note, work, kept, fatal)


async def running(talk: Talk, text: str = "Go.") -> "asyncio.Task[Any]":
    task = asyncio.create_task(talk.prompt(text))
    await asyncio.sleep(0)
    return task


async def test_G1_a_turn_from_words_to_words(clock: VirtualClock) -> None:
    script = Script(
        Reply(["Let me ", "see."], [called("c1", "note", text="a"), called("c2", "note", text="b")], thinks="Hm."),
        "Both are noted.",
    )
    async with talking(script, *TOOLS, clock=clock) as talk:
        answer = await talk.prompt("Note a and b.")
        assert await talk.kinds() == ["request", "response", "request", "response"]
    assert (answer.text, answer.stop_reason, answer.error) == ("Both are noted.", "end_turn", None)
    assert kinds(talk.events) == [
        "TurnStarted", "Thought", "Text", "Text", "Used", "Called", "Answered", "Text", "Used", "TurnFinished"
    ]  # fmt: skip
    (started,) = talk.heard(TurnStarted)
    assert (started.turn, started.resumed) == (answer.turn, False)
    assert talk.heard(Thought) == [Thought("Hm.")]
    assert [call.id for call in talk.heard(Called)[0].calls] == ["c1", "c2"]
    assert [each.result for each in talk.heard(Answered)[0].responses] == ["noted a", "noted b"]
    assert talk.heard(TurnFinished)[0].answer == answer
    assert script.results() == ["noted a", "noted b"]
    assert (answer.usage.requests, answer.usage.input_tokens, answer.usage.output_tokens) == (2, 20, 10)


async def test_G1_turn_after_turn(clock: VirtualClock) -> None:
    script = Script("One.", [called("c1", "note", text="a")], "Two.", "Three.")
    async with talking(script, *TOOLS, clock=clock) as talk:
        answers = [await talk.prompt(text) for text in ("First", "Second", "Third")]
    assert [answer.text for answer in answers] == ["One.", "Two.", "Three."]
    assert len({answer.turn for answer in answers}) == 3
    assert len(script.read[-1]) == 7
    assert talk.conversation.usage.requests == 4


async def test_G1_what_is_offered(clock: VirtualClock) -> None:
    script = Script("Hello.")
    async with keephold.Runtime(TOOLS, clock=clock) as rt:
        await rt.conversation(model=script.model, instructions="Be brief.").prompt("Hi")
        tools = [each["name"] for each in rt.tools()]
    assert [tool.name for tool in script.offered[0].function_tools] == tools
    assert "Be brief." in (script.offered[0].instructions or "")
    assert "[Automatic" in (script.offered[0].instructions or "")


# Calls that are none


async def test_C9_broken_arguments_unknown_tools(clock: VirtualClock) -> None:
    script = Script(
        [
            ("c1", "note", '{"text": '),
            called("c2", "nobody"),
            called("c3", "note", text=3),
            ("c4", "note", ""),
            ("c5", "note", '["a"]'),
            called("c6", "note", text="fine"),
        ],
        "Done.",
    )
    async with talking(script, *TOOLS, clock=clock) as talk:
        assert (await talk.prompt()).stop_reason == "end_turn"
    *broken, fine = talk.heard(Answered)[0].responses
    assert [each.is_error for each in broken] == [True] * 5
    assert fine.result == "noted fine"
    assert "nobody" in broken[1].result and "`note`" in broken[1].result
    outcomes = [part.outcome for part in script.read[1][-1].parts if part.part_kind == "tool-return"]
    assert outcomes == ["failed"] * 5 + ["success"]


async def test_B1_the_same_id_twice(clock: VirtualClock) -> None:
    script = Script(
        [called("c", "note", text="a"), called("c", "note", text="b")],
        [called("c", "note", text="c")],
        "Done.",
    )
    async with talking(script, *TOOLS, clock=clock) as talk:
        await talk.prompt()
    assert script.results(1) == ["noted a", "noted b"]
    assert script.results(2) == ["noted c"]


async def test_K6_a_thousand_calls_and_one_more(clock: VirtualClock) -> None:
    script = Script(
        [called(f"c{at}", "note", text=str(at)) for at in range(1000)],
        [called(f"c{at}", "note", text=str(at)) for at in range(1001)],
        "Done.",
    )
    async with talking(script, *TOOLS, clock=clock) as talk:
        assert (await talk.prompt()).text == "Done."
    assert script.results(1) == [f"noted {at}" for at in range(1000)]
    assert len(script.results(2)) == 1001
    assert all("batch_calls" in text for text in script.results(2))


# News (N4)


async def test_N4_news_rides_on_the_first_response(clock: VirtualClock) -> None:
    script = Script([spawned("c1", "work", "w", secs=5)], [called("c2", "work", secs=10)], "Done.")
    async with talking(script, *TOOLS, clock=clock) as talk:
        await talk.prompt()
    assert script.results(2) == ["worked"]
    (news,) = script.told(2)
    assert news.startswith("[Automatic notifications.") and "`w` (work) stopped" in news
    (told,) = talk.heard(NotificationsDelivered)
    assert [each.kind for each in told.notifications] == ["tool.stopped"]
    assert told.text == news


async def test_N4_news_at_the_start_of_a_turn(clock: VirtualClock) -> None:
    script = Script([spawned("c1", "kept", "k")], "Later.", "Thanks.", "Nothing new.")
    async with talking(script, *TOOLS, clock=clock) as talk:
        await talk.prompt("First")
        await clock.advance(100)
        await talk.prompt("Second")
        await talk.prompt("Third")
    news, second = script.told(2)
    assert "`k` (kept) stopped" in news and second == "Second"
    assert script.told(3) == ["Third"]


async def test_N4_news_with_what_is_said_in_the_turn(clock: VirtualClock) -> None:
    script = Script([spawned("c1", "kept", "k", secs=3)], Reply(["So", "on."], pause=5), "Done.")
    async with talking(script, *TOOLS, clock=clock) as talk:

        def then(event: Event) -> None:
            if event == Text("So"):
                talk.conversation.say("And?")

        await talk.prompt(then=then)
    news, said = script.told(2)
    assert "`k` (kept) stopped" in news and said == "And?"
    assert talk.heard(Interjected) == [Interjected("And?")]


async def test_N4_critical_news_stops_the_stream(clock: VirtualClock) -> None:
    script = Script(Reply(["I ", "will ", "never ", "end."], [called("c1", "note", text="x")], pause=10), "I see.")
    async with talking(script, *TOOLS, clock=clock) as talk:
        task = await running(talk)
        await clock.advance(25)
        await talk.rt.notify("test.fire", "critical", "Fire!", conversation="main")
        answer = await task
        assert await talk.kinds() == ["request", "response", "request", "response"]
    partial = script.read[1][1]
    assert isinstance(partial, ModelResponse) and partial.state == "interrupted"
    assert [part.part_kind for part in partial.parts] == ["text"]
    assert talk.shown == "I will I see."
    assert "Fire!" in script.told(1)[0]
    assert answer.text == "I see."
    assert talk.heard(Called) == []


async def test_N4_critical_news_before_the_first_word(clock: VirtualClock) -> None:
    script = Script(Reply("Never.", pause=100), "I see.")
    async with talking(script, *TOOLS, clock=clock) as talk:
        task = await running(talk)
        await clock.advance(5)
        await talk.rt.notify("test.fire", "critical", "Fire!", conversation="main")
        await task
        assert await talk.kinds() == ["request", "request", "response"]
    prompt, news = script.told(1)
    assert prompt == "Go." and "Fire!" in news


async def test_R4_a_store_that_cannot_be_read_does_not_cost_the_answer(clock: VirtualClock) -> None:
    script = Script(Reply(["Paid ", "for."], pause=10), "I see.")
    async with talking(script, *TOOLS, clock=clock) as talk:
        store = talk.rt.registry.store
        reads = unreadable(store, "notifications", times=3)
        answer = await talk.prompt()
        assert reads == [3]
        assert await talk.kinds() == ["request", "response"]
    assert (answer.text, answer.stop_reason, answer.usage.requests) == ("Paid for.", "end_turn", 1)


async def test_N4_critical_news_stops_the_stream_also_when_the_store_could_not_be_read(clock: VirtualClock) -> None:
    script = Script(Reply(["I ", "will ", "never ", "end."], pause=10), "I see.")
    async with talking(script, *TOOLS, clock=clock) as talk:
        unreadable(talk.rt.registry.store, "notifications", times=3)
        task = await running(talk)
        await clock.advance(25)
        await talk.rt.notify("test.fire", "critical", "Fire!", conversation="main")
        assert (await task).text == "I see."
    assert "Fire!" in script.told(1)[0]


# The end of a turn (T)


async def test_T2_the_assistant_waits_and_speaks_again(clock: VirtualClock) -> None:
    script = Script([spawned("c1", "work", "w", secs=60)], "Done?", "Now it is.", answers=at_end("wait"))
    async with talking(script, *TOOLS, clock=clock) as talk:
        answer = await talk.prompt()
        assert await talk.kinds() == ["request", "response", "request", "response", "request", "response"]
    assert answer.text == "Now it is."
    (told,) = script.told(2)
    assert "worked" in told and told.startswith("[Automatic message")
    assert talk.heard(NotificationsDelivered) == [NotificationsDelivered(told)]
    assert talk.heard(Used)[-1].usage.requests == 4  # three responses and an inquiry
    assert answer.usage.requests == 4


async def test_T2_three_rounds_at_most(clock: VirtualClock) -> None:
    lines: list[Any] = []
    for at in range(4):
        lines += [[spawned(f"c{at}", "work", f"w{at}", secs=60)], f"Round {at}."]
    script = Script(*lines, answers=at_end("wait"))
    async with talking(script, *TOOLS, clock=clock) as talk:
        answer = await talk.prompt()
        assert (answer.text, answer.stop_reason) == ("Round 2.", "end_turn")
        assert len(script.asked) == 3
        script._lines = [*script._lines[:6], "Thanks."]
        await talk.prompt("And?")
    assert any("worked" in text for text in script.told())  # what was owed is news at the start of the next turn


async def test_T2_aborted_by_the_assistant(clock: VirtualClock) -> None:
    script = Script([spawned("c1", "work", "w")], "Done.", answers=at_end("abort"))
    async with talking(script, *TOOLS, clock=clock) as talk:
        assert (await talk.prompt()).text == "Done."
        (info,) = await talk.rt.handles()
    assert info.state == "stopped"


async def test_T2_calls_in_a_further_round(clock: VirtualClock) -> None:
    script = Script(
        [spawned("c1", "work", "w", secs=60)],
        "Done?",
        [called("c2", "note", text="a")],
        "Now.",
        answers=at_end("wait"),
    )
    async with talking(script, *TOOLS, clock=clock) as talk:
        assert (await talk.prompt()).text == "Now."
    assert script.results() == ["noted a"]


# Limits


async def test_G1_max_requests(clock: VirtualClock) -> None:
    script = Script(*[Reply(f"Words {at}.", [called("c", "note", text="a")]) for at in range(200)])
    async with talking(script, *TOOLS, clock=clock) as talk:
        answer = await talk.prompt()
    assert len(script.read) == 100
    assert answer.stop_reason == "max_turn_requests" and "max_requests" in (answer.error or "")
    assert answer.text == "Words 99."


# What the model may answer


async def test_G1_an_answer_that_was_cut_off(clock: VirtualClock) -> None:
    script = Script(Reply("I was about", finish="length"), "Going on.")
    async with talking(script, *TOOLS, clock=clock) as talk:
        answer = await talk.prompt()
        assert (answer.stop_reason, answer.text) == ("max_tokens", "I was about")
        assert (await talk.prompt("Go on.")).text == "Going on."


@pytest.mark.parametrize("words", ["", "I cannot"])
async def test_G1_refusal(clock: VirtualClock, words: str) -> None:
    script = Script(Reply([words] if words else [{}], finish="content_filter"), "Sure.")  # type: ignore[list-item]
    async with talking(script, *TOOLS, clock=clock) as talk:
        answer = await talk.prompt("Evil.")
        assert (answer.stop_reason, answer.text) == ("refusal", words)
        assert (await talk.prompt("Good.")).text == "Sure."


async def test_G1_a_model_that_raises_anything(clock: VirtualClock) -> None:
    script = Script(Reply("Wor", breaks=TypeError("no such thing")), KeyError("x"), "Fine.")
    async with talking(script, *TOOLS, clock=clock) as talk:
        for words in ("no such thing", "x"):
            answer = await talk.prompt()
            assert answer.stop_reason == "error" and words in (answer.error or "")
            assert kinds(talk.events)[-1] == "TurnFinished"
        assert not talk.conversation.busy
        assert (await talk.prompt()).text == "Fine."


async def test_G1_half_characters(clock: VirtualClock) -> None:
    """Some gateways cut a character in two, each half in JSON of its own; people have file names that are no text."""

    @keephold.tool
    async def odd() -> str:
        """Says what is no text."""
        return "odd \udc80"

    script = Script(
        Reply(["Sm\ud83d", "\ude00ile \ud83d."], [("c\ud83d", "note", '{"text": "\ud83d"}'), called("c2", "odd")]),
        Reply("Done.", thinks="\udc80"),
        "Yes?",
    )
    async with talking(script, *TOOLS, odd, clock=clock) as talk:
        answer = await talk.prompt("file \udc80")
        assert (answer.text, answer.stop_reason, answer.error) == ("Done.", "end_turn", None)
        assert (await talk.prompt("Still there?")).text == "Yes?"
        stored = "".join(line.body.decode() for line in await talk.conversation.lines())
    assert "Sm😀ile" in stored
    assert all(event.text.encode() for event in talk.heard(Text))  # it goes through pipes and sockets
    assert all(ModelMessagesTypeAdapter.dump_json(messages) for messages in script.read)


# Saying more


async def test_G1_said_in_a_batch(clock: VirtualClock) -> None:
    script = Script([called("c1", "work", secs=10)], "Both.")
    async with talking(script, *TOOLS, clock=clock) as talk:
        task = await running(talk)
        await clock.advance(5)
        talk.conversation.say("One more thing.")
        talk.conversation.say(["Look: ", "this."])
        assert (await task).text == "Both."
    assert script.results() == ["worked"]
    assert script.told() == ["One more thing.", "['Look: ', 'this.']"]
    assert talk.heard(Interjected) == [Interjected("One more thing."), Interjected("Look: this.")]


async def test_G1_said_during_the_last_words(clock: VirtualClock) -> None:
    script = Script(Reply(["The ", "end."], pause=5), "Not yet.")
    async with talking(script, *TOOLS, clock=clock) as talk:
        task = await running(talk)
        await clock.advance(7)
        talk.conversation.say("Wait!")
        assert (await task).text == "Not yet."
    assert script.told() == ["Wait!"]
    assert talk.heard(Interjected) == [Interjected("Wait!")]


async def test_G1_nothing_to_say_it_to(clock: VirtualClock) -> None:
    async with talking(Script("Hello."), clock=clock) as talk:
        with pytest.raises(KeepholdError, match="prompt") as caught:
            talk.conversation.say("Hello?")
        assert caught.value.code == "turn_not_open"
        with pytest.raises(KeepholdError):
            await talk.prompt("")


async def test_G1_prompts_while_busy(clock: VirtualClock) -> None:
    script = Script(Reply("Slow.", pause=10), "Next.")
    async with talking(script, *TOOLS, clock=clock) as talk:
        task = await running(talk)
        assert talk.conversation.busy
        with pytest.raises(KeepholdError) as caught:
            await talk.prompt("Me too!")
        assert caught.value.code == "turn_open"
        assert (await task).text == "Slow."
        assert (await talk.prompt("Now?")).text == "Next."
    assert script.told() == ["Now?"]


async def test_B1_a_turn_that_somebody_else_has_open(clock: VirtualClock) -> None:
    script = Script("Now.")
    async with talking(script, *TOOLS, clock=clock) as talk:
        async with talk.rt.turn("main"):
            with pytest.raises(KeepholdError) as caught:
                await talk.prompt()
            assert caught.value.code == "turn_open"
        assert (await talk.prompt()).text == "Now."


# Listeners and failures


async def test_G1_a_listener_that_raises_changes_nothing(clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> None:
    def then(event: Event) -> None:
        raise RuntimeError("cannot be shown")

    script = Script([called("c1", "note", text="a")], "Done.")
    with caplog.at_level(logging.CRITICAL, "keephold.agent"):
        async with talking(script, *TOOLS, clock=clock) as talk:
            assert (await talk.prompt(then=then)).text == "Done."
    assert kinds(talk.events)[-1] == "TurnFinished"


async def test_D11_a_failed_turn_makes_no_further_request(clock: VirtualClock) -> None:
    script = Script([called("c1", "fatal"), called("c2", "work")], "Yes?")
    async with talking(script, *TOOLS, clock=clock) as talk:
        answer = await talk.prompt()
        assert answer.stop_reason == "error" and "timed out" in (answer.error or "")
        assert len(script.read) == 1
        assert talk.rt.live() == []
        assert (await talk.prompt("Still there?")).text == "Yes?"
    timed_out, cancelled = script.results()
    assert "timed out" in timed_out and "cancelled" in cancelled


async def test_G1_parked_calls_are_not_waited_for_for_ever(clock: VirtualClock) -> None:
    @keephold.tool
    async def approve(call: Call) -> Pending:
        """Waits for somebody."""
        await call.completion_key()
        return Pending(deadline=100_000)

    script = Script([called("c1", "approve")], "It waits.", "Thanks.")
    async with talking(script, approve, clock=clock) as talk:
        assert (await talk.prompt()).text == "It waits."
        reply = json.loads(script.results()[0])
        assert (reply["state"], reply["parked"]) == ("running", True)
        (key,) = (await talk.rt.keys(reply["id"], conversation="main")).values()
        await talk.rt.resolve(key, {"status": "ok", "payload": "approved"})
        await talk.prompt("And?")
    assert "`call:c1` (approve) stopped" in script.told()[0]


async def test_G1_a_conversation_that_was_dropped_can_be_opened_again(clock: VirtualClock) -> None:
    import gc

    script = Script("One.", "Two.")
    async with keephold.Runtime(clock=clock) as rt:
        first = rt.conversation("main", model=script.model)
        await first.prompt("First")
        with pytest.raises(KeepholdError):
            rt.conversation("main", model=script.model)
        del first
        gc.collect()
        assert (await rt.conversation("main", model=script.model).prompt("Second")).text == "Two."
    assert len(script.read[1]) == 3


async def test_G1_a_listener_that_would_never_run_is_refused() -> None:
    async def listen(_: Event) -> None: ...

    async with talking(Script("Never.")) as talk:
        with pytest.raises(KeepholdError, match="not awaited"):
            await talk.conversation.prompt("Go.", listener=listen)  # type: ignore[arg-type]
