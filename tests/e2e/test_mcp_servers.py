"""Tools of other programs' MCP servers, over pipes and HTTP, in both eras of the protocol (M6)."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import mcp.types as types
import pytest
from mcp import Client, StdioServerParameters
from tests.e2e.mcp_servers import Server, names, serving, using
from tests.patience import until

from keephold import Runtime, ToolCall
from keephold.mcp.server import Server as KeepholdServer
from keephold.prompts import Answer, AskQuestion

WAYS = [("stdio", "modern"), ("stdio", "legacy"), ("http", "modern"), ("http", "legacy")]


@pytest.fixture(params=WAYS, ids="-".join, scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Over HTTP one that all tests use, as servers are; on pipes every runtime starts one of its own."""
    with serving(tmp_path_factory.mktemp("server"), *request.param) as made:
        yield made


async def test_M6_tools_are_listed_called_and_answered(server: Server) -> None:
    async with Runtime(servers=[server.spec()]) as rt:
        assert await rt.connected()
        assert {"add", "echo", "slow", "await"} <= names(rt)
        async with rt.turn("main") as turn:
            assert (await using(turn, "add", a=1, b=2)).result == '{"sum":3}'
            assert (await using(turn, "echo", text="hello\nthere")).result == "hello\nthere"
            assert (await using(turn, "picture")).result == "here:\n[image image/png, 3 KiB]"
            failed = await using(turn, "fail", why="no luck")
            assert failed.is_error and failed.code == "tool_error" and "no luck" in failed.result
            wrong = await using(turn, "add", a="x", b=2)
            assert wrong.code == "invalid_arguments"  # checked here: the server never sees it


async def test_M6_a_call_can_be_spawned_watched_and_aborted(server: Server, tmp_path: Path) -> None:
    async with Runtime(servers=[server.spec()]) as rt:
        await rt.connected()
        async with rt.turn("main") as turn:
            never = str(tmp_path / "never")
            spawned = json.loads((await using(turn, "slow", action="spawn", id="s", file=never)).result)
            assert (spawned["id"], spawned["state"]) == ("s", "running")
            await until(lambda: rt.live()[0].progress is not None)
            progress = (await rt.handle("s", conversation="main")).progress
            assert progress is not None and (progress.done, progress.total, progress.message) == (1, 3, "waiting")
            refused = await using(turn, "slow", action="apply", id="s", input="x")
            assert refused.code == "not_running"
            aborted = json.loads((await using(turn, "slow", action="abort", id="s")).result)
            assert aborted["ended_by"] == "abort"
            await until(lambda: "slow cancelled" in server.noted())


async def test_M6_tools_are_one_shot_and_listed_to_our_clients_as_their_server_lists_them(tmp_path: Path) -> None:
    """52 of them: with their titles, annotations and output schemas, in at most 1.1 times the text."""
    with serving(tmp_path, "stdio", "modern", "many") as other:
        spec = other.spec(stateful=False)
        async with Runtime(servers=[spec]) as rt, Client(KeepholdServer(rt)) as ours:
            await rt.connected()
            shown = {tool.name: tool for tool in (await ours.list_tools()).tools}
            program = StdioServerParameters(command=spec.command[0], args=[*spec.command[1:]], env=other.env)
            async with Client(program) as theirs:
                listed = {tool.name: tool for tool in (await theirs.list_tools()).tools if "_" in tool.name}
            many = {name for name in listed if name.startswith(("route_", "forget_"))}
            assert len(many) == 52
            for name in many:
                got, own = shown[name], listed[name]
                assert (got.description, got.input_schema) == (own.description, own.input_schema)
                assert own.annotations is not None
                assert got.annotations == own.annotations.model_copy(update={"title": None})
                assert got.title == (own.title or own.annotations.title)
                assert got.output_schema is not None and own.output_schema is not None
                assert got.output_schema["properties"] == own.output_schema["properties"]
            sizes = [
                sum(len(tools[name].model_dump_json(by_alias=True, exclude_none=True)) for name in many)
                for tools in (shown, listed)
            ]
            assert sizes[0] <= 1.1 * sizes[1]
            found = await ours.call_tool("route_3", {"first": {"name": "a"}, "last": {"name": "b"}})
            assert found.structured_content is not None and found.structured_content["end"]["name"] == "b"
            gone = await ours.call_tool("forget_3", {"name": "a"})
            assert gone.structured_content == {"result": "forgot a"}
            words, picture = (await ours.call_tool("picture", {})).content
            assert isinstance(words, types.TextContent) and words.text == "here:\n[image image/png, 3 KiB]"
            assert isinstance(picture, types.ImageContent) and base64.b64decode(picture.data) == b"x" * 3000


async def test_C1_a_tool_with_a_parameter_id_is_one_shot_only(server: Server) -> None:
    async with Runtime(servers=[server.spec()]) as rt:
        await rt.connected()
        async with rt.turn("main") as turn:
            assert (await using(turn, "identify", id="x")).result == "x"


