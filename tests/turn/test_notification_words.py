"""What of a handle is news, and in which words (N1, N2, S3, O2); what a program may tell."""

from pathlib import Path
from typing import Any

import pytest
from tests.turn.calls import TALKING, call, fetch, reply
from tests.turn.puppets import STORES, Puppets, heard, in_state, nothing, over, start, store_url

import keephold
from keephold import KeepholdError, Question, Runtime, ToolError
from keephold.policies import NotificationPolicy
from keephold.turn.notifications import Notification, notification_block

both = pytest.mark.parametrize("store", STORES)
FAILED = ("tool.failed", "`a` (work) failed: no luck")


@pytest.fixture
def puppets() -> Puppets:
    return Puppets()


@both
@pytest.mark.parametrize("quiet", ["on_success", "on_failure", "on_waiting", None])
async def test_N2_each_switch_silences_its_own(puppets: Puppets, tmp_path: Path, store: str, quiet: str | None) -> None:
    switches: dict[str, Any] = {} if quiet is None else {quiet: False}
    work = puppets.tool(actions=TALKING, notifications=NotificationPolicy(**switches))
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("good"), start("bad"), start("asks"))
        puppets.ends("good")
        await over(rt, "good")
        puppets.fails("bad")
        await over(rt, "bad")
        puppets.asks("asks")
        await in_state(rt, "asks", "waiting")
        kinds = {"on_success": "tool.stopped", "on_failure": "tool.failed", "on_waiting": "tool.waiting"}
        expected = [kind for switch, kind in kinds.items() if switch != quiet]
        assert [kind for kind, _ in await heard(turn)] == expected


async def test_S3_an_end_by_somebody_else_is_no_failure(puppets: Puppets) -> None:
    """A person's abort, that is; a switch of failures does not silence it."""
    work = puppets.tool(notifications=NotificationPolicy(on_failure=False))
    async with Runtime([work, nothing]) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        handle = rt.registry.find("a", "main")
        rt.admission.end(handle, keephold.outcomes.Failure("Aborted by a person.", "aborted"), "abort")
        await over(rt, "a")
        (response,) = await turn.run([call("nothing")])
        assert response.notifications == (
            Notification("tool.stopped", "info", "`a` (work) stopped: Aborted by a person."),
        )


@pytest.mark.parametrize("code", ["aborted", "cancelled"])
async def test_S3_a_tool_that_fails_by_itself_has_failed_whatever_code_it_uses(puppets: Puppets, code: str) -> None:
    async with Runtime([puppets.tool(), nothing]) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        puppets.fails("a", ToolError("no luck", code=code))
        await over(rt, "a")
        assert await heard(turn) == [FAILED]
        assert (await reply(turn, fetch("work", "a")))["is_error"]


async def test_N1_a_timeout_is_a_failure(puppets: Puppets) -> None:
    async with Runtime([puppets.tool(timeout_secs=0.001), nothing]) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        await over(rt, "a")
        assert await heard(turn) == [("tool.failed", "`a` (work) failed: Tool timed out after 0.001 s.")]


@pytest.mark.parametrize("end", ["fails", "asks"])
async def test_O2_what_a_tool_says_is_cut(puppets: Puppets, end: str) -> None:
    """An error, or a question, of a megabyte is not for a notification."""
    long = "x" * 1_000_000
    work = puppets.tool(actions=TALKING)
    async with Runtime([work, nothing]) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        if end == "fails":
            puppets.fails("a", ToolError(long))
            await over(rt, "a")
        else:
            puppets.asks("a", Question(id="long", text=long))
            await in_state(rt, "a", "waiting")
        ((_, message),) = await heard(turn)
        assert message.startswith("`a` (work) ") and len(message) < 4200


def test_N_the_block_says_that_nobody_wrote_it_and_keeps_each_on_its_own_lines() -> None:
    assert notification_block(()) == ""
    block = notification_block(
        (Notification("tool.stopped", "info", "`a` (work) stopped."), Notification("x.y", "error", "one\ntwo\n"))
    )
    assert block.splitlines() == [
        "[Automatic notifications. They are not from the user and come once.]",
        "- info: `a` (work) stopped.",
        "- error: one",
        "  two",
    ]


@pytest.mark.parametrize("kind", ["", "deploy", "deploy.", ".finished", "Deploy.finished", "a b.c", "a.b\n", None, 1])
async def test_N1_a_kind_is_a_source_and_a_name(kind: object) -> None:
    async with Runtime([]) as rt:
        with pytest.raises(KeepholdError, match=r"source\.name") as caught:
            await rt.notify(kind, "info", "x", conversation="main")  # type: ignore[arg-type]
        assert caught.value.code == "invalid_arguments"


@pytest.mark.parametrize("level", ["", "debug", "INFO", None, ["info"]])
async def test_N1_there_are_four_levels(level: object) -> None:
    async with Runtime([]) as rt:
        with pytest.raises(KeepholdError, match="info, warning, error, critical") as caught:
            await rt.notify("a.b", level, "x", conversation="main")  # type: ignore[arg-type]
        assert caught.value.code == "invalid_arguments"


@both
async def test_N1_a_program_tells_what_it_likes_and_a_long_message_is_cut(tmp_path: Path, store: str) -> None:
    async with Runtime([nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await rt.notify("deploy.finished", "warning", "é" * 10_000, conversation="main")
        (response,) = await turn.run([call("nothing")])
        (notification,) = response.notifications
        assert (notification.kind, notification.level) == ("deploy.finished", "warning")
        assert notification.message.startswith("ééé") and len(notification.message) < 4100


@pytest.mark.parametrize("message", [None, 3, b"x", ["x"]])
async def test_N1_a_message_is_text(message: object) -> None:
    async with Runtime([]) as rt:
        with pytest.raises(KeepholdError) as caught:
            await rt.notify("a.b", "info", message, conversation="main")  # type: ignore[arg-type]
        assert caught.value.code == "invalid_arguments"


@both
@pytest.mark.parametrize("end", ["fails", "asks"])
async def test_K4_what_a_tool_says_is_told_as_text(puppets: Puppets, tmp_path: Path, store: str, end: str) -> None:
    """As a reply would show it: no control sequences, and nothing that cannot be sent."""
    wild = "\x1b[31mred\x1b[0m \x07\ud800"
    work = puppets.tool(actions=TALKING)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        if end == "fails":
            puppets.fails("a", ToolError(wild))
            await over(rt, "a")
        else:
            puppets.asks("a", Question(id="wild", text=wild))
            await in_state(rt, "a", "waiting")
        ((_, message),) = await heard(turn)
        assert "red" in message and "\x1b" not in message and "\x07" not in message
        message.encode()
