"""Agents of other programs as sub-agents (G2): what they say, what they want permitted, and their end."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.agent.scripted import Script, called, spawned
from tests.agent.talk import Talk, talking, written
from tests.agent.test_subagent_permission import WAYS, answers, note, starting
from tests.agent.test_subagents import completed
from tests.e2e.driver import turn
from tests.e2e.driver import until as eventually
from tests.patience import until
from tests.turn.people import Person

from keephold.acp import subagent
from keephold.turn.prompts import Answer, AskQuestion

AGENT = Path(__file__).parents[1] / "acp" / "agents" / "obedient.py"
OPTIONS = [
    {"optionId": "a", "name": "Allow", "kind": "allow_once"},
    {"optionId": "r", "name": "Reject", "kind": "reject_once"},
]
REJECTED, ALLOWED = ('"optionId": "r"', '"optionId": "a"')


def config(directory: Path, *, conversation: str = "", command: list[str] | None = None, more: str = "") -> Path:
    program = json.dumps(command or [sys.executable, "-I", "-S", str(AGENT)])
    return written(directory, f'{conversation}\n[agents.coder]\ncommand = {program}\nrun = "unattended"\n{more}')


def steps(*given: list[Any]) -> str:
    """A prompt for it."""
    return json.dumps(given)


def processes(directory: Path) -> list[int]:
    """What runs of the program and of what it has started."""
    file = directory / "pids"
    pids = [int(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [pid for pid in pids if _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@asynccontextmanager
async def coding(main: Script, directory: Path, file: Path | None = None, **more: Any) -> AsyncIterator[Talk]:
    async with talking(main, note, config=file or config(directory), **more) as talk:
        yield talk
        assert processes(directory) == []


async def once(directory: Path, *given: list[Any]) -> str:
    """What a single call is answered."""
    main = Script([called("c1", "coder", prompt=steps(*given))], "Done.")
    async with coding(main, directory) as talk:
        assert (await talk.prompt()).text == "Done."
    (result,) = main.results()
    return result


# What it says


async def test_G2_spawn_fetch_apply_await(tmp_path: Path) -> None:
    go, further = tmp_path / "go", [["say", "Second."]]

    def proceed(_: Any) -> Any:
        go.touch()
        return [called("c4", "await", all=["h"])]

    main = Script(
        [
            spawned(
                "c1",
                "coder",
                "h",
                prompt=steps(["say", "I begin."], ["tool", "look"], ["plan", 1, 3], ["until", "go"], ["say", "First."]),
            )
        ],
        [("c2", "coder", {"action": "fetch", "id": "h"})],
        [("c3", "coder", {"action": "apply", "id": "h", "input": further})],  # JSON comes as such
        proceed,
        "Done.",
    )
    async with coding(main, tmp_path) as talk:
        await talk.prompt()
        handle = await talk.rt.handle("h", conversation="main")
    shown = json.loads(main.results(1)[0])["content"] + json.loads(main.results(2)[0]).get("content", "")
    assert shown == "I begin.\n→ look\n"
    assert handle.progress is not None and (handle.progress.done, handle.progress.total) == (1, 3)
    assert json.loads(main.results(3)[0])["state"] == "running"
    assert completed(main.results(4)[0]) == {"h": "Second."}


@pytest.mark.parametrize(
    ("given", "result"),
    [
        ([["say", "The answer "], ["say", "is 42."], ["tool", "note"]], "The answer is 42."),
        ([["say", "Let me see."], ["tool", "look"], ["say", "It is 42."], ["tool", "note"]], "It is 42."),
        ([["tool", "look"]], "(no output)"),  # providers refuse empty texts
        ([["say", "It is"], ["end", "max_tokens"]], "It is"),
    ],
)
async def test_G2_the_result_is_what_it_said_last(tmp_path: Path, given: list[Any], result: str) -> None:
    assert await once(tmp_path, *given) == result


@pytest.mark.parametrize("reason", ["refusal", "max_turn_requests", "cancelled"])
async def test_G2_one_that_did_not_finish_says_what_it_had_said(tmp_path: Path, reason: str) -> None:
    result = await once(tmp_path, ["say", "Half."], ["end", reason])
    assert f"did not finish: {reason}" in result and "Half." in result


async def test_G2_an_agent_that_dies(tmp_path: Path) -> None:
    result = await once(tmp_path, ["say", "Half."], ["start"], ["die"])
    assert "Agent `coder` failed" in result
    assert "exit code 7" in result and "out of cheese" in result


async def test_G2_a_program_that_is_no_agent_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subagent, "START_SECS", 0.2)
    file = config(tmp_path, command=["sleep", "60"])
    main = Script([called("c1", "coder", prompt="x")], "Done.")
    async with coding(main, tmp_path, file) as talk:
        await talk.prompt()
    assert "did not shake hands within 0.2 s" in main.results()[0]


async def test_G2_an_agent_that_cannot_be_started(tmp_path: Path) -> None:
    main = Script([called("c1", "coder", prompt="Go.")], "Done.")
    async with coding(main, tmp_path, config(tmp_path, command=["no-such-agent", "--fast"])) as talk:
        assert (await talk.prompt()).text == "Done."
    assert "`no-such-agent --fast` could not be started" in main.results()[0]


# What it wants permitted


def asking(way: str, **more: Any) -> Script:
    return starting(way, "coder", prompt=steps(["ask", OPTIONS]), **more)


@pytest.mark.parametrize(
    ("way", "said", "answered"), [("call", "Reject", REJECTED), *((way, "Allow", ALLOWED) for way in WAYS)]
)
async def test_Q4_the_person_permits(tmp_path: Path, way: str, said: str, answered: str) -> None:
    main, person = asking(way), Person(Answer(said))
    async with coding(main, tmp_path, prompter=person) as talk:
        await talk.prompt()
    (prompt,) = person.seen
    assert isinstance(prompt, AskQuestion)
    assert prompt.question.text == "May it run: rm -rf /?"
    assert prompt.question.answer_type == {"Select": {"options": ["Allow", "Reject"]}}
    assert answered in answers(main).replace("\\", "")


@pytest.mark.parametrize(("way", "detached"), [("call", "deny"), *((way, "auto") for way in WAYS)])
async def test_Q4_where_nobody_is_there_it_is_rejected_and_no_model_is_asked(
    tmp_path: Path, way: str, detached: str
) -> None:
    main = asking(way, answers=lambda _: {"answer": "Allow"})
    file = config(tmp_path, conversation=f'[conversation]\ndetached = "{detached}"')
    async with coding(main, tmp_path, file) as talk:
        await talk.prompt()
    assert REJECTED in answers(main).replace("\\", "")
    assert main.asked == []


async def test_Q4_no_model_answers_by_apply(tmp_path: Path) -> None:
    person = Person()
    apply = ("c2", "coder", {"action": "apply", "id": "h", "input": "Allow"})
    left: list[Any] = [[apply], [called("c3", "await", all=["h"])], "Done."]

    def step(messages: Any) -> Any:
        """Look until it has asked: a program may take a while to start."""
        if len(left) == 3 and '"waiting"' not in str(messages[-1]):
            return [called(f"f{len(messages)}", "handle_fetch", id="h")]
        return left.pop(0)

    main = Script([spawned("c1", "coder", "h", prompt=steps(["ask", OPTIONS]))], *[step] * 200)
    async with coding(main, tmp_path, prompter=person) as talk:
        running = asyncio.create_task(talk.prompt())
        await until(lambda: len(left) == 1)
        await person.says(Answer("Reject"))
        await running
    assert "person" in main.results(-2)[0]
    assert REJECTED in main.results(-1)[0].replace("\\", "")


async def test_Q4_options_of_one_name_are_told_apart(tmp_path: Path) -> None:
    kinds = ("allow_once", "allow_always", "reject_once")
    options = [{"optionId": kind, "name": "No" if "reject" in kind else "Yes", "kind": kind} for kind in kinds]
    for said, chosen in (("Yes", "allow_once"), ("Yes (allow_always)", "allow_always"), ("No", "reject_once")):
        main, person = Script([called("c1", "coder", prompt=steps(["ask", options]))], "Done."), Person(Answer(said))
        async with coding(main, tmp_path, prompter=person) as talk:
            await talk.prompt()
        (prompt,) = person.seen
        assert isinstance(prompt, AskQuestion)
        assert prompt.question.answer_type == {"Select": {"options": ["Yes", "Yes (allow_always)", "No"]}}
        assert f'"optionId": "{chosen}"' in main.results()[0]


# Its end


@pytest.mark.parametrize("way", ["abort", "cancel", "close", "timeout"])
async def test_G2_no_process_of_it_is_left(tmp_path: Path, way: str) -> None:
    """Neither the program nor what it has started, in a session of its own; one of them does not go by itself."""
    busy = steps(["start"], ["say", "Busy."], ["hang"] if way == "abort" else ["until", "never"])
    main = Script(
        [spawned("c1", "coder", "h", prompt=busy)],
        [("c2", "coder", {"action": "abort", "id": "h"})] if way == "abort" else [called("c2", "await", all=["h"])],
        "Done.",
    )
    file = config(tmp_path, more="timeout_secs = 0.5" if way == "timeout" else "")
    async with talking(main, note, config=file) as talk:
        running = asyncio.create_task(talk.prompt())
        await until(lambda: len(processes(tmp_path)) == 2 or running.done())
        await until(lambda: len(main.read) == 2)
        if way == "cancel":
            talk.conversation.cancel()
        if way == "close":
            await talk.rt.close()
        await asyncio.wait([running])
        await until(lambda: way == "close" or not talk.rt.live())
        assert processes(tmp_path) == []
    running.exception()


def test_R2_killed_with_sigkill_none_is_left(tmp_path: Path) -> None:
    busy = steps(["start"], ["until", "never"])
    with turn(config(tmp_path).read_text(), tmp_path) as process:
        process.begin(("coder", {"prompt": busy}))
        eventually(lambda: len(processes(tmp_path)) == 2)
        process.process.send_signal(signal.SIGKILL)
        process.process.wait()
        eventually(lambda: not process.survivors(), what=lambda: str(process.survivors()))
    assert processes(tmp_path) == []
