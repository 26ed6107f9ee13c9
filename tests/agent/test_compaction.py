"""A history that has grown too long (G1): a summary stands for it, and what is still open is not lost."""

import asyncio
from pathlib import Path
from typing import Any

from pydantic_ai.exceptions import ModelAuthenticationError, ModelContextWindowExceededError, ModelServerError
from pydantic_ai.messages import ModelResponse, UserPromptPart
from tests.agent.scripted import Reply, Script, called, spawned
from tests.agent.talk import Talk, kinds, talking, unreadable, written
from tests.patience import until

import keephold
from keephold import Call, Pending
from keephold.agent.events import Called, Compacted, Retrying, Text
from keephold.testing import VirtualClock

STATEFUL: Any = ("spawn", "fetch", "abort")
SMALL = "[conversation]\ncontext_tokens = 1000\n"
LONG, SHORT = (900, 200), (90, 20)


@keephold.tool
async def note(text: str) -> str:
    """Take a note."""
    return f"noted {text}"


@keephold.tool(actions=STATEFUL, on_turn_end="keep")
async def kept(call: Call) -> str:
    """Outlives its turn."""
    await asyncio.sleep(100_000)
    return "kept on"


@keephold.tool
async def keyed(call: Call) -> str:
    """Shows a key that somebody outside may use."""
    return f"The key is {await call.completion_key()}."


@keephold.tool(actions=STATEFUL, on_turn_end="keep")
async def approve(call: Call) -> Pending:
    """Prints its key, and waits for it to be used."""
    call.emit(f"Use {await call.completion_key()} to approve.\n")
    return Pending(deadline=100_000)


TOOLS = (note, kept, keyed, approve)


async def grown(talk: Talk) -> None:
    """A conversation that is too long already."""
    await talk.prompt("First")
    await talk.prompt("Second")


async def test_G1_summarised_before_the_next_request(clock: VirtualClock, tmp_path: Path) -> None:
    script = Script(Reply("One.", usage=SHORT), Reply("Two.", usage=LONG), "Three.", summaries=["They count."])
    async with talking(script, *TOOLS, clock=clock, config=written(tmp_path, SMALL)) as talk:
        await grown(talk)
        assert talk.heard(Compacted) == []
        answer = await talk.prompt("Third")
        assert (await talk.kinds())[-3:] == ["request", "summary", "response"]
    assert answer.text == "Three."
    (wish,) = script.wished
    assert all(each in wish for each in ("user: First", "assistant: One.", "user: Second", "assistant: Two."))
    assert "Third" not in wish
    (compacted,) = talk.heard(Compacted)
    assert script.told() == [compacted.summary, "Third"]
    assert compacted.summary.startswith("[Automatic summary") and "They count." in compacted.summary
    assert "They count." not in "".join(event.text for event in talk.heard(Text))  # nobody said it
    assert answer.usage.requests == 2


async def test_R4_a_summary_is_kept_until_the_store_can_be_read(clock: VirtualClock, tmp_path: Path) -> None:
    script = Script(Reply("One.", usage=SHORT), Reply("Two.", usage=LONG), "Three.", summaries=["They count."])
    async with talking(script, *TOOLS, clock=clock, config=written(tmp_path, SMALL)) as talk:
        await grown(talk)
        failed = unreadable(talk.rt.registry.store, "handles", times=2)
        assert (await talk.prompt("Third")).text == "Three."
    assert failed == [2] and len(script.wished) == 1 and len(talk.heard(Compacted)) == 1


async def test_G1_the_newest_calls_stay(clock: VirtualClock, tmp_path: Path) -> None:
    script = Script(
        Reply("One.", usage=SHORT),
        Reply("Well.", [called("c1", "note", text="a"), called("c2", "note", text="b")], usage=LONG),
        "Two.",
        summaries=["They count."],
    )
    async with talking(script, *TOOLS, clock=clock, config=written(tmp_path, SMALL)) as talk:
        await grown(talk)
    _, calls, _ = script.read[-1]
    assert isinstance(calls, ModelResponse) and len(calls.tool_calls) == 2
    assert script.results() == ["noted a", "noted b"]
    assert "Second" in script.wished[0]


