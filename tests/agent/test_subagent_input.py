"""What `apply` sends to an agent (R4, E10): as it was meant, and never lost."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import UserPromptPart
from tests.agent.scripted import Reply, Script, Sent, called, spawned
from tests.agent.talk import talking
from tests.agent.test_subagents import completed, config, helped
from tests.patience import until

import keephold
from keephold import Call, Runtime
from keephold.testing import VirtualClock

SENT: list[Any] = [{"x": 1, "say": "ünï"}, ["a", 2], 7, True, "plain", "", "two\nlines"]
HEARD = ['{"x":1,"say":"ünï"}', '["a",2]', "7", "true", "plain", "two\nlines"]


def sent(id: str, what: Any) -> Sent:
    return id, "helper", {"action": "apply", "id": "h", "input": what}


def said_to(script: Script) -> list[str]:
    """All that the model was told, in order."""
    parts = (part for message in script.read[-1] for part in message.parts)
    return [str(part.content) for part in parts if isinstance(part, UserPromptPart)]


@pytest.mark.parametrize("when", ["in a batch", "in the last words"])
async def test_R4_whatever_is_sent_is_heard_as_it_was_meant(clock: VirtualClock, tmp_path: Path, when: str) -> None:
    """Other JSON than a text comes as JSON; what is empty does not come, as providers refuse it."""
    first = [called("h1", "work", secs=60)] if when == "in a batch" else Reply("Not yet.", pause=60)
    helper = Script(first, "Heard.")
    main = Script(
        [spawned("c1", "helper", "h", prompt="Go.")],
        [sent(f"a{at}", what) for at, what in enumerate(SENT)],
        [called("c2", "await", all=["h"])],
        "Done.",
    )
    async with helped(clock, tmp_path, main, helper=helper) as talk:
        await talk.prompt()
    assert "\n\n".join(said_to(helper)) == "\n\n".join(["Go.", *HEARD])
    assert completed(main.results(3)[0]) == {"h": "Heard."}


async def test_R4_nothing_but_an_empty_message_is_no_reason_to_speak(clock: VirtualClock, tmp_path: Path) -> None:
    helper = Script(Reply("I am done.", pause=5))
    main = Script(
        [spawned("c1", "helper", "h", prompt="Go.")], [sent("c2", "")], [called("c3", "await", all=["h"])], "Done."
    )
    async with helped(clock, tmp_path, main, helper=helper) as talk:
        await talk.prompt()
    assert completed(main.results(3)[0]) == {"h": "I am done."}


async def test_E10_empty_messages_do_not_disturb_the_count(tmp_path: Path) -> None:
    """After a restart all that was sent comes again; what was heard of it before does not."""
    store = f"sqlite:///{tmp_path / 'work.db'}"
    opened = asyncio.Event()

    @keephold.tool(on_crash="replay")
    async def gate() -> str:
        """Opens when it is told to."""
        await opened.wait()
        return "open"

    def opening(_: Any) -> list[Sent]:
        opened.set()
        return [called("c4", "await", all=["h"], timeout_secs=60)]

    helper = Script([called("h1", "gate")], Reply("Never.", pause=3600))
    main = Script(
        [spawned("c1", "helper", "h", prompt="Go.")],
        [sent("a0", ""), sent("a1", {"n": 2})],
        opening,
    )
    async with Runtime([gate], store=store, config=config(tmp_path, helper=helper)) as rt:
        running = asyncio.create_task(rt.conversation("main", model=main.model).prompt("Go."))
        await until(lambda: len(helper.read) == 2)
    with pytest.raises(keephold.KeepholdError):
        await running
    helper, main = Script("Helped."), Script("Done.")
    async with talking(main, gate, store=store, config=config(tmp_path, helper=helper)) as talk:
        await talk.conversation.open()
        await talk.resume()
    assert said_to(helper) == ["Go.", '{"n":2}']


async def test_R4_what_is_sent_while_it_tidies_up_is_answered(clock: VirtualClock, tmp_path: Path) -> None:
    """An agent that has spoken ends what it kept, which takes a while; until then it can be spoken to."""

    @keephold.tool(actions=("spawn", "fetch", "abort"), on_turn_end="keep")
    async def stubborn(call: Call) -> str:
        """Takes a second to end."""
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(1)
        return ""

    helper = Script([spawned("h1", "stubborn", "s")], "One.", "Two.")
    main = Script(
        [spawned("c1", "helper", "h", prompt="Go.")],
        [called("c2", "await", all=["h"], timeout_secs=0.5)],
        [sent("c3", "And?")],
        [called("c4", "await", all=["h"])],
        "Done.",
    )
    file = config(tmp_path, helper=helper)
    async with talking(main, stubborn, clock=clock, config=file) as talk:
        await talk.prompt()
        left = [info.id for info in talk.rt.live()]
    assert helper.told(2)[-1] == "And?"
    assert completed(main.results(4)[0]) == {"h": "Two."}
    assert left == []
