"""What a child does: short scenes, each in a conversation of its own.

Whoever starts a scene again starts it from the top, and it goes on to the same end.
"""

import json
from collections.abc import Awaitable, Callable

from tests.crash.talk import Later, Play, until_it_writes


async def steps(play: Play) -> None:
    """Journaled steps, a sleep, a process event."""
    async with play.turn("steps") as talk:
        await talk.spawn("pipeline", "p")
        await talk.finish("p")
        info = await talk.look("p")
        (printed,) = await talk.run(("read_output", {"id": "p"}))
    assert info is not None
    events = await play.runtime.process_events(info.uid)
    play.world.say("events", uid=info.uid, events=[[event.sequence, event.type, event.payload] for event in events])
    play.world.say("output", uid=info.uid, text=json.loads(printed.result)["content"])


async def event(play: Play) -> None:
    """Two steps around an event from outside."""
    async with play.resolving("event"), play.turn("event") as talk:
        await talk.spawn("deploy", "d", env="prod")
        await talk.finish("d")
    await play.resolve("event")


async def talking(play: Play) -> None:
    """A question and a line of input."""
    async with play.turn("talking") as talk:
        await talk.spawn("talker", "t")
        number = 0
        while (waited := await talk.wait("t")).get("needs_input"):
            (pending,) = waited["pending"]
            number += 1
            said = f"{'answer' if 'question' in pending else 'line'} {number} of run {play.world.run}"
            (response,) = await talk.run(("talker", {"action": "apply", "id": "t", "input": said}))
            play.world.say("applied", id="t", said=said, is_error=response.is_error)
        await talk.stopped("t")


async def parked(play: Play) -> None:
    """Parked, then completed."""
    async with play.turn("parked") as talk:
        await talk.spawn("approve", "a")
        info = await talk.parked("a")
        if info.parked or play.world.find("key", name="parked"):
            await play.resolve("parked")
        await talk.finish("a")
    if play.world.find("key", name="parked"):
        await play.resolve("parked")


async def early(play: Play) -> None:
    """Completed before it is parked."""
    async with play.resolving("early"), play.turn("early") as talk:
        await talk.spawn("approve", "a", slow=True)
        await talk.finish("a")


async def deadline(play: Play) -> None:
    """Parked until its time is up."""
    async with play.turn("deadline") as talk:
        await talk.spawn("approve", "a", deadline=30)
        info = await talk.parked("a")
        if info.parked and not play.world.clock.offset:
            raise Later
        await talk.finish("a")


async def failing(play: Play) -> None:
    """Parked until its time is up, which then takes the turn with it, also one that was taken up again (D11)."""
    async with play.turn("failing") as talk:
        if not await play.any("failing"):
            await talk.run(("approve", {"deadline": 0.02, "fatal": True}), ("hello", {"name": "you"}))


async def exposed(play: Play) -> None:
    """A one-shot call that nobody waits for any longer becomes a handle (D10)."""
    async with play.turn("exposed", park_after=0.005) as talk:
        if not await play.any("exposed"):
            await talk.run(("approve", {}), park_after=0.005)
        for info in await play.runtime.handles(conversation="exposed"):
            if info.parked:
                await play.resolve("exposed")
            await talk.finish(info.id)


async def revoked(play: Play) -> None:
    """Parked on a key that is made worthless."""
    async with play.turn("revoked") as talk:
        await talk.spawn("approve", "a")
        if (await talk.parked("a")).parked:
            await until_it_writes(lambda: play.runtime.revoke_keys("revoked"))
        await talk.finish("a")


async def cancelled(play: Play) -> None:
    """Parked when its turn is cancelled: its hook must be called (T5)."""
    async with play.turn("cancelled") as talk:
        await talk.spawn("rent", "r")
        await talk.parked("r")
        talk.cancel()


async def thing(play: Play) -> None:
    """Two calls that exclude each other; the first is parked (B5)."""
    async with play.turn("thing") as talk:
        await talk.spawn("borrow", "b")
        info = await talk.parked("b")
        await talk.spawn("use", "u", after="b")
        if info.parked:
            await play.resolve("thing")
        await talk.finish("b", "u")


