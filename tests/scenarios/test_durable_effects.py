"""Durable tool effects: the examples of "Tool execution", as one tool that asks a person for input (E1, E2, E5, E8).

`run_json` records the step that creates the request, `external_event_key` and `await_event_json` wait for the answer,
`emit_process_event` tells the process what happened. The same code runs through a crash.
"""

from pathlib import Path
from typing import Any

from tests.durable.lives import journaled, power_cut, stopped, stored_in
from tests.patience import until
from tests.scenarios.assistant import call, one

import keephold


class Desk:
    """Where requests for input are put, with the keys that answer them."""

    def __init__(self) -> None:
        self.created: list[str] = []
        self.published: list[tuple[dict[str, Any], str]] = []

    def tool(self) -> keephold.Tool:
        @keephold.tool(actions=("spawn", "fetch", "abort"), on_crash="replay")
        async def request_input(call: keephold.Call, question: str) -> dict[str, Any]:
            """Ask a person, however long it takes."""
            durable = call.durable()
            opened = await durable.run_json("create-input-request", {"question": question}, self.create)
            key = await durable.external_event_key(f"input-request:{opened['request_id']}")
            self.published.append((opened, key))
            await durable.emit_process_event(
                "work.input_request.opened", {"request_id": opened["request_id"], "await_key_id": key.key_id}
            )
            answer = await durable.await_event_json(key)
            return {"request": opened["request_id"], "answer": answer}

        return request_input

    async def create(self, given: Any) -> Any:
        """Creates the external record: the side effect that must not double-run after replay."""
        self.created.append(given["question"])
        return {"request_id": f"request-{len(self.created)}", "question": given["question"]}


async def test_E1_journal_a_json_step_wait_on_an_external_resolver_emit_a_process_event(tmp_path: Path) -> None:
    desk = Desk()
    async with keephold.Runtime([desk.tool()], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await one(turn, "request_input", {"action": "spawn", "id": "ask", "question": "Ship it?"})
        await until(lambda: len(desk.published) == 1)
        opened, key = desk.published[0]
        assert opened == {"request_id": "request-1", "question": "Ship it?"}
        process = (await rt.handle("ask", conversation="main")).uid
        await until(lambda: journaled(rt, "ask", 2))
        (event,) = await rt.process_events(process)
        assert event.type == "work.input_request.opened"
        assert event.payload["request_id"] == "request-1"
        assert event.payload["await_key_id"] not in ("", key)
        # The resolver needs the signed key, not the readable name.
        readable = await rt.resolve("input-request:request-1", {"status": "ok", "payload": "yes"})
        assert str(readable) == "unknown_or_revoked"
        assert str(await rt.resolve(key, {"status": "ok", "payload": "yes"})) == "accepted"
        waited = await one(turn, "await", {"all": ["ask"]})
        assert waited["completed"][0]["result"] == '{"request":"request-1","answer":"yes"}'


async def test_E2_replay_returns_the_recorded_value_without_running_the_closure(tmp_path: Path) -> None:
    desk, store = Desk(), stored_in(tmp_path)
    async with keephold.Runtime([desk.tool()], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        await one(turn, "request_input", {"action": "spawn", "id": "ask", "question": "Ship it?"})
        await until(lambda: len(desk.published) == 1)
        await until(lambda: journaled(rt, "ask", 2))
        store = power_cut(store)
    async with keephold.Runtime([desk.tool()], store=store) as rt:
        await until(lambda: len(desk.published) == 2)
        assert desk.published[0] == desk.published[1]  # the same request, the same key
        await rt.resolve(desk.published[0][1], {"status": "ok", "payload": "yes"})
        info = await stopped(rt, "ask")
        assert info.outcome == keephold.outcomes.Ok({"request": "request-1", "answer": "yes"})
        assert len(await rt.process_events(info.uid)) == 1
    assert desk.created == ["Ship it?"]


async def test_E5_error_timeout_and_cancellation_become_errors_of_the_call(tmp_path: Path) -> None:
    desk = Desk()
    resolutions: list[tuple[dict[str, Any], str]] = [
        ({"status": "err", "payload": {"code": "declined", "message": "Not my job."}}, "declined"),
        ({"status": "timeout"}, "durable_effect_event_timeout"),
        ({"status": "cancelled"}, "durable_effect_event_cancelled"),
    ]
    async with keephold.Runtime([desk.tool()], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        for n, (resolution, code) in enumerate(resolutions):
            await one(turn, "request_input", {"action": "spawn", "id": f"ask-{n}", "question": "Ship it?"})
            await until(lambda n=n: len(desk.published) == n + 1)  # type: ignore[misc]
            await rt.resolve(desk.published[n][1], resolution)
            outcome = (await stopped(rt, f"ask-{n}")).outcome
            assert isinstance(outcome, keephold.outcomes.Failure) and outcome.code == code


async def test_E1_requirements(tmp_path: Path) -> None:
    """A call with an id, of a tool that declares it; a process event needs a process."""

    @keephold.tool
    async def undeclared(call: keephold.Call) -> None:
        call.durable()

    desk = Desk()
    async with keephold.Runtime([desk.tool(), undeclared], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        responses = await turn.run(
            [
                keephold.ToolCall("", "request_input", {"question": "?"}),
                call("undeclared", {}),
                call("request_input", {"question": "outside a process?"}),
            ]
        )
        assert [response.code for response in responses] == [
            "durable_effects_missing_call_id",
            "durable_effects_unavailable",
            "durable_effect_process_event_unavailable",
        ]