async def test_G1_the_users_message_of_this_turn_stays_word_for_word(tmp_path: Path) -> None:
    """Also a message that came in between, a second summary in the same turn, and another process."""
    store, config = f"sqlite:///{tmp_path / 'work.db'}", written(tmp_path, SMALL)
    lines = [Reply(f"Well {at}.", [called(f"c{at}", "note", text=f"{at}")], usage=LONG) for at in range(3)]
    script = Script(Reply("One.", usage=SHORT), *lines, Reply("Two.", usage=SHORT), summaries=["They count."] * 3)

    def interject(event: Any) -> None:
        if isinstance(event, Called) and len(script.read) == 2:
            talk.conversation.say("But not [Automatic summary 4712].")

    async with talking(script, *TOOLS, store=store, config=config) as talk:
        await talk.prompt("First 4710")
        assert (await talk.prompt("[Automatic] Second 4711", then=interject)).text == "Two."
    assert len(talk.heard(Compacted)) == len(script.wished) == 3
    for read in script.read[2:]:
        summary = read[0].parts
        said = [str(part.content) for message in read for part in message.parts if isinstance(part, UserPromptPart)]
        assert "They count." in said[0] and "4710" not in str(said)
        assert said[1:] == ["[Automatic] Second 4711", "But not [Automatic summary 4712]."], summary
    script = Script("Three.")
    async with talking(script, *TOOLS, store=store, config=config) as talk:
        await talk.prompt("Third")
    assert "[Automatic] Second 4711" in str(script.read[0][0]) and "4712" in str(script.read[0][0])
    script = Script(Reply("Four.", usage=LONG), Reply("Five.", usage=SHORT), summaries=["They count."])
    async with talking(script, *TOOLS, store=store, config=config) as talk:
        await talk.prompt("Fourth")
        await talk.prompt("Fifth")
    assert "4711" not in str(script.read[-1]), "of an earlier turn only the summary remains"


async def test_G1_again_and_again(clock: VirtualClock, tmp_path: Path) -> None:
    lines = [Reply(f"Answer {at}.", usage=LONG) for at in range(6)]
    script = Script(*lines, summaries=[f"Summary {at}." for at in range(6)])
    async with talking(script, *TOOLS, clock=clock, config=written(tmp_path, SMALL)) as talk:
        for at in range(6):
            assert (await talk.prompt(f"Prompt {at}")).text == f"Answer {at}."
    assert len(talk.heard(Compacted)) == len(script.wished) == 5
    for at, wish in enumerate(script.wished[1:]):
        assert f"Summary {at}." in wish  # each is made of the one before
    assert len(script.read[-1]) == 1


async def test_G1_open_handles_and_keys_survive(clock: VirtualClock, tmp_path: Path) -> None:
    script = Script(
        [spawned("c1", "kept", "k"), spawned("c2", "approve", "a"), called("c3", "keyed")],
        [("c4", "approve", {"action": "fetch", "id": "a"})],
        Reply("One.", usage=LONG),
        Reply("Two.", usage=LONG),
        "Three.",
        summaries=["Nothing of note."] * 2,
    )
    async with talking(script, *TOOLS, clock=clock, config=written(tmp_path, SMALL)) as talk:
        await talk.prompt("First")
        (key,) = (await talk.rt.keys("a", conversation="main")).values()
        for _ in range(2):
            await talk.prompt("More")
            summary = talk.heard(Compacted)[-1].summary
            assert "- k: kept, running" in summary
            assert "- a: approve, running" in summary
            assert str(key) in summary
            assert summary.count("hf1.") == 1  # that of `keyed` is worth nothing any more
        await talk.rt.resolve(key, {"status": "ok", "payload": "yes"})


