"""Random scripts. They are made step by step beside the model, so that most of what they ask for makes sense."""

import random

from tests.simulation import ops
from tests.simulation.model import Undecided
from tests.simulation.ops import KINDS, Abort, Apply, Await, Call, Fetch, Once, Spawn, kind_of
from tests.simulation.rehearsal import Rehearsal

_RESOURCES = ("r", "s")
_ORDERS: tuple[ops.Order, ...] = ("ok", "ok", "ok", "ok", "fail", "emit", "emit", "ask", "read", "deaf")


def generate(random: random.Random, *, late: bool = False) -> Rehearsal:
    """A script and its plan."""
    while True:
        rehearsal = Rehearsal(late=late)
        author = _Author(random, rehearsal)
        try:
            for _ in range(random.randint(4, 18)):
                rehearsal.do(author.step())
            rehearsal.finish()
        except Undecided:
            continue
        return rehearsal


class _Author:
    """Chooses steps. A few handle ids a script, so that things meet."""

    def __init__(self, random: random.Random, rehearsal: Rehearsal) -> None:
        self._random = random
        self._model = rehearsal.model
        talkative = [kind for kind in KINDS if KINDS[kind].apply]
        kinds = {*random.choices([*KINDS, *talkative], k=random.randint(1, 3))}
        self._ids = [f"{kind}{number}" for kind in sorted(kinds) for number in (1, 2)]
        self._lines = type(random)(repr(self._ids))  # its own, so that scripts stay what they are otherwise

    def step(self) -> ops.Op:
        random = self._random
        conversation = random.choice((0, 0, 0, 1))
        able = [handle for handle in self._model.handles if self._model.takes(handle, "ok")]
        steps = {"run": 40, "tell": 40 if able else 0, "wait": 8, "ticks": 16, "passes": 8, "end": 2}
        match random.choices(list(steps), list(steps.values()))[0]:
            case "run":
                return ops.Run(conversation, self._calls(conversation))
            case "tell":
                handle = random.choice(able)
                usual = ("ask", "read", "ask", "read") if handle.stateful and handle.kind.apply else ()
                return ops.Tell(handle.conversation, handle.id, random.choice((*_ORDERS, *usual)))
            case "wait":
                any, all = self._some(list(self._model.conversations[conversation].names) or self._ids)
                return ops.Wait(conversation, any, all, random.choice((None, None, 0.0, ops.TICK, 1.0, 2.0)))
            case "ticks":
                return ops.Ticks(random.choice((1, 1, 2, 8, 8, 16, 40)))
            case "passes":
                return ops.Passes(random.randint(1, 3))
            case _:
                return ops.End(conversation, random.random() < 0.5)

    def _calls(self, conversation: int) -> tuple[Call, ...]:
        """A batch: most of its calls are about handles that exist, or that it spawns itself."""
        random = self._random
        known = self._model.conversations[conversation].names
        there = [*known]
        calls: dict[str, Call] = {}
        for _ in range(random.randint(1, 4)):
            id = random.choice(self._ids)
            if id in there and not (id in known and known[id].stopped):
                call = self._call_about(id, there)
            else:
                call = self._first_call_of(id, there)
            if isinstance(call, Spawn):
                there.append(id)
            # The script knows a one-shot call by its id, so two of one id would be one.
            calls[call.id if isinstance(call, Once) else str(len(calls))] = call
        shuffled = list(calls.values())
        random.shuffle(shuffled)
        return tuple(shuffled)

    def _first_call_of(self, id: str, there: list[str]) -> Call:
        random = self._random
        match random.choices(("spawn", "once", "await", "fetch"), (75, 10, 12, 3))[0]:
            case "spawn":
                return Spawn(id, self._names(id), bad=random.random() < 0.04)
            case "once":
                return Once(f"{id[0]}{random.choice('89')}", self._names(id))
            case "await":
                return self._await(there)
        return Fetch(id)

    def _call_about(self, id: str, there: list[str]) -> Call:
        random = self._random
        match random.choices(("spawn", "await", "fetch", "apply", "abort"), (2, 40, 10, 36, 12))[0]:
            case "spawn":
                return Spawn(id, self._names(id))
            case "await":
                return self._await(there)
            case "apply" if kind_of(id).apply:
                return Apply(id, random.choice((True, True, False, "text")))
            case "abort":
                return Abort(id)
        return Fetch(id)

    def _names(self, id: str) -> tuple[str, ...]:
        return tuple(self._random.sample(_RESOURCES, self._random.randint(1, 2))) if kind_of(id).locks else ()

    def _await(self, there: list[str]) -> Await:
        ids = there if there and self._random.random() < 0.95 else self._ids
        any, all = self._some(ids)
        lines = tuple(self._lines.choices(ids, k=self._lines.choice((0, 0, 1, 2))))
        if lines and self._lines.random() < 0.5:
            any = all = ()
        return Await(any, all, self._random.choice((None, None, None, 0, 1, 1, 2)), lines)

    def _some(self, ids: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        random = self._random
        any = tuple(random.choices(ids, k=random.choice((0, 0, 1, 2))))
        all = tuple(random.choices(ids, k=random.choice((0, 1, 2, 3)) if any else random.choice((1, 1, 2, 3))))
        return any, all
