"""Bad input of every kind: a clear answer each time, and the turn goes on (C9, C10, K6, L2)."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.driver import TurnProcess, turn

CONFIG = """
[conversation.tools."*"]
source = "local"
run = "unattended"

[conversation.tools.echo]
command = ["printf", "%s %s", "{{ tool.arguments.text }}", "{{ tool.arguments.times }}"]
parameters.text = { type = "string", required = true }
parameters.times = { type = "integer", default = 1 }

[conversation.tools.cat]
command = "cat"
spawn = { stateful = true, stdin = true }

[conversation.tools.sleeper]
command = "sleep 300"
spawn.stateful = true
"""


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TurnProcess]:
    """One turn for all of the tests: none of them may end it. It has a live handle `s` and a stopped one `c`."""
    with turn(CONFIG, tmp_path_factory.mktemp("turn")) as process:
        process.run(("cat", {"action": "spawn", "id": "c"}), ("sleeper", {"action": "spawn", "id": "s"}))
        process.one("cat", {"action": "abort", "id": "c"})
        yield process
        (live,) = process.finish()
        assert live["id"] == "s"


def goes_on(talk: TurnProcess) -> None:
    """The turn takes the next batch, and what lived before lives."""
    echoed, fetched = talk.run(("echo", {"text": "still here"}), ("sleeper", {"action": "fetch", "id": "s"}))
    assert echoed.text == "still here 1"
    assert fetched.json == {"id": "s", "state": "running"}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"hello", "malformed"),
        (b"", "not a batch"),
        (b"\xff\xfe\x00", "utf-8"),
        (b'{"calls":[{"id":"1","name":"echo","arguments":{"text":"a\xffb"}}]}', "utf-8"),
        (b'{"calls":[', "truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"calls":{}}', "`$.calls`"),
        (b'{"batch":[]}', "unknown field `batch`"),
        (b'{"calls":[{"id":"1","arguments":{}}]}', "missing required field `name`"),
        (b'{"calls":[{"id":1,"name":"echo"}]}', "`$.calls[0].id`"),
        (b'{"calls":[{"id":1,"name":"echo","arguments":{}}]}', "`$.calls[0].id`"),
        (b"[" * 100_000, "not a batch"),
    ],
)
def test_L2_a_line_that_is_not_a_batch_gets_an_error_that_shows_one(talk: TurnProcess, line: bytes, told: str) -> None:
    talk.send(line)
    answer = talk.receive()
    assert set(answer) == {"error"}
    assert "not a batch" in answer["error"]
    assert told in answer["error"]
    assert '{"calls":[{"id":"1","name":"a_tool","arguments":{}}]}' in answer["error"]
    goes_on(talk)


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        pytest.param("ehco", {}, ["unknown tool `ehco`", "`echo`"], id="unknown tool, one like it"),
        pytest.param("deploy", {}, ["unknown tool `deploy`", "`cat`", "`sleeper`"], id="unknown tool"),
        pytest.param(
            "cat",
            {"action": "frob", "id": "c"},
            ["`cat`", '"frob"', '"spawn", "fetch", "apply", "abort"'],
            id="unknown action",
        ),
        pytest.param(
            "sleeper",
            {"action": "apply", "id": "s", "input": "x"},
            ["`sleeper`", '"apply"', '"spawn", "fetch", "abort"'],
            id="action the tool does not have",
        ),
        pytest.param("echo", {"text": 3}, ["`text` must be a string, not 3"], id="wrong type"),
        pytest.param("echo", {"text": "a", "times": "two"}, ["`times` must be an integer"], id="wrong type, optional"),
        pytest.param("echo", {}, ["missing `text`"], id="missing"),
        pytest.param("echo", {"text": None}, ["`text`", "null"], id="null where required"),
        pytest.param("echo", {"text": "a", "txet": "b"}, ["`txet`", "did you mean `text`?"], id="unknown argument"),
        pytest.param("echo", '{"text":', ["not valid JSON"], id="text that is not JSON"),
        pytest.param("echo", "[]", ["must be a JSON object"], id="JSON that is not an object"),
        pytest.param("cat", {"action": "fetch", "id": "zzz"}, ["Handle `zzz` not found"], id="unknown handle"),
        pytest.param("await", {"all": ["y", "z"]}, ["Handle `y` not found. Handle `z` not found"], id="unknown, await"),
        pytest.param(
            "cat", {"action": "fetch", "id": "s"}, ["`s`", "`sleeper`", "not to `cat`"], id="another tool's handle"
        ),
        pytest.param(
            "cat", {"action": "apply", "id": "c", "input": "x"}, ["`c` is stopped"], id="apply to a stopped handle"
        ),
        pytest.param("cat", {"action": "apply", "id": "c"}, ["missing `input`"], id="apply without input"),
        pytest.param("cat", {"action": "spawn"}, ["needs `id`", "you choose"], id="spawn without id"),
        pytest.param(
            "cat", {"action": "spawn", "id": "a\nb"}, ["a<U+000A>b", "1 to 128", "U+000A"], id="newline in id"
        ),
        pytest.param("cat", {"action": "spawn", "id": 7}, ["7 is not a handle id"], id="id of another type"),
        pytest.param("cat", {"action": "spawn", "id": "x" * 129}, ["1 to 128 visible"], id="id too long"),
        pytest.param("await", {"all": ["s"], "timeout_secs": -1}, ["must be at least 0"], id="negative timeout"),
        pytest.param("await", {"all": 5}, ["`all` must be an array"], id="a number instead of a list"),
        pytest.param(
            "echo",
            {"text": "x" * 10_000_000},
            ["bytes, more than", "1048576", "[limits] arguments_bytes"],
            id="10 MB of arguments",
        ),
        pytest.param("echo", {"text": "x" * 200_000}, ["128 KiB"], id="more than a program takes as one argument"),
        pytest.param(
            "echo", json.loads('{"text":' + "[" * 70 + "]" * 70 + "}"), ["64 levels", "[limits] nesting"], id="deep"
        ),
    ],
)
def test_C9_a_bad_call_gets_an_error_and_its_sibling_runs(
    talk: TurnProcess, name: str, arguments: Any, told: list[str]
) -> None:
    bad, good = talk.run((name, arguments), ("echo", {"text": "sibling"}))
    assert bad.is_error
    for words in told:
        assert words in bad.text
    assert len(bad.text) < 500
    assert good.text == "sibling 1"
    goes_on(talk)


def test_C10_null_for_an_optional_argument_means_left_out(talk: TurnProcess) -> None:
    assert talk.one("echo", {"text": "a", "times": None}).text == "a 1"
    nothing, waited = talk.run(("await", {"any": None, "all": None}), ("await", {"any": None, "all": ["c"]}))
    assert nothing.text == 'At least one handle ID required\nTry: await {"all":["s"],"timeout_secs":60}'
    assert [handle["id"] for handle in waited.json["completed"]] == ["c"]


def test_B1_arguments_that_are_no_object_are_the_fault_of_their_call_alone(talk: TurnProcess) -> None:
    given = ("[]", "null", '{"text":' + "[" * 900 + "]" * 900 + "}", '"{\\"text\\":\\"a\\"}"')
    calls = ",".join(f'{{"id":"{at}","name":"echo","arguments":{each}}}' for at, each in enumerate(given))
    talk.send(f'{{"calls":[{calls}]}}'.encode())
    a_list, nothing, deep, text = talk.receive()["responses"]
    assert "JSON object" in a_list["error"]
    assert "missing `text`" in nothing["error"]
    assert "[limits] nesting" in deep["error"]
    assert text["result"].startswith("a")


def test_K6_a_batch_of_5000_calls_is_refused_call_by_call(talk: TurnProcess) -> None:
    answers = talk.run(*([("echo", {"text": "x"})] * 5000))
    assert {answer.is_error for answer in answers} == {True}
    (text,) = {answer.text for answer in answers}
    for words in ("5000", "1000", "[limits] batch_calls", "nothing ran"):
        assert words in text
    goes_on(talk)


def test_K6_a_batch_of_1000_calls_is_not_too_many(talk: TurnProcess) -> None:
    answers = talk.run(*([("await", {"all": ["c"]})] * 1000))
    assert {answer.is_error for answer in answers} == {False}


def test_K6_a_line_of_17_MB_is_skipped(talk: TurnProcess) -> None:
    talk.send(b" " * (17 << 20))
    answer = talk.receive()
    assert set(answer) == {"error"}
    assert "[limits] line_bytes" in answer["error"]
    goes_on(talk)


def test_B1_an_empty_batch_is_a_batch(talk: TurnProcess) -> None:
    assert talk.run() == []
    goes_on(talk)
