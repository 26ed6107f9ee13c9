"""What no store can keep ends the call in words: nobody waits for a handle whose news could not be written (B6, C9)."""

import asyncio
from pathlib import Path

import pytest
from tests.durable.lives import stored_in
from tests.patience import PATIENCE

import keephold
from keephold import Call, KeepholdError, Question, Runtime, ToolCall


async def test_C9_a_question_that_cannot_be_stored_ends_the_call(tmp_path: Path) -> None:
    ended: list[bool] = []

    @keephold.tool
    async def asks(call: Call) -> str:
        try:
            await call.ask(Question(id="q", text="Which?", default=object()))
        finally:
            ended.append(True)
        return "never"

    async with Runtime([asks], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        async with asyncio.timeout(PATIENCE):
            (answer,) = await turn.run([ToolCall("1", "asks")])
        assert answer.is_error and answer.code == "not_storable" and ended == [True]
        assert rt.live() == []


async def test_S3_a_code_that_is_no_text_is_stored_as_text(tmp_path: Path) -> None:
    @keephold.tool(actions=("spawn", "fetch"))
    async def fails() -> str:
        raise keephold.ToolError("gone", code=404)  # type: ignore[arg-type]

    async with Runtime([fails], store=stored_in(tmp_path)) as rt, rt.turn("main") as turn:
        await turn.run([ToolCall("1", "fails", {"action": "spawn", "id": "f"})])
        await rt.wait(all=["f"], conversation="main")
    async with Runtime([fails], store=stored_in(tmp_path)) as rt:
        (info,) = await rt.handles(conversation="main")
        assert isinstance(info.outcome, keephold.outcomes.Failure) and info.outcome.code == "404"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_C9_names_with_half_of_a_character_are_not_found(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    url = stored_in(tmp_path) if kind == "sqlite" else request.getfixturevalue("postgres")
    async with Runtime(store=url) as rt:
        for id, conversation in (("a\ud800", "main"), ("a", "x\ud800")):
            with pytest.raises(KeepholdError) as refused:
                await rt.handle(id, conversation=conversation)
            assert refused.value.code == "handle_not_found"
        assert await rt.process_events("p\ud800") == []
        with pytest.raises(KeepholdError, match="is not a name for a conversation"):
            async with rt.turn("x\ud800"):
                pass