async def test_K6_every_open_handle_survives(clock: VirtualClock, tmp_path: Path) -> None:
    """Also those behind the first page of the store."""
    calls = [[spawned(f"c{at}", "kept", f"k{at}") for at in range(first, first + 600)] for first in (0, 600)]
    script = Script(*calls, Reply("One.", usage=LONG), "Two.", summaries=["Nothing of note."])
    async with talking(script, *TOOLS, clock=clock, config=written(tmp_path, SMALL)) as talk:
        await talk.prompt("First")
        await talk.prompt("Second")
    (compacted,) = talk.heard(Compacted)
    assert compacted.summary.count(": kept, running") == 1200


async def test_G1_after_a_restart(tmp_path: Path) -> None:
    store, config = f"sqlite:///{tmp_path / 'work.db'}", written(tmp_path, SMALL)
    script = Script(Reply("One.", usage=LONG), "Two.", summaries=["They count."])
    async with talking(script, *TOOLS, store=store, config=config) as talk:
        await grown(talk)
    script = Script("Three.")
    async with talking(script, *TOOLS, store=store, config=config) as talk:
        await talk.prompt("Third")
    summary, _, _ = script.read[0]
    assert "They count." in str(summary) and "First" not in str(summary) and "Second" in str(summary)
    assert script.told() == ["Third"]


async def test_G1_a_summary_is_asked_for_again(clock: VirtualClock, tmp_path: Path) -> None:
    error = ModelServerError("scripted", "down")
    script = Script(Reply("One.", usage=LONG), "Two.", summaries=[error, error, "They count."])
    async with talking(script, *TOOLS, clock=clock, config=written(tmp_path, SMALL)) as talk:
        await grown(talk)
    assert len(talk.heard(Retrying)) == 2
    assert len(talk.heard(Compacted)) == 1


async def test_G1_without_a_summary_it_goes_on_while_the_model_takes_it(clock: VirtualClock, tmp_path: Path) -> None:
    script = Script(Reply("One.", usage=LONG), "Two.", summaries=[ModelAuthenticationError("scripted", "no")] * 5)
    async with talking(script, *TOOLS, clock=clock, config=written(tmp_path, SMALL)) as talk:
        await talk.prompt("First")
        assert (await talk.prompt("Second")).text == "Two."
        assert "summary" not in await talk.kinds()
    assert len(script.read[-1]) == 3


async def test_G1_without_a_summary_what_is_too_long_ends_the_turn(clock: VirtualClock) -> None:
    too_long = ModelContextWindowExceededError("scripted", "too long")
    script = Script("One.", too_long, summaries=[too_long] * 10)
    async with talking(script, *TOOLS, clock=clock) as talk:
        await talk.prompt("First")
        answer = await talk.prompt("x" * 100_000)
    assert answer.stop_reason == "error" and "could not be summarised" in (answer.error or "")
    assert len(script.wished) > 1  # from less and less


async def test_G1_long_messages_are_clipped(clock: VirtualClock) -> None:
    too_long = ModelContextWindowExceededError("scripted", "too long")
    script = Script("One.", too_long, "Two.", summaries=[too_long, "Short."])
    async with talking(script, *TOOLS, clock=clock) as talk:
        await talk.prompt("begin " + "x" * 100_000 + " end")
        assert (await talk.prompt("Second")).text == "Two."
    first, second = script.wished
    assert 10_000 > len(first) > len(second)
    assert "begin x" in second and "x end" in second


async def test_T5_cancelled_while_it_is_summarised(clock: VirtualClock, tmp_path: Path) -> None:
    script = Script(Reply("One.", usage=LONG), "Two.", summaries=[Reply("Never.", pause=1000), "They count."])
    async with talking(script, *TOOLS, clock=clock, config=written(tmp_path, SMALL)) as talk:
        await talk.prompt("First")
        task = asyncio.create_task(talk.prompt("Second"))
        await until(lambda: script.wished)
        began = clock.now()
        talk.conversation.cancel()
        assert (await task).stop_reason == "cancelled"
        assert clock.now() < began + 10
        assert (await talk.prompt("Third")).text == "Two."
    assert script.told()[-2:] == ["Second", "Third"]
    assert kinds(talk.events).count("Compacted") == 1
