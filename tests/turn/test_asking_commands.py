"""Commands that ask, need permission, or whose output a person looks at first: real processes (C7, C8, S7, P1, Q7)."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.patience import until
from tests.turn.calls import abort, apply, call, fetch, reply, settings, spawn, texts, wait_all
from tests.turn.people import Model, Person, attended

import keephold
from keephold.turn.prompts import Answer, Approved, AskQuestion, DeliverResult, Denied, Dismissed, Edited, RunTool

ONE_SHOT = """
import json, os, sys
given = json.loads(os.environ["KEEPHOLD_CALL"])["tool"]
for id, kind in (("sure", "Boolean"), ("name", "Text")):
    if id not in given["answers"]:
        print(json.dumps({"type": "waiting", "question": {"id": id, "text": id + "?", "answer_type": kind}}))
        sys.exit()
print(json.dumps(given["answers"], sort_keys=True))
"""
LIVE = """
import json, signal, sys, time
def ask(id):
    question = {"id": id, "text": id + "?", "answer_type": "Boolean"}
    print(json.dumps({"type": "waiting", "question": question}), flush=True)
def ended(*_):
    open("ended", "w").write("by SIGTERM")
    sys.exit(0)
signal.signal(signal.SIGTERM, ended)
ids = sys.argv[1].split(",")
for id in ids:
    ask(id)
for _ in ids:
    print(sys.stdin.readline(), end="", flush=True)
