"""Revoked keys and answers to secret questions, of calls on Temporal: as elsewhere."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.durable.lives import stopped
from tests.durable.test_secrets import SECRET, stored
from tests.engines.site import front_end, spawn, working
from tests.patience import PATIENCE, until
from tests.temporal import Place
from tests.turn.people import Person

from keephold import Call, Pending, Question, tool
from keephold.outcomes import Failure, Ok
from keephold.policies import QuestionPolicy
from keephold.tools.base import Action
from keephold.turn.prompts import Answer

ALL: tuple[Action, ...] = ("spawn", "fetch", "apply", "abort")


@pytest.mark.parametrize("suspend_secs", [0.2, PATIENCE * 10], ids=["suspended", "running"])
async def test_D5_a_call_whose_event_is_revoked_is_told_so(temporal: Place, suspend_secs: float) -> None:
    keys: list[str] = []

    @tool(engine="temporal", on_crash="replay", actions=ALL)
    async def listens(call: Call) -> str:
        fx = call.durable()
        keys.append(await fx.external_event_key("ready"))
        return str(await fx.await_event_json(keys[0]))

    workers, served = working(temporal, [listens], suspend_secs=suspend_secs), front_end(temporal, [listens])
    async with workers, served as rt, rt.turn("main") as turn:
        await turn.run([spawn("listens", "l")])
        assert rt.front_end is not None
        (call,) = rt.front_end.calls.values()
        await until(lambda: call.suspended if suspend_secs < 1 else keys)
        await until(lambda: _has_key(rt))
        assert await rt.revoke_keys("main") == 1
        assert str(await rt.resolve(keys[0], {"status": "ok", "payload": 1})) == "unknown_or_revoked"
        outcome = (await stopped(rt, "l")).outcome
    assert isinstance(outcome, Failure) and outcome.code == "await_event_unknown_or_revoked"


async def _has_key(rt: Any) -> bool:
    return bool(await rt.keys("l", conversation="main"))


async def test_D5_revoked_before_the_tool_returns_pending(temporal: Place) -> None:
    revoked = asyncio.Event()

    @tool(engine="temporal", actions=ALL)
    async def slow(call: Call) -> Pending:
        await call.completion_key()
        await revoked.wait()
        return Pending()

    async with working(temporal, [slow]), front_end(temporal, [slow]) as rt, rt.turn("main") as turn:
        await turn.run([spawn("slow", "l")])
        await until(lambda: _has_key(rt))
        assert await rt.revoke_keys("main") == 1
        revoked.set()
        outcome = (await stopped(rt, "l")).outcome
    assert isinstance(outcome, Failure) and outcome.code == "await_event_unknown_or_revoked"


async def test_Q4_a_secret_is_neither_in_the_store_nor_in_temporal(temporal: Place, tmp_path: Path) -> None:
    got, person = list[str](), Person(Answer(SECRET))

    @tool(engine="temporal", on_crash="replay", actions=ALL, questions={"password": QuestionPolicy(target="user")})
    async def login(call: Call) -> str:
        got.append(await call.ask(Question(id="password", text="Password?", answer_type="Text", secret=True)))
        return "logged in"

    store = f"sqlite:///{tmp_path}/k.db"
    workers, served = working(temporal, [login]), front_end(temporal, [login], store, prompter=person)
    async with workers, served as rt, rt.turn("main") as turn:
        await turn.run([spawn("login", "l")])
        info = await stopped(rt, "l")
        assert info.outcome == Ok("logged in") and got == [SECRET]
        await rt.registry.write(())
        assert stored(tmp_path, SECRET) == []
        client = await temporal.connect()
        history = _decoded(await client.get_workflow_handle(info.uid).fetch_history())
        assert SECRET not in history and "logged in" in history


def _decoded(history: Any) -> str:
    return "".join(event.SerializeToString().decode("latin-1") for event in history.events)
