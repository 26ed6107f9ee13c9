"""Why a pending handle has not started, and who waits behind another: on its page, in the API, and from the store."""

import asyncio
from pathlib import Path

from tests.patience import PATIENCE
from tests.serve.pages import dashboard
from tests.turn.calls import STATEFUL, spawn

import keephold
from keephold import Runtime, Tool
from keephold.cli.printing import state_words
from keephold.cli.store_control import Stored
from keephold.control.control import Control
from keephold.store import open_store
from keephold.turn.prompts import Decision, Prompt


def tools(release: asyncio.Event) -> list[Tool]:
    """Tools whose calls run until they are released: one after another, one per file, two at a time, or if allowed."""

    async def work() -> str:
        await release.wait()
        return "done"

    async def with_file(file: str) -> str:
        return await work()

    make = keephold.tool
    return [
        make(name="serial", actions=STATEFUL, scheduling="serial")(work),
        make(name="edit", actions=STATEFUL, resources=["{{ tool.arguments.file }}"])(with_file),
        make(name="two", actions=STATEFUL, max_running=2)(work),
        make(name="asks", actions=STATEFUL, run="ask")(work),
    ]


QUEUES = [
    *(spawn("serial", f"s{number}") for number in (1, 2, 3)),
    *(spawn("edit", f"e{number}", file="a.py") for number in (1, 2, 3)),
    *(spawn("two", f"t{number}") for number in (1, 2, 3)),
]


async def test_B5_a_pending_handle_says_what_it_waits_for_and_who_waits_behind_it() -> None:
    release = asyncio.Event()
    async with dashboard(tools(release)) as seen:
        await seen.turn.run(QUEUES)
        asked = asyncio.create_task(seen.turn.run([spawn("asks", "p")]))
        need = await seen.need()
        listed = (await seen.control.store_view.handles(limit=50))["handles"]
        said = {fact["id"]: state_words(fact, 0) for fact in listed}
        assert said == {
            "s1": "running",
            "s2": "pending, behind s1 in the serial lane",
            "s3": "pending, behind s1 in the serial lane",
            "e1": "running",
            "e2": "pending, waits for a.py, behind e1",
            "e3": "pending, waits for a.py, behind e1, e2",
            "t1": "running",
            "t2": "running",
            "t3": "pending, waits for a free slot (max_running of tool:two), behind t1, t2",
            "p": "pending, waits for permission",
        }
        uids = {fact["id"]: fact["uid"] for fact in listed}
        details = {id: await seen.control.runtime_view.handle(uid) for id, uid in uids.items()}
        behind = {id: [each["id"] for each in fact["holds_up"]] for id, fact in details.items() if id != "p"}
        assert behind == {
            "s1": ["s2", "s3"], "s2": [], "s3": [], "e1": ["e2", "e3"], "e2": ["e3"], "e3": [],
            "t1": ["t3"], "t2": ["t3"], "t3": [],
        }  # fmt: skip
        page = await seen.page(f"/handles/{uids['e2']}")
        (queue,) = page.texts("div", data_live="queue")
        assert queue == "Why it has not started Waits for a.py behind e1 Handles that wait behind it e3"
        assert page.all("a", href=f"/handles/{uids['e1']}") and page.all("a", href=f"/handles/{uids['e3']}")
        rows = (await seen.page("/handles")).texts("tr")
        assert any("Waits for your permission" in row for row in rows)
        assert any("Queues behind s1 in the serial lane" in row for row in rows)
        await seen.control.abort(uids["e1"])
        assert (await seen.control.runtime_view.handle(uids["e3"]))["held_up"][0]["behind"] == [
            {"id": "e2", "uid": uids["e2"]}
        ]
        await seen.answer(need, decision="deny")
        await asked
        release.set()


async def test_B5_other_processes_see_in_the_store_what_a_handle_queues_for(tmp_path: Path) -> None:
    """What `keephold ps --store` prints; it appears when a handle has queued for a moment, and goes when it starts."""
    release, url = asyncio.Event(), f"sqlite:///{tmp_path}/store.db"
    async with Runtime(tools(release), store=url, prompter=_never) as rt, rt.turn("main") as turn:
        await turn.run(QUEUES)
        asked = asyncio.create_task(turn.run([spawn("asks", "p")]))
        other = open_store(url)
        await other.open(lambda _: None)
        try:
            look = Stored(other)
            await until(look, "p", "pending, waits for permission")
            await until(look, "s2", "pending, behind s1 in the serial lane")
            await until(look, "e3", "pending, waits for a.py, behind e1")
            await until(look, "t3", "pending, waits for a free slot (max_running of tool:two)")
            for handle in rt.registry.live("main"):
                if handle.id in ("e1", "t1"):
                    await Control(rt).abort(handle.uid)
            await until(look, "e3", "pending, waits for a.py, behind e2")
            await until(look, "t3", "running")
        finally:
            await other.close()
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            release.set()


async def _never(prompt: Prompt) -> Decision:
    await asyncio.Event().wait()
    raise AssertionError("nobody decides")


async def until(look: Stored, id: str, words: str) -> None:
    """Look until the handle is described so."""
    async with asyncio.timeout(PATIENCE):
        while True:
            listed = (await look.handles(state="live", oneshot=True, limit=50))["handles"]
            if {fact["id"]: state_words(fact, 0) for fact in listed}.get(id) == words:
                return
            await asyncio.sleep(0.02)
