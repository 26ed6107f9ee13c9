"""The words of ACP: how calls are described, prompts asked, and transcripts told again (X1, P, Q)."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import keephold
from keephold import ConfigError, Question, Tool, ToolCall, tool
from keephold.acp.agent.params import prompt_content, title_of
from keephold.acp.agent.permissions import decided, elsewhere, filled_in, permission
from keephold.acp.agent.replay import Replayed, replay
from keephold.acp.agent.shown import KINDS, check_kinds, describe, in_words, kind_of
from keephold.acp.agent.updates import fenced
from keephold.acp.wire import RpcError
from keephold.handles.handle import Handle, Watcher
from keephold.handles.question import question_form
from keephold.store.base import TranscriptLine
from keephold.turn.prompts import Answer, Approved, AskQuestion, DeliverResult, Denied, Dismissed, RunTool


@tool
async def files(paths: list[Path], other: Path | None = None, word: str = "") -> str:
    """Files."""
    return ""


@tool(actions=("spawn", "fetch", "apply", "abort"))
async def job(file_path: str = "", line: int = 0) -> str:
    """A job."""
    return ""


def described(name: str, made: Tool | None, arguments: dict[str, Any] | str) -> Any:
    return describe(ToolCall("1", name, arguments), made)


@pytest.mark.parametrize(
    ("arguments", "title", "kind", "handle"),
    [
        ({"action": "spawn", "id": "j", "line": 3}, "j: job line=3", "other", "j"),
        ({"action": "fetch", "id": "j"}, "fetch j (job)", "read", "j"),
        ({"action": "apply", "id": "j", "input": {"a": 1}}, 'apply j (job) {"a":1}', "other", "j"),
        ({"action": "nonsense", "id": "j"}, "job action=nonsense id=j", "other", None),
        ({"file_path": "a\nb" + "c" * 200}, "job file_path=a b" + "c" * 56 + "…", "other", None),
        ('{"line": 4}', "job line=4", "other", None),
        ("{not json", "job", "other", None),
    ],
)
def test_X1_a_call_in_one_line(arguments: dict[str, Any] | str, title: str, kind: str, handle: str | None) -> None:
    found = described("job", job, arguments)
    assert (found.title, found.kind, found.handle_id) == (title, kind, handle)


def test_X1_an_unknown_tool_is_described_by_what_was_sent() -> None:
    found = described("nothing", None, "{not json")
    assert (found.title, found.kind, found.fields["rawInput"]) == ("nothing", "other", "{not json")


def test_X1_locations_are_the_paths_among_the_arguments() -> None:
    found = described("files", files, {"paths": ["/a", "b/../c"], "other": "/d", "word": "/no"}).fields["locations"]
    assert [where["path"] for where in found] == ["/a", str(Path.cwd() / "c"), "/d"]
    found = described("job", job, {"action": "spawn", "id": "j", "file_path": "/e", "line": 9}).fields["locations"]
    assert found == [{"path": "/e", "line": 9}]


def test_X1_the_kind_is_what_the_tool_says_or_follows_from_its_nature() -> None:
    assert all(kind_of(replace(files, hints={"kind": kind})) == kind for kind in KINDS)
    assert kind_of(replace(files, hints={"readOnlyHint": True})) == "read"
    assert kind_of(replace(files, source="local")) == kind_of(replace(files, source="terminal")) == "execute"
    assert kind_of(replace(files, kind="agent")) == kind_of(replace(files, scheduling="synchronising")) == "think"
    check_kinds([replace(files, hints={"kind": "edit"})])
    with pytest.raises(ConfigError, match="must be one of read, edit"):
        check_kinds([replace(files, hints={"kind": "editing"})])


def test_X1_text_with_fences_is_fenced_by_longer_ones() -> None:
    assert fenced("a") == "```\na\n```"
    assert fenced("```\na\n```") == "````\n```\na\n```\n````"


RUN = RunTool(tool="t", action=None, id=None, arguments={"a": 1}, conversation="c")
RESULT = DeliverResult(tool="t", id=None, result="r", is_error=False, conversation="c")


def chosen(option: str) -> dict[str, Any]:
    return {"outcome": {"outcome": "selected", "optionId": option}}


@pytest.mark.parametrize(
    ("prompt", "option", "decision"),
    [
        (RUN, "allow_once", Approved()),
        (RUN, "allow_always", Approved(remember=True)),
        (RUN, "reject_once", Denied()),
        (RUN, "reject_always", Denied(remember=True)),
        (RESULT, "allow_once", Approved()),
        (RESULT, "reject_once", Denied()),
    ],
)
def test_P1_what_an_option_means(prompt: Any, option: str, decision: Any) -> None:
    request = permission(prompt, "t")
    assert request is not None and decided(request, chosen(option)) == decision


def test_P1_an_answer_that_is_none_decides_nothing() -> None:
    request = permission(RUN, "t")
    assert request is not None and decided(request, {"outcome": {"outcome": "cancelled"}}) == Dismissed()
    for wrong in (None, {}, {"outcome": None}, chosen("sudo"), chosen("reject_onc")):
        said = decided(request, wrong)
        assert isinstance(said, Dismissed) and said.reason is not None


def ask(question: Question, **more: Any) -> AskQuestion:
    return AskQuestion(tool="t", id=None, question=question, conversation="c", **more)


def test_Q1_texts_and_secrets_are_no_choices() -> None:
    text = Question(id="q", text="Which?", default="red")
    assert permission(ask(text), "t") is None
    assert permission(ask(Question(id="q", text="Which?", answer_type="Boolean", secret=True)), "t") is None
    message, schema = question_form(text, "not so")
    assert message == "not so\n\nWhich?" and schema["properties"]["q"]["default"] == "red"
    assert filled_in(text, {"action": "accept", "content": {"q": "blue"}}) == Answer("blue")
    assert filled_in(text, {"action": "decline"}) == Dismissed()
    assert isinstance(filled_in(text, "nonsense"), Dismissed)
    assert "--password" in elsewhere(Question(id="q", text="", secret=True), "uid", "sqlite:///s")


def test_Q1_a_form_is_asked_by_a_form() -> None:
    fields = {"age": {"type": "integer"}, "name": {"type": "string"}}
    form = Question(id="f", text="Who?", answer_type={"Form": {"properties": fields, "required": ["age"]}})
    assert permission(ask(form), "t") is None
    assert question_form(form, None) == ("Who?", {"type": "object", "properties": fields, "required": ["age"]})
    assert filled_in(form, {"action": "accept", "content": {"age": 3, "name": None}}) == Answer({"age": 3})
    assert "with a JSON object" in elsewhere(form, "uid", "sqlite:///s")
    assert in_words(form) == "**Who?**\n\n- age (whole number)\n- name (optional)"


@pytest.mark.parametrize(
    "blocks",
    [None, [], "hi", [{"type": "text"}], [{"type": "text", "text": " "}],
     [{"type": "audio", "data": "", "mimeType": ""}], [{"type": "image", "data": "%", "mimeType": "image/png"}],
     [{"type": "resource", "resource": 1}], [7], [{}]],
)  # fmt: skip
def test_X1_a_prompt_that_cannot_be_used_is_refused(blocks: Any) -> None:
    with pytest.raises(RpcError) as refused:
        prompt_content(blocks)
    assert refused.value.number == -32602


def test_X1_a_session_is_called_after_its_first_words() -> None:
    assert title_of([{"type": "image"}, {"type": "text", "text": "\n fix\tit \nplease"}]) == "fix it"
    assert len(title_of([{"type": "text", "text": "x" * 500}])) == 80
    assert title_of([{"type": "image"}]) == "A session"


# Diffs


@pytest.mark.parametrize("threaded", [False, True])
async def test_X1_who_watches_a_handle_is_shown_its_diffs(threaded: bool) -> None:
    def sync(call: keephold.Call) -> str:
        call.show(keephold.FileDiff("a", None, "new"))
        return "done"

    async def coroutine(call: keephold.Call) -> str:
        return sync(call)

    function = sync if threaded else coroutine
    found: list[keephold.FileDiff] = []

    class Looks(Watcher):
        def showed(self, handle: Handle, diff: keephold.FileDiff) -> None:
            found.append(diff)

    def watch(handles: Sequence[Handle]) -> None:
        for handle in handles:
            handle.watch(Looks())

    async with keephold.Runtime(tools=[tool(name="change")(function)]) as rt, rt.turn() as turn:
        rt.registry.on_created.add(watch)
        (response,) = await turn.run([ToolCall("1", "change")])
        assert response.result == "done" and found == [keephold.FileDiff("a", None, "new")]


# Telling again


def lines(*said: tuple[str, str, dict[str, Any]]) -> list[TranscriptLine]:
    return [
        TranscriptLine(number=at, turn=turn, kind=kind, body=json.dumps(body).encode(), at=0.0)
        for at, (turn, kind, body) in enumerate(said, 1)
    ]


def called(*ids: str) -> dict[str, Any]:
    parts = [{"part_kind": "tool-call", "tool_name": "files", "args": "{}", "tool_call_id": id} for id in ids]
    return {"kind": "response", "parts": parts}


def returned(id: str, outcome: str = "success") -> dict[str, Any]:
    part = {"part_kind": "tool-return", "tool_name": "files", "content": "r", "tool_call_id": id, "outcome": outcome}
    return {"kind": "request", "parts": [part]}


def told(*said: tuple[str, str, dict[str, Any]], interrupted: str | None = None) -> Replayed:
    def end(_: Any) -> Any:
        raise AssertionError("there are no handles")

    return replay(lines(*said), tool=lambda _: files, handles={}, end=end, interrupted=interrupted)


def test_X1_what_the_system_said_is_not_told_as_the_users_words() -> None:
    def user(text: str) -> tuple[str, str, dict[str, Any]]:
        return "t", "request", {"parts": [{"part_kind": "user-prompt", "content": text}]}

    news = "[Automatic notifications. They are not from the user and come once.]\n- info: x"
    again = told(user("hello"), user(news), user("[Automatic message. It is not from the user.] You have"))
    assert [update["content"]["text"] for update in again.updates] == ["hello"]


def test_X1_calls_that_nobody_answered_have_failed_when_another_turn_came() -> None:
    again = told(
        ("t1", "response", called("a", "b")), ("t1", "request", returned("a")), ("t2", "response", called("a"))
    )
    ends = {each["toolCallId"]: each["status"] for each in again.updates}
    assert ends == {"t1.a": "completed", "t1.b": "failed", "t2.a": "failed"}
    assert again.open == []


def test_G1_calls_of_an_interrupted_turn_stay_open() -> None:
    again = told(
        ("t", "response", called("a")),
        ("t", "request", returned("a", "failed")),
        ("t", "response", called("a", "b")),
        interrupted="t",
    )
    assert [each["toolCallId"] for each in again.updates if "title" in each] == ["t.a", "t.a.2", "t.b"]
    assert [id for id, _, _ in again.open] == ["t.a.2", "t.b"] and again.used == ["a"]


def test_X2_the_end_of_a_turn_is_not_told_again() -> None:
    signal = {"turnComplete": {"promptRequestId": "1", "stopReason": "end_turn"}}
    assert told(("t", "shown", signal), ("t", "summary", {"upto": 1, "text": "s"}), ("t", "ended", {})).updates == []
