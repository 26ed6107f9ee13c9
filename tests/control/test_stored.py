"""What commands see of a handle in a store (L1)."""

import asyncio

from tests.turn.calls import STATEFUL, spawn

import holdfast
from holdfast import Call, Pending, Runtime
from holdfast.cli.stored import Stored
from holdfast.store.ops import Journaled


async def test_L1_the_journal_has_what_the_tool_did_and_neither_traces_nor_keys() -> None:
    done = asyncio.Event()

    @holdfast.tool(actions=STATEFUL, on_crash="replay")
    async def wait(call: Call) -> Pending:
        async def same(given: object) -> object:
            return given

        await call.durable().run_json("mail", {"key": await call.completion_key()}, same)
        done.set()
        return Pending()

    async with Runtime([wait]) as rt, rt.turn("main") as turn:
        await turn.run([spawn("wait", "w")])
        async with asyncio.timeout(8):
            await done.wait()
        uid = (await rt.handle("w", conversation="main")).uid
        await rt.registry.write((Journaled(uid, 1, "trace", "call", b"", b"{}"),))
        shown = await Stored(rt.registry.store).handle(uid, keys=True)
        (wait_row,) = shown["waits"]
        told = {"key": f"key:{wait_row['key_id']}"}
        assert shown["journal"] == [{"kind": "step", "name": "mail", "ok": True, "input": told, "value": told}]
        assert list(shown["keys"]) == ["completion"] and shown["keys"]["completion"].startswith("hf1.")
