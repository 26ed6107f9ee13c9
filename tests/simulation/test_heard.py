"""What the assistant hears, against a model of it: any story of handles, replies, messages and turns (N1–N4, N6, T4).

The model is a list of what has happened and was neither shown nor told. Whatever carries news must bring exactly what
of it may ride there, in order, and a reply must take back exactly what it showed.
"""

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.soak import tries
from tests.turn.calls import TALKING, call, fetch, wait_all
from tests.turn.puppets import STORES, Puppets, in_state, lines, nothing, over, start, store_url

from keephold import Runtime, Tool, Turn
from keephold.policies import NotificationPolicy
from keephold.store.rows import Carrier
from keephold.testing import VirtualClock

Step = tuple[str, str]
CARRIES: dict[str, tuple[Carrier, ...]] = {
    "any": ("response", "message", "turn"),
    "replies": ("response",),
    "words": ("message",),
    "starts": ("turn",),
}
"""Tools, and what their news may ride on."""
IDS = [*(f"{tool}1" for tool in CARRIES), "any2"]
ABOUT = ("end", "fail", "ask", "answer", "print", "up", "fetch", "await")
# Some steps about one handle, so that something comes together before it is told, and then something that tells.
_episodes = st.builds(
    lambda id, steps: [(step, id) for step in steps],
    st.sampled_from(IDS),
    st.lists(st.sampled_from(ABOUT), min_size=1, max_size=5),
) | st.lists(st.tuples(st.sampled_from(("batch", "message", "turn", "notify")), st.just("")), min_size=1, max_size=2)
steps = st.lists(_episodes, max_size=12).map(lambda episodes: [step for episode in episodes for step in episode])


def tool_of(id: str) -> str:
    return id[:-1]


@dataclass
class Model:
    """What waits, in order, and how far each handle has come."""

    waiting: list[tuple[str, str, str]] = field(default_factory=list)
    """Id, kind and message."""
    states: dict[str, Literal["running", "waiting", "stopped"]] = field(
        default_factory=lambda: dict.fromkeys(IDS, "running")
    )
    ready: set[str] = field(default_factory=set)
    started: bool = False
    """Something of this turn has carried news."""

    def tell(self, id: str, kind: str, what: str) -> None:
        self.waiting.append((id, kind, f"`{id}` ({tool_of(id)}) {what}"))

    def prints(self, id: str) -> None:
        if (id, "tool.content") not in [(who, kind) for who, kind, _ in self.waiting]:
            self.tell(id, "tool.content", "has new output.")

    def forget(self, id: str, *kinds: str) -> None:
        self.waiting = [news for news in self.waiting if news[0] != id or (kinds and news[1] not in kinds)]

    def shows(self, id: str) -> None:
        kinds: dict[str, tuple[str, ...]] = {
            "running": ("tool.content", "tool.ready"),
            "waiting": ("tool.waiting", "tool.content", "tool.ready"),
            "stopped": (),
        }
        self.forget(id, *kinds[self.states[id]])

    def carried(self, carrier: Carrier) -> list[tuple[str, str]]:
        """What rides on it. The first response of a turn is also its start."""
        ridden = {carrier} if self.started or carrier == "turn" else {carrier, "turn"}
        self.started = True
        rides = [news for news in self.waiting if not news[0] or ridden & set(CARRIES[tool_of(news[0])])]
        self.waiting = [news for news in self.waiting if news not in rides]
        return [(kind, message) for _, kind, message in rides]


