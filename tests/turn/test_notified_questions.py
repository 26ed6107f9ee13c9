"""News of questions (N1, N3): one that opens while nobody looks is told, one that a reply has shown is not."""

import asyncio
from pathlib import Path

import pytest
from tests.turn.calls import TALKING, call, fetch, wait_all, wait_any
from tests.turn.puppets import STORES, Puppets, heard, hold, in_state, nothing, over, start, store_url, told

from keephold import Question, Runtime
from keephold.outcomes import Failure
from keephold.policies import QuestionPolicy
from keephold.turn.notifications import Notification

both = pytest.mark.parametrize("store", STORES)
DONE = ("tool.stopped", "`a` (work) stopped: done")


@pytest.fixture
def puppets() -> Puppets:
    return Puppets()


@both
async def test_N1_a_question_that_opens_unwatched_is_told(puppets: Puppets, tmp_path: Path, store: str) -> None:
    work = puppets.tool(actions=TALKING)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        puppets.asks("a")
        await in_state(rt, "a", "waiting")
        (response,) = await turn.run([call("nothing")])
        assert response.notifications == (Notification("tool.waiting", "warning", "`a` (work) asks: Sure?"),)
        assert await heard(turn) == []


@both
@pytest.mark.parametrize("show", ["await", "fetch"])
async def test_N3_a_question_that_a_reply_shows_is_not_told(
    puppets: Puppets, tmp_path: Path, store: str, show: str
) -> None:
    work = puppets.tool(actions=TALKING)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        puppets.asks("a")
        await in_state(rt, "a", "waiting")
        assert await heard(turn, wait_all("a") if show == "await" else fetch("work", "a")) == []
        assert await heard(turn) == []


@both
async def test_N3_an_await_that_shows_no_question_takes_none_back(puppets: Puppets, tmp_path: Path, store: str) -> None:
    """It ends for another reason, and says of this one only that it waits."""
    work = puppets.tool(actions=TALKING)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"), start("b"))
        puppets.asks("a")
        await in_state(rt, "a", "waiting")
        puppets.ends("b")
        await over(rt, "b")
        responses = await turn.run([wait_any("a", "b")])
        assert "Sure?" not in responses[0].result
        assert told(responses) == [("tool.waiting", "`a` (work) asks: Sure?")]


@both
async def test_N3_a_question_shown_takes_back_only_the_question(puppets: Puppets, tmp_path: Path, store: str) -> None:
    """Shown waiting, it has stopped when the batch is answered."""
    work = puppets.tool(actions=TALKING)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        puppets.asks("a")
        puppets.ends("a")
        await in_state(rt, "a", "waiting")
        batch = asyncio.create_task(turn.run([fetch("work", "a"), hold()]))
        await puppets.done("held")
        await rt.send("a", True, conversation="main")  # a person answers
        await over(rt, "a")
        puppets.ends("held")
        responses = await batch
        assert "Sure?" in responses[0].result and told(responses) == [DONE]


@both
@pytest.mark.parametrize("id", ["really", "sure"])
@pytest.mark.parametrize("show", ["fetch", "await"])
async def test_N3_the_next_question_is_news_although_the_one_before_was_shown(
    puppets: Puppets, tmp_path: Path, store: str, id: str, show: str
) -> None:
    """The first call shows the first question; when its batch is answered, a person has answered it, and the next is
    open."""
    work = puppets.tool(actions=TALKING)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        puppets.asks("a")
        puppets.asks("a", Question(id=id, text="Really?", answer_type="Boolean"))
        await in_state(rt, "a", "waiting")
        batch = asyncio.create_task(turn.run([fetch("work", "a") if show == "fetch" else wait_all("a"), hold()]))
        await puppets.done("held")
        entry = await rt.send("a", True, conversation="main")
        assert entry["question"]["text"] == "Really?"
        puppets.ends("held")
        responses = await batch
        assert "Sure?" in responses[0].result and "Really?" not in responses[0].result
        assert told(responses) == [("tool.waiting", "`a` (work) asks: Really?")]


async def test_N1_a_question_with_a_fixed_answer_is_no_news(puppets: Puppets) -> None:
    work = puppets.tool(actions=TALKING, questions={"sure": QuestionPolicy(answered=True, answer=True)})
    async with Runtime([work, nothing]) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        puppets.asks("a")
        await puppets.done("a")
        assert await heard(turn) == []


@both
async def test_N3_a_question_that_somebody_has_answered_is_old_news(
    puppets: Puppets, tmp_path: Path, store: str
) -> None:
    work = puppets.tool(actions=TALKING)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        puppets.asks("a")
        await in_state(rt, "a", "waiting")
        await rt.send("a", True, conversation="main")
        assert await heard(turn) == []


@both
async def test_N3_the_end_of_one_whose_question_was_never_answered_is_the_news(
    puppets: Puppets, tmp_path: Path, store: str
) -> None:
    work = puppets.tool(actions=TALKING)
    async with Runtime([work, nothing], store=store_url(store, tmp_path)) as rt, rt.turn("main") as turn:
        await heard(turn, start("a"))
        puppets.asks("a")
        await in_state(rt, "a", "waiting")
        rt.admission.end(rt.registry.find("a", "main"), Failure("Aborted by a person.", "aborted"), "abort")
        await over(rt, "a")
        assert await heard(turn) == [("tool.stopped", "`a` (work) stopped: Aborted by a person.")]