async def test_M6_lists_that_change_are_followed(server: Server) -> None:
    async with Runtime(servers=[server.spec()]) as rt:
        await rt.connected()
        async with rt.turn("main") as turn:
            assert (await using(turn, "late")).code == "unknown_tool"
            await using(turn, "grow")
            await until(lambda: "late" in names(rt))
            assert (await using(turn, "late")).result == "late"
            await using(turn, "shrink")
            await until(lambda: "late" not in names(rt))
            gone = await using(turn, "late")
            assert gone.is_error and "tool `late` of MCP server `other` is gone" in gone.result


async def test_M6_elicitation_of_a_one_shot_call_goes_to_the_person(server: Server) -> None:
    asked: list[str] = []

    async def person(prompt: object) -> Answer:
        assert isinstance(prompt, AskQuestion)
        asked.append(prompt.question.text)
        return Answer({"colour": "red", "name": "Rose"})

    async with Runtime(servers=[server.spec()], prompter=person) as rt:
        await rt.connected()
        async with rt.turn("main") as turn:
            assert (await using(turn, "paint")).result == "red Rose"
    assert asked == ["Paint it?"]


async def test_M6_elicitation_of_a_spawned_call_is_answered_by_apply(server: Server) -> None:
    async with Runtime(servers=[server.spec()]) as rt:
        await rt.connected()
        async with rt.turn("main") as turn:
            waiting = json.loads((await using(turn, "paint", action="spawn", id="p")).result)
            assert waiting["state"] == "waiting" and waiting["question"]["id"] == "form"
            fields = waiting["question"]["answer_type"]["Form"]["properties"]
            assert (fields["colour"]["enum"], fields["name"]["description"]) == (["red", "blue"], "What name?")
            bad = await using(turn, "paint", action="apply", id="p", input={"colour": "green", "name": "Sky"})
            assert bad.code == "bad_answer" and "`colour`" in bad.result
            answer = {"colour": "blue", "name": "Sky"}
            done = json.loads((await using(turn, "paint", action="apply", id="p", input=answer)).result)
            assert done == {"id": "p", "state": "stopped", "result": "blue Sky"}


async def test_M6_what_cannot_be_asked_is_declined_and_the_call_says_so(server: Server) -> None:
    if "legacy" not in server.words:
        return  # asked by a request of the old era
    async with Runtime(servers=[server.spec()]) as rt:
        await rt.connected()
        async with rt.turn("main") as turn:
            failed = await using(turn, "nested")
            assert failed.is_error
            assert "texts, numbers, booleans and choices, and `inner` is none of these" in failed.result


async def test_M6_a_form_of_twelve_fields_is_one_form_for_our_own_client(server: Server) -> None:
    """Integers, formats and defaults reach the user, and the server gets what its form asked for."""
    forms: list[types.ElicitRequestFormParams] = []

    async def fill_in(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestFormParams)
        forms.append(params)
        count = "three" if len(forms) == 1 else 3
        return types.ElicitResult(action="accept", content={"count": count, "mail": "a@example.org", "f7": "seven"})

    async with Runtime(servers=[server.spec(stateful=False)]) as rt:
        await rt.connected()
        async with Client(KeepholdServer(rt), elicitation_callback=fill_in) as ours:
            got = await ours.call_tool("number", {})
            assert got.content[0].text == "3 a@example.org True ['f0', 'seven']", got  # type: ignore[union-attr]
    assert len(forms) == 2 and forms[1].message.startswith("`count`: ")
    fields = forms[0].requested_schema["properties"]
    assert len(fields) == 12 and forms[0].requested_schema["required"] == ["count", "mail"]
    assert fields["count"]["type"] == "integer" and fields["mail"]["format"] == "email"
    assert fields["sure"]["default"] is True and fields["f0"]["default"] == "f0"


async def test_M6_with_nobody_to_ask_the_call_says_what_would_help(server: Server) -> None:
    async with Runtime(servers=[server.spec()]) as rt:
        await rt.connected()
        async with rt.turn("main") as turn:
            failed = await using(turn, "paint")
            assert failed.is_error and "[conversation.tools.paint.questions.form]" in failed.result


async def test_M6_what_two_calls_ask_at_once_reaches_each_where_the_server_says_whose_it_is(server: Server) -> None:
    """Over HTTP it does. An old server on pipes does not, and then nobody is asked in the wrong call."""
    if "legacy" not in server.words:
        return  # such requests are of the old era only

    asked = list[AskQuestion]()

    async def person(prompt: object) -> Answer:
        assert isinstance(prompt, AskQuestion)
        asked.append(prompt)
        if len(asked) == 1 and server.url is not None:
            await until(lambda: rt.prompt_queue._waiting)  # until both have asked
        return Answer(prompt.question.text == "two")

    async with Runtime(servers=[server.spec()], prompter=person) as rt:
        await rt.connected()
        async with rt.turn("main") as turn:
            both = [ToolCall(id=text, name="confirm", arguments={"text": text}) for text in ("one", "two")]
            one, two = await turn.run(both)
            if server.url is None:
                assert one.is_error and two.is_error
                assert "several calls are running, and it does not say which of them asks" in one.result + two.result
            else:
                assert (one.result, two.result) == ("one False", "two True")
            assert (await using(turn, "confirm", text="two")).result == "two True"