"""


def config(directory: Path, **more: str) -> Path:
    """Two commands that ask. `more` is what else their tables say."""
    directory.joinpath("one_shot.py").write_text(ONE_SHOT)
    directory.joinpath("live.py").write_text(LIVE)
    return settings(
        directory,
        f"""
        [conversation.tools.one_shot]
        source = "local"
        run = "unattended"
        command = ["{sys.executable}", "-I", "-S", "one_shot.py"]
        {more.get("one_shot", "")}
        [conversation.tools.live]
        source = "local"
        run = "unattended"
        wire = true
        command = ["{sys.executable}", "-I", "-S", "live.py", "{{{{ tool.arguments.ids }}}}"]
        parameters.ids = {{ type = "string", default = "sure" }}
        spawn.stateful = true
        {more.get("live", "")}
        """,
    )


# One-shot: asked, ended, run again with the answer (C8)


async def test_C8_a_one_shot_command_is_run_again_with_what_the_person_said(tmp_path: Path) -> None:
    person = Person(Answer(True), Answer("Ann"))
    async with attended(None, [], person=person, config=config(tmp_path)) as (_, turn):
        (response,) = await turn.run([call("one_shot")])
        assert json.loads(response.result) == {"name": "Ann", "sure": True}
        asked = [prompt for prompt in person.seen if isinstance(prompt, AskQuestion)]
        assert [(prompt.tool, prompt.id, prompt.question.id) for prompt in asked] == [
            ("one_shot", None, "sure"),
            ("one_shot", None, "name"),
        ]


async def test_C8_Q5_what_was_remembered_is_not_asked_in_the_next_call(tmp_path: Path) -> None:
    person = Person(Answer(True, remember=True), Answer("Ann"), Answer("Bob"))
    async with attended(None, [], person=person, config=config(tmp_path)) as (_, turn):
        for name in ("Ann", "Bob"):
            (response,) = await turn.run([call("one_shot")])
            assert json.loads(response.result) == {"name": name, "sure": True}
        assert len(person.seen) == 3


async def test_C8_the_answers_come_from_whoever_each_question_is_for(tmp_path: Path) -> None:
    person, model = Person(Answer("Ann")), Model(True)
    path = config(tmp_path, one_shot='questions.sure.target = "assistant"')
    async with attended(None, [], person=person, model=model, config=path) as (_, turn):
        (response,) = await turn.run([call("one_shot")])
        assert json.loads(response.result) == {"name": "Ann", "sure": True}


async def test_Q7_a_one_shot_command_ends_when_its_prompt_is_cancelled(tmp_path: Path) -> None:
    person = Person(Answer(True), Dismissed())
    async with attended(None, [], person=person, config=config(tmp_path)) as (rt, turn):
        (response,) = await turn.run([call("one_shot")])
        assert response.code == "input_cancelled" and "`name`" in response.result
        assert rt.live() == []


async def test_B7_a_cancelled_turn_withdraws_the_question_of_a_command_that_has_exited(tmp_path: Path) -> None:
    person = Person()
    async with attended(None, [], person=person, config=config(tmp_path)) as (rt, turn):
        batch = asyncio.create_task(turn.run([call("one_shot")]))
        prompt = await person.sees()
        turn.cancel()
        (response,) = await batch
        assert response.code == "cancelled"
        await person.sees_nothing()
        assert person.withdrawn == [prompt] and rt.live() == []


# Live: the answer is a line (S7)


async def test_S7_the_persons_answer_reaches_the_live_process(tmp_path: Path) -> None:
    person = Person()
    async with attended(None, [], person=person, config=config(tmp_path)) as (_, turn):
        assert (await reply(turn, spawn("live", "l")))["state"] == "waiting"
        assert (await person.says(Answer(True))).id == "l"
        waited = await reply(turn, wait_all("l"))
        line = json.loads(waited["completed"][0]["result"])
        assert line == {"type": "answer", "id": "sure", "answer": True}


async def test_Q5_several_questions_of_one_process_one_after_the_other(tmp_path: Path) -> None:
    person = Person()
    async with attended(None, [], person=person, config=config(tmp_path)) as (_, turn):
        await reply(turn, spawn("live", "l", ids="a,b,c"))
        for answer in (True, False, True):
            await person.says(Answer(answer))
        waited = await reply(turn, wait_all("l"))
        lines = [json.loads(line) for line in waited["completed"][0]["result"].splitlines()]
        assert [(line["id"], line["answer"]) for line in lines] == [("a", True), ("b", False), ("c", True)]
        assert person.at_once == 1


@pytest.mark.parametrize("who", ["person", "model"])
async def test_Q7_C7_without_an_answer_a_live_process_is_aborted(tmp_path: Path, who: str) -> None:
    person, model = Person(Dismissed()), Model("x", "y")
    path = config(tmp_path, live='questions.sure.target = "assistant"' if who == "model" else "")
    async with attended(
        None, [], person=person if who == "person" else None, model=model if who == "model" else None, config=path
    ) as (rt, turn):
        await turn.run([spawn("live", "l"), wait_all("l")])
        info = await rt.handle("l", conversation="main")
        assert isinstance(info.outcome, keephold.outcomes.Failure)
        assert info.outcome.code == ("input_cancelled" if who == "person" else "inquiry_failed")
        assert "`sure`" in info.outcome.message and info.ended_by == "self"
        assert (tmp_path / "ended").read_text() == "by SIGTERM"
        assert rt.live() == []


async def test_P5_aborting_a_process_withdraws_its_prompt(tmp_path: Path) -> None:
    person = Person()
    async with attended(None, [], person=person, config=config(tmp_path)) as (_, turn):
        await reply(turn, spawn("live", "l"))
        prompt = await person.sees()
        assert (await reply(turn, abort("live", "l")))["ended_by"] == "abort"
        await person.sees_nothing()
        assert person.withdrawn == [prompt]


async def test_P5_a_process_that_goes_away_by_itself_takes_its_prompt_with_it(tmp_path: Path) -> None:
    person = Person()
    gone = tmp_path / "gone.py"
    gone.write_text(
        LIVE.replace("for _ in ids:", "import os\nwhile not os.path.exists('seen'): time.sleep(0.01)\nfor _ in ():")
    )
    path = config(tmp_path)
    path.write_text(path.read_text().replace('"live.py"', '"gone.py"'))
    async with attended(None, [], person=person, config=path) as (_, turn):
        await reply(turn, spawn("live", "l"))
        prompt = await person.sees()
        (tmp_path / "seen").touch()
        waited = await reply(turn, wait_all("l"))
        assert "before its question `sure` was answered" in waited["completed"][0]["result"]
        await person.sees_nothing()
        assert person.withdrawn == [prompt]


async def test_Q4_an_exclusive_question_of_a_process(tmp_path: Path) -> None:
    person = Person()
    path = config(tmp_path, live="questions.sure.exclusive = true")
    async with attended(None, [], person=person, model=Model(), config=path) as (_, turn):
        await reply(turn, spawn("live", "l"))
        await person.sees()
        (refused,) = await turn.run([apply("live", "l", True)])
        assert refused.code == "question_exclusive"
        assert (await reply(turn, fetch("live", "l")))["state"] == "waiting"
        await person.says(Answer(False))
        assert '"answer":false' in (await reply(turn, wait_all("l")))["completed"][0]["result"]


# Permission: a file's tools ask (P1)


async def test_P1_P5_the_arguments_of_a_command_can_be_edited(tmp_path: Path) -> None:
    path = settings(
        tmp_path,
        """
        [conversation.tools.touch]
        source = "local"
        command = ["touch", "--", "{{ tool.arguments.file }}"]
        parameters.file = { type = "string", required = true }
        """,
    )
    person = Person(Edited({"file": "mine; $(rm -rf x)"}), Denied("no"))
    async with attended(None, [], person=person, config=path) as (_, turn):
        assert await texts(turn, call("touch", file="theirs")) == [""]
        assert await texts(turn, call("touch", file="other")) == ["Tool skipped by user: no"]
    made = {each.name for each in tmp_path.iterdir() if each.name != "keephold.toml"}
    assert made == {"mine; $(rm -rf x)"}
    assert [prompt.arguments["file"] for prompt in person.seen if isinstance(prompt, RunTool)] == ["theirs", "other"]


# Its output is its result (P1)


PRINTS = """
[conversation.tools.prints]
source = "local"
run = "unattended"
result = "ask"
command = ["sh", "-c", "echo public; echo secret; exit $1", "sh", "{{ tool.arguments.code }}"]
parameters.code = { type = "integer", default = 0 }
spawn.stateful = true
"""


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (Approved(), None),
        (Edited("public"), "public"),
        (Denied(), "Result delivery skipped by user."),
        (Dismissed(), "Result delivery cancelled."),
    ],
)
async def test_P1_what_a_command_printed_is_withheld(tmp_path: Path, code: int, said: Any, shown: str | None) -> None:
    person = Person(said, said)
    async with attended(None, [], person=person, config=settings(tmp_path, PRINTS)) as (rt, turn):
        one_shot, _, waited = await turn.run(
            [
                keephold.ToolCall("c1", "prints", {"code": code}),
                spawn("prints", "p", code=code),
                wait_all("p"),
            ]
        )
        completed = json.loads(waited.result)["completed"][0]
        info = await rt.handle("p", conversation="main")
        assert one_shot.is_error == completed.get("is_error", False) == (code != 0)
        assert info.exit_code == code  # a killed or failed process is never shown as success (S3)
        reads = await turn.run([call("read_output", id="p"), call("read_output", call_id="c1"), fetch("prints", "p")])
        everything = [one_shot.result, completed["result"], *(response.result for response in reads)]
        assert all("secret" in text for text in everything) if shown is None else "secret" not in str(everything)
        if shown is not None:
            assert one_shot.result == completed["result"] == shown and info.output_bytes == 0
        results = [prompt.result for prompt in person.seen if isinstance(prompt, DeliverResult)]
        assert len(results) == 2 and all("secret" in result for result in results)
        assert [prompt.is_error for prompt in person.seen if isinstance(prompt, DeliverResult)] == [code != 0] * 2


async def test_O5_P1_a_large_output_that_is_withheld_leaves_no_file(tmp_path: Path) -> None:
    toml = PRINTS.replace("echo public; echo secret", "head -c 3000000 /dev/zero | tr '\\\\0' x")
    person = Person(Denied())
    store = f"sqlite:///{tmp_path}/work.db"
    async with attended(None, [], person=person, config=settings(tmp_path, toml), store=store) as (rt, turn):
        await turn.run([spawn("prints", "p"), wait_all("p")])
        assert (await rt.handle("p", conversation="main")).output_bytes == 0
        assert isinstance(person.seen[0], DeliverResult) and "xxx" in person.seen[0].result
    kept = [each for each in tmp_path.rglob("*") if each.is_file() and each.stat().st_size > 1_000_000]
    assert kept == []


async def test_P5_aborting_a_command_whose_result_is_looked_at(tmp_path: Path) -> None:
    person = Person()
    async with attended(None, [], person=person, config=settings(tmp_path, PRINTS)) as (rt, turn):
        await reply(turn, spawn("prints", "p"))
        prompt = await person.sees()
        aborted = await reply(turn, abort("prints", "p"))
        assert aborted["ended_by"] == "abort" and "secret" not in str(aborted)
        await person.sees_nothing()
        assert person.withdrawn == [prompt]
        await until(lambda: rt.live() == [])
