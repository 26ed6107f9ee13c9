"""Random programs: tools drawn from a seed, played on a real site and by a model that knows no journal.

A program has steps, some of which fail, sleeps, events, process events and branches that run at once. While several of
them run, the site crashes at random moments. Each must end with the result that the model computes; no step runs again
after its result has reached the program; and the process events are there once, in order.

Process events stay outside of branches: they are numbered in the order in which the code reaches them, and branches of
the next life may be reached in another order.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from keephold.durable.effects import Effects
from keephold.errors import ToolError
from keephold.handles.state import Ok
from keephold.testing.conformance.site import MEANINGS, RESOLUTIONS, EffectsSuite, Site, crashing
from keephold.tools.call import Call

Op = tuple[Any, ...]
_LUCK = "luck"
"""The code of steps that fail."""


def drawn(seed: int) -> list[Op]:
    """Return the program of a seed."""
    return _draw(random.Random(seed), "", 6, outside=True)


def _draw(rng: random.Random, prefix: str, length: int, *, outside: bool) -> list[Op]:
    kinds = ["step", "step", "step", "fails", "sleep", "event"] + (["emit", "all", "all"] if outside else [])
    program: list[Op] = []
    for position in range(rng.randint(1, length)):
        name, kind = f"{prefix}{position}", rng.choice(kinds)
        if kind == "sleep":
            program.append((kind, rng.choice([0, 0.001, 0.02])))
        elif kind == "event":
            program.append((kind, name, rng.choice(list(RESOLUTIONS))))
        elif kind == "all":
            branches = range(rng.randint(2, 4))
            program.append((kind, [_draw(rng, f"{name}.{each}.", 3, outside=False) for each in branches]))
        else:
            program.append((kind, name))
    return program


def modelled(program: Sequence[Op]) -> list[Any]:
    """Return the result that a program must have."""
    made: list[Any] = []
    for kind, *rest in program:
        match kind:
            case "step":
                made.append(f"made {rest[0]}")
            case "fails":
                made.append(f"failed {rest[0]}")
            case "event":
                made.append(MEANINGS[rest[1]])
            case "all":
                made.append([modelled(branch) for branch in rest[0]])
    return made


class _Play:
    """One program as it is played, over all of its lives."""

    def __init__(self, world: "_World", seed: int) -> None:
        self.world = world
        self.program = drawn(seed)
        self.runs: Counter[str] = Counter()
        self.faults: list[str] = []
        self._acknowledged: set[str] = set()

    async def play(self, fx: Effects, program: Sequence[Op], life: int) -> list[Any]:
        made: list[Any] = []
        for kind, *rest in program:
            match kind:
                case "step" | "fails":
                    made.append(await self._step(fx, rest[0], life, fails=kind == "fails"))
                case "sleep":
                    await fx.sleep(rest[0])
                case "event":
                    made.append(await self._event(fx, rest[0], rest[1], life))
                case "emit":
                    await fx.emit_process_event(rest[0], {"of": rest[0]})
                case "all":
                    made.append(await asyncio.gather(*(self.play(fx, branch, life) for branch in rest[0])))
            await self.world.passed(life)
        return made

    async def _step(self, fx: Effects, name: str, life: int, *, fails: bool) -> str:
        async def function(given: Any) -> str:
            await self.world.passed(life)
            self.runs[name] += 1
            if name in self._acknowledged:
                self.faults.append(f"step {name} ran again after the program had its result")
            await asyncio.sleep(0)
            if fails:
                raise ToolError(f"failed {name}", code=_LUCK)
            return f"made {name}"

        try:
            made = str(await fx.run_json(name, {"name": name}, function))
        except ToolError as error:
            if error.code != _LUCK:
                raise
            made = error.message
        await self.world.passed(life)
        self._acknowledged.add(name)
        return made

    async def _event(self, fx: Effects, name: str, status: str, life: int) -> Any:
        key = await fx.external_event_key(name)
        await self.world.passed(life)
        self.world.resolve_soon(str(key), status)
        try:
            return await fx.await_event_json(key)
        except ToolError as error:
            return error.code


class _World:
    """All programs of one site: whose life it is, and the keys that are resolved from outside."""

    def __init__(self, seed: int, count: int) -> None:
        self.plays = {each: _Play(self, each) for each in range(seed, seed + count)}
        self.life = self.moves = 0
        self._rng = random.Random(seed)
        self._wanted: dict[str, str] = {}
        self._resolved: set[str] = set()

    async def passed(self, life: int) -> None:
        """Note a move of a program. A body that should have died with an earlier life does nothing more."""
        if life != self.life:
            await asyncio.Event().wait()
        self.moves += 1

    def resolve_soon(self, key: str, status: str) -> None:
        self._wanted.setdefault(key, status)

    async def drive(self, site: Site, crashes: int) -> None:
        """Resolve events and crash at random moments, until all programs have ended."""
        ids = [str(seed) for seed in self.plays]
        next_crash = self._next_crash()
        while any([(await site.info(id)).state != "stopped" for id in ids]):
            for key in [key for key in self._wanted if key not in self._resolved]:
                if self._rng.random() < 0.5:
                    wanted = self._wanted[key]
                    status = await site.resolve(key, wanted, RESOLUTIONS[wanted])
                    assert status == "accepted", status
                    self._resolved.add(key)
            if crashes and self.moves >= next_crash:
                crashes, self.life = crashes - 1, self.life + 1
                await site.crash()
                next_crash = self._next_crash()
            await asyncio.sleep(0.005)

    def _next_crash(self) -> int:
        return self.moves + self._rng.randint(1, 6 * len(self.plays))


class ProgramChecks(EffectsSuite):
    """Random programs, a small number of them. Call `play` for more."""

    programs = 8
    """How many run at once in a check."""

    async def check_E_random_programs(self) -> None:
        await self.play(seed=1, count=self.programs, crashes=0)

    @crashing
    async def check_E_R_random_programs_and_crashes(self) -> None:
        await self.play(seed=101, count=self.programs, crashes=2)

    async def play(self, *, seed: int, count: int, crashes: int) -> None:
        """Play the programs of that many seeds at once, beginning with `seed`."""
        world = _World(seed, count)

        @self.tool()
        async def program(call: Call, seed: int) -> list[Any]:
            play = world.plays[seed]
            return await play.play(call.durable(), play.program, world.life)

        async with self.make([program]) as site:
            for each in world.plays:
                await site.spawn("program", str(each), seed=each)
            await world.drive(site, crashes)
            for each, play in world.plays.items():
                await _judge(site, each, play, 1 + world.life)


async def _judge(site: Site, seed: int, play: _Play, lives: int) -> None:
    info = await site.info(str(seed))
    about = f"the program of seed {seed} is {play.program!r}"
    assert info.outcome == Ok(modelled(play.program)), f"{about}; it ended with {info.outcome!r}"
    assert not play.faults, f"{about}; {play.faults}"
    often = {name: runs for name, runs in play.runs.items() if runs > lives}
    assert not often, f"{about}; in {lives} lives these steps ran more often: {often}"
    emitted = [each.type for each in await site.runtime.process_events(info.uid)]
    expected = [op[1] for op in play.program if op[0] == "emit"]
    assert emitted == expected, f"{about}; its events are {emitted}"
