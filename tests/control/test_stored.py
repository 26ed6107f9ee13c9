"""What commands see of a handle in a store (L1)."""

import asyncio

from tests.durable.lives import approval
from tests.patience import PATIENCE
from tests.turn.calls import STATEFUL, spawn

import keephold
from keephold import Call, Key, Pending, Runtime
from keephold.cli.store_control import Stored
from keephold.control.store_view import PAGE
from keephold.store.ops import Described, Journaled, Registered
from keephold.testing.conformance.suite import record, uid


async def test_L1_the_journal_has_what_the_tool_did_and_neither_traces_nor_keys() -> None:
    done = asyncio.Event()

    @keephold.tool(actions=STATEFUL, on_crash="replay")
    async def wait(call: Call) -> Pending:
        async def same(given: object) -> object:
            return given

        await call.durable().run_json("mail", {"key": await call.completion_key()}, same)
        done.set()
        return Pending()

    async with Runtime([wait]) as rt, rt.turn("main") as turn:
        await turn.run([spawn("wait", "w")])
        async with asyncio.timeout(PATIENCE):
            await done.wait()
        uid = (await rt.handle("w", conversation="main")).uid
        await rt.registry.write((Journaled(uid, 1, "trace", "call", b"", b"{}"),))
        shown = await Stored(rt.registry.store).handle(uid, keys=True)
        (wait_row,) = shown["waits"]
        told = {"key": f"key:{wait_row['key_id']}"}
        assert shown["journal"] == [
            {"kind": "step", "name": "mail", "ok": True, "input": told, "value": told, "at": None}
        ]
        assert list(shown["keys"]) == ["completion"] and shown["keys"]["completion"].startswith("hf1.")


async def test_L1_a_page_is_as_long_as_a_command_wants_and_has_what_it_names() -> None:
    async with Runtime() as rt:
        await rt.registry.write(tuple(Registered(record(number)) for number in range(PAGE + 5)))
        stored = Stored(rt.registry.store)
        page = await stored.handles(sort="oldest", limit=2**63 - 1)
        assert [fact["uid"] for fact in page["handles"]] == [uid(number) for number in range(PAGE + 5)]
        assert page["next"] is None
        page = await stored.handles(limit=PAGE + 2)
        assert len(page["handles"]) == PAGE + 2 and page["next"] == uid(3)
        assert (await stored.handles(conversation=""))["handles"] == [], "which is the name of none"


async def test_K5_the_title_of_a_conversation_has_no_key() -> None:
    keys: list[Key] = []
    async with Runtime([approval(keys)]) as rt, rt.turn("main") as turn:
        await turn.run([spawn("approve", "a")])
        async with asyncio.timeout(PATIENCE):
            while not keys:  # noqa: ASYNC110 (the tool says nothing but its key)
                await asyncio.sleep(0.002)
        await rt.registry.write((Described("main", 1.0, {"title": f"bring {keys[0]}"}),))
        (listed,) = (await Stored(rt.registry.store).conversations())["conversations"]
        assert listed["title"] == f"bring key:{keys[0].key_id}"