class Story:
    """A runtime and the model, side by side."""

    def __init__(self, rt: Runtime, puppets: Puppets) -> None:
        self._rt = rt
        self._puppets = puppets
        self._model = Model()
        self._notified = 0
        self.turn: Turn

    async def play(self, steps: list[Step]) -> None:
        self.turn = await self._rt.turn("main").__aenter__()
        for id in IDS:
            await self._batch(start(id, tool_of(id)))
        for step, id in steps:
            if not id:
                await self._carry(step)
            elif step in ("fetch", "await"):
                await self._look(step, id)
            else:
                await self._live(step, id)
            await self._rt.registry.write(())  # what was told is in the store
        await self.turn.__aexit__(None, None, None)

    async def _look(self, step: str, id: str) -> None:
        state = self._model.states[id]
        if step == "fetch":
            self._model.shows(id)
            await self._batch(fetch(tool_of(id), id))
        elif state == "stopped":
            self._model.forget(id)
            await self._batch(wait_all(id))
        elif state == "waiting":
            self._model.forget(id, "tool.waiting", "tool.ready")  # it shows the question and no output
            await self._batch(wait_all(id))

    async def _live(self, step: str, id: str) -> None:
        model, puppets, state = self._model, self._puppets, self._model.states[id]
        if step == "print" and state == "running":
            puppets.prints(id, "x")
            await puppets.done(id)
            model.prints(id)
        elif step == "up" and state == "running":
            puppets.prints(id, "\nup\n")
            await puppets.done(id)
            model.prints(id)
            if id not in model.ready:
                model.ready.add(id)
                model.tell(id, "tool.ready", "is ready: up")
        elif step == "ask" and state == "running":
            puppets.asks(id)
            await in_state(self._rt, id, "waiting")
            model.states[id] = "waiting"
            model.tell(id, "tool.waiting", "asks: Sure?")
        elif step == "answer" and state == "waiting":
            await self._rt.send(id, True, conversation="main")
            model.states[id] = "running"
            model.forget(id, "tool.waiting")
        elif step in ("end", "fail") and state == "running":
            (puppets.ends if step == "end" else puppets.fails)(id)
            await over(self._rt, id)
            model.states[id] = "stopped"
            model.tell(
                id, *(("tool.stopped", "stopped: done") if step == "end" else ("tool.failed", "failed: no luck"))
            )

    async def _carry(self, step: str) -> None:
        if step == "batch":
            await self._batch(call("nothing"))
        elif step == "message":
            carrier: Carrier = "message" if self._model.started else "turn"
            expected = self._model.carried(carrier)
            assert lines(await self.turn.notifications()) == expected
        elif step == "turn":
            await self.turn.end()
            self.turn = await self._rt.turn("main").__aenter__()
            self._model.started = False
        else:
            self._notified += 1
            await self._rt.notify("a.b", "info", str(self._notified), conversation="main")
            self._model.waiting.append(("", "a.b", str(self._notified)))

    async def _batch(self, one: Any) -> None:
        expected = self._model.carried("response")
        (response,) = await self.turn.run([one])
        assert lines(response.notifications) == expected


def tools(puppets: Puppets) -> list[Tool]:
    made = [
        puppets.tool(
            name,
            actions=TALKING,
            on_turn_end="keep",
            ready="up",
            notifications=NotificationPolicy(on_content=True, deliver=carriers),
        )
        for name, carriers in CARRIES.items()
    ]
    return [*made, nothing]


async def tell(steps: list[Step], url: str, clock: VirtualClock | None = None) -> None:
    puppets = Puppets()
    async with Runtime(tools(puppets), store=url, clock=clock) as rt:
        await Story(rt, puppets).play(steps)


@settings(max_examples=tries(40, soak=150))
@given(steps)
def test_N3_in_memory_the_assistant_hears_what_the_model_says(steps: list[Step]) -> None:
    clock = VirtualClock()
    clock.run(tell(steps, "memory:", clock))


@settings(max_examples=tries(10, soak=15))
@given(steps)
def test_N3_on_sqlite_the_assistant_hears_what_the_model_says(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(tell(steps, store_url("sqlite", Path(directory))))


@pytest.mark.parametrize("store", STORES)
async def test_N3_a_long_story(tmp_path: Path, store: str) -> None:
    """Everything at least once, whatever Hypothesis thinks of."""
    lives = [(step, id) for id in IDS for step in ("print", "up", "ask", "answer", "up", "print", "end", "batch")]
    looks = [(step, "") for step in ("message", "turn", "notify", "message", "batch", "turn", "batch", "message")]
    await tell([*lives, *looks, *((step, id) for id in IDS for step in ("await", "fetch"))], store_url(store, tmp_path))