async def queue(play: Play) -> None:
    """Spawned one after the other, run one at a time (B4)."""
    async with play.turn("queue") as talk:
        await talk.spawn("queued", "q1")
        await talk.spawn("queued", "q2")
        await talk.finish("q1", "q2")


async def external(play: Play) -> None:
    """Parked since it took its key. If nobody was told that key, its deadline ends it."""
    async with play.resolving("external"), play.turn("external") as talk:
        await talk.spawn("outside", "o")
        info = await talk.parked("o")
        if info.parked and not play.world.find("key", name="external") and not play.world.clock.offset:
            raise Later
        await talk.finish("o")


async def hook(play: Play) -> None:
    """Parked, then aborted: its hook must be called."""
    async with play.turn("hook") as talk:
        await talk.spawn("rent", "r")
        await talk.parked("r")
        await talk.run(("rent", {"action": "abort", "id": "r"}))
        await talk.finish("r")


async def retry(play: Play) -> None:
    """Errors that pass."""
    async with play.turn("retry") as talk:
        await talk.spawn("safely", "s")
        await talk.spawn("again", "i")
        await talk.finish("s", "i")


async def fail(play: Play) -> None:
    """What a crash ends, one-shot and spawned."""
    async with play.turn("fail") as talk:
        await talk.run(("hello", {"name": "you"}))
        await talk.spawn("plain", "p")
        await talk.run(("plain", {}))
        await talk.finish("p")


async def command(play: Play) -> None:
    """A command that forks and moves to other sessions."""
    async with play.turn("command") as talk:
        await talk.spawn("family", "f")
        await talk.run(("family", {"action": "abort", "id": "f"}))
        await talk.finish("f")


async def batch(play: Play) -> None:
    """One batch of everything, which a run after a crash takes up where it was (B9)."""
    async with play.resolving("batch"), play.turn("batch") as talk:
        if await talk.look("p") is None:
            await talk.run(
                ("in_turn", {"name": "first"}),
                ("in_turn", {"name": "second"}),
                ("hello", {"name": "you"}),
                ("pipeline", {}),
                ("approve", {}),
                ("plain", {"action": "spawn", "id": "p"}),
                ("await", {"all": ["p"]}),
                ("nobody", {}),
            )
        await talk.finish("p")


async def deployment(play: Play) -> None:
    """A one-shot call that takes as long as a human does. Somebody else resolves the key."""
    async with play.turn("deployment") as talk:
        if play.world.find("answered", conversation="deployment") is None:
            await talk.run(("deploy", {"env": "prod"}))


async def old(play: Play) -> None:
    """Looks back at what it did, if need be after its retention (S5, D5)."""
    async with play.turn("old") as talk:
        if not play.world.clock.offset:
            await talk.spawn("approve", "a")
            if (await talk.parked("a")).parked:
                await play.resolve("old")
            await talk.finish("a")
            return
        (response,) = await talk.run(("approve", {"action": "fetch", "id": "a"}))
    play.world.say("remembered", result=response.result, code=response.code)
    await play.resolve("old")


CROWD = {
    f"{tool}{number}": tool for tool, count in (("pipeline", 8), ("again", 4), ("plain", 4)) for number in range(count)
}


async def crowd(play: Play) -> None:
    """Many at once."""
    async with play.turn("crowd") as talk:
        if await talk.look("plain0") is None:
            await talk.run(*((tool, {"action": "spawn", "id": id}) for id, tool in CROWD.items()))
        await talk.finish(*CROWD)


Scene = Callable[[Play], Awaitable[None]]
_LASTING = (steps, event, talking, queue, thing, retry, batch)
_PARKED = (parked, early, deadline, failing, exposed, revoked, cancelled, hook, external)
SCENES: dict[str, Scene] = {scene.__name__: scene for scene in (*_LASTING, *_PARKED, fail, command)}
ALL = {**SCENES, "crowd": crowd, "deployment": deployment, "old": old}
