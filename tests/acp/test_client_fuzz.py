"""Our client and an agent that is told at random what to do: no update is lost, doubled, early or late (X3).

Each play is drawn from a seed: `KEEPHOLD_SEED=…` tries others, `KEEPHOLD_FUZZ=…` multiplies how many there are.
"""

import asyncio
import json
import os
from random import Random
from typing import Any

import pytest
from tests.acp.test_client_drained import agent, text
from tests.patience import PATIENCE

from keephold.acp import ConnectionLost, RpcError, connect
from keephold.acp.client.connection import Connection
from keephold.acp.client.session import PermissionRequest, Session

SEED = int(os.environ.get("KEEPHOLD_SEED", "20260101"))
TIMES = int(os.environ.get("KEEPHOLD_FUZZ", "1"))
PLAYS = 8


class Hand:
    """Handles updates, one at a time, as slowly as it likes; now and then it fails."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._at_work = False
        self.seen: list[str] = []

    async def __call__(self, update: dict[str, Any]) -> None:
        assert not self._at_work, "two at once"
        self._at_work = True
        try:
            await asyncio.sleep(self._rng.choice([0, 0, 0, 0.001]))
            self.seen.append(text(update))
            if self._rng.random() < 0.05:
                raise ValueError("a handler that fails")
        finally:
            self._at_work = False


class Play:
    """One agent and one session, one prompt after the other."""

    def __init__(self, seed: str) -> None:
        self.rng = Random(seed)
        self.offer = self.rng.choice(["extension", "update", "no"])
        self.mortal = self.rng.random() < 0.3

    async def run(self) -> None:
        async with connect(agent("--offer", self.offer), on_permission=self._decide) as connection:
            behind = Hand(self.rng)
            session = await connection.new_session("/", on_background=behind)
            async with asyncio.timeout(PATIENCE):
                await self._talk(connection, session, behind)

    async def _decide(self, permission: PermissionRequest) -> str | None:
        await asyncio.sleep(self.rng.choice([0, 0.001, 30]))  # long, unless the turn is cancelled meanwhile
        return self.rng.choice([permission.option("allow_once"), None])

    def _order(self) -> dict[str, Any]:
        rng = self.rng
        order: dict[str, Any] = {
            "updates": rng.choice([0, 1, 20, 300]),
            "signal": rng.choice([True, True, False, "late"]),
            "reason": rng.choice(["end_turn", "max_tokens"]),
        }
        for key, value, chance in (
            ("late", 2, 0.3), ("background", True, 0.3), ("error", True, 0.2), ("hang", True, 0.2),
            ("ask", ["allow_once", "reject_once"], 0.2), ("die", True, 0.1 if self.mortal else 0),
        ):  # fmt: skip
            if rng.random() < chance:
                order[key] = value
        return order

    async def _talk(self, connection: Connection, session: Session, behind: Hand) -> None:
        expected = ["early", "welcome"]
        for _ in range(self.rng.randint(2, 6)):
            order, hand = self._order(), Hand(self.rng)
            turn = session.prompt(json.dumps(order), on_update=hand)
            cancelling = asyncio.create_task(self._cancel(turn))
            try:
                await turn
            except ConnectionLost:
                with pytest.raises(ConnectionLost):
                    await turn.drained()
                with pytest.raises(ConnectionLost):
                    await connection.request("session/list", {})
                return
            except RpcError as error:
                assert order.get("error") and error.number == -32603
            finally:
                cancelling.cancel()
            barrier = await turn.drained()
            in_turn = [*map(str, range(order["updates"]))]
            late = [f"late {number}" for number in range(order.get("late", 0))]
            signalled = self.offer != "no" and order["signal"] is True
            assert barrier == ("turn_complete" if self.offer != "no" and order["signal"] else "response")
            if self.offer != "no" and order["signal"] is not True:
                in_turn, late = in_turn + late, []
            told = [each for each in hand.seen if not each.startswith(("{", "cancel", "stopping"))]
            assert told == in_turn, f"{self.offer} {order}"
            assert ("stopping" in hand.seen) == bool(order.get("hang"))
            expected += ["meanwhile"] * bool(order.get("background")) + late
            if signalled:
                assert await session.turn_complete(turn.id)
            await connection.request("session/list", {})  # what comes late, the next turn would take for its own
        await session._queue.place()
        assert behind.seen == expected

    async def _cancel(self, turn: Any) -> None:
        """Until it is over: an agent that hangs, or asks, has to be told."""
        while True:
            await asyncio.sleep(self.rng.choice([0.05, 0.1]))
            turn.cancel()


@pytest.mark.parametrize("at", range(PLAYS * TIMES))
async def test_X3_every_update_in_its_place(at: int) -> None:
    seed = f"{SEED}:client:{at}"
    try:
        await Play(seed).run()
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
