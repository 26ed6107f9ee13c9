"""`keephold send`: a person sends something to a handle that another process runs (C6, Q4, L)."""

import asyncio
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.e2e.agent import Agent
from tests.e2e.driver import until
from tests.e2e.place import ran
from tests.patience import PATIENCE

import keephold
from keephold.turn.prompts import Decision, Prompt


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with Agent(tmp_path) as agent:
        yield agent


def test_C6_a_text_is_sent_and_the_handles_state_is_shown(agent: Agent) -> None:
    agent.spawn("talk", "t")
    said = agent.keephold("send", "t", "Ada")
    assert (said.code, said.out, said.err) == (0, "t: running\nyou said Ada\n", "")


def test_C6_a_text_may_come_from_stdin_and_json_is_for_scripts(agent: Agent) -> None:
    agent.spawn("talk", "t")
    said = agent.keephold("send", "t", "-", "--json", stdin="bye")
    assert (said.code, said.json) == (0, {"id": "t", "state": "stopped", "result": "it was nice"})


def test_C6_the_input_of_a_tool_is_closed(agent: Agent) -> None:
    agent.spawn("talk", "t")
    assert agent.keephold("send", "t", "--close") == (0, "t: stopped\nno goodbye?\n", "")
    again = agent.keephold("send", "t", "--close")
    assert (again.code, again.out) == (1, "") and "`t` is stopped" in again.err


def test_C6_closing_the_input_answers_no_question(agent: Agent) -> None:
    agent.spawn("choose", "c")
    agent.spawn("log_in", "l")
    for id in ("c", "l"):
        refused = agent.keephold("send", id, "--close")
        assert (refused.code, refused.out) == (1, "")
    assert [row[2] for row in agent.keephold("ps").rows] == ["waiting", "waiting"]


def test_C6_the_end_of_input_is_typed_at_a_terminal(agent: Agent) -> None:
    agent.spawn("shell", "sh")
    assert agent.keephold("send", "sh", "--close").code == 0
    assert agent.keephold("wait", "sh").code == 0


def test_Q4_a_question_for_a_person_is_answered_by_number(agent: Agent) -> None:
    agent.spawn("choose", "c")
    assert agent.apply("choose", "c", "red")[1] == "question_exclusive"
    refused = agent.keephold("send", "c", "3")
    assert (refused.code, refused.out) == (1, "")
    assert '"red", "green"' in refused.err
    assert agent.keephold("send", "c", "2").out == "c: stopped\npainted green\n"


def test_Q4_what_may_be_answered_is_shown(agent: Agent) -> None:
    agent.spawn("choose", "c")
    agent.spawn("log_in", "l")
    lines = agent.keephold("show", "c").out.splitlines()
    asked = next(at for at, line in enumerate(lines) if line.startswith("  question "))
    assert [line.split() for line in lines[asked + 1 : asked + 3]] == [["answer", "1:", "red"], ["2:", "green"]]
    assert "  answer        a secret: keephold send --password" in agent.keephold("show", "l").out.splitlines()


def test_Q4_a_form_is_listed_with_its_fields_and_answered_by_its_handle_or_its_request(agent: Agent) -> None:
    fields = ['size: one of "small", "large" (Which size?)', "count: whole number, at least 1, optional"]
    pool = ThreadPoolExecutor(1)  # not `with`: if this test fails, the call returns when the agent is killed
    for answers_request in (False, True):
        answer = pool.submit(agent.run, ("order", {}))
        until(lambda: agent.keephold("requests").out)
        head, place, *body = agent.keephold("requests").out.splitlines()
        request, handle = head.split()[0], place.split()[1].rstrip(",")
        assert handle.startswith("call:")
        assert [line.strip() for line in body] == ["Your order?", "a JSON object with these fields", *fields]
        shown = [line.strip() for line in agent.keephold("show", handle).out.splitlines()]
        assert set(fields) <= set(shown)
        id = request if answers_request else handle
        refused = agent.keephold("send", id, "yes")
        assert (refused.code, refused.err.count("an object with the fields")) == (1, 1)
        assert agent.keephold("send", id, '{"size": "large"}').code == 0
        assert answer.result(PATIENCE) == [('{"size": "large"}', None)]
    gone = agent.keephold("send", request, "yes")
    assert (gone.code, gone.out) == (2, "") and f"`{request}`" in gone.err


def test_K5_a_secret_is_read_and_not_given_as_an_argument(agent: Agent) -> None:
    agent.spawn("log_in", "l")
    refused = agent.keephold("send", "l", "open-sesame")
    assert refused.code == 1
    assert "--password" in refused.err
    said = agent.keephold("send", "l", "--password", stdin="open-sesame\n")
    assert (said.code, said.out) == (0, "l: stopped\n11 characters\n")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["t"], "nothing to send"),
        (["t", "text", "--password"], "leave TEXT out"),
        (["t", "text", "--close"], "--close sends nothing else"),
        (["t", "--close", "--key", "ENTER"], "--close sends nothing else"),
        (["t", "--close", "--password"], "--close sends nothing else"),
        (["nobody", "text"], "`nobody` not found"),
    ],
)
def test_L3_wrong_usage_has_exit_code_2(agent: Agent, arguments: list[str], why: str) -> None:
    agent.spawn("talk", "t")
    said = agent.keephold("send", *arguments)
    assert said.code == 2
    assert why in said.err


def test_L3_what_a_handle_does_not_take_has_exit_code_1(agent: Agent) -> None:
    agent.spawn("talk", "t")
    keys = agent.keephold("send", "t", "--key", "ENTER")
    assert keys.code == 1
    assert "takes no keys" in keys.err
    agent.keephold("send", "t", "bye")
    stopped = agent.keephold("send", "t", "more")
    assert stopped.code == 1
    assert "`t` is stopped" in stopped.err


def test_a_handle_whose_process_is_gone_takes_nothing(agent: Agent) -> None:
    agent.spawn("talk", "t")
    agent.kill()
    said = agent.keephold("send", "t", "Ada")
    assert said.code == 1
    assert "is gone" in said.err


def test_what_a_person_sends_is_for_the_assistant_to_see(agent: Agent) -> None:
    agent.spawn("talk", "t")
    agent.keephold("send", "t", "Ada")
    ((shown, _),) = agent.run(("talk", {"action": "fetch", "id": "t"}))
    assert json.loads(shown)["content"] == "you said Ada\n"


def test_C6_keys_are_sent_to_a_terminal(agent: Agent) -> None:
    agent.spawn("shell", "sh")
    agent.keephold("send", "sh", "echo sent: $((5 * 5))")
    said = agent.keephold("send", "sh", "--key", "ENTER")
    assert (said.code, said.err) == (0, "")
    assert "sent: 25" in said.out
    wrong = agent.keephold("send", "sh", "--key", "ENTRE")
    assert wrong.code == 1
    assert "ENTER" in wrong.err


def test_K5_a_password_is_given_to_the_program_that_reads_it_and_is_not_seen(agent: Agent) -> None:
    agent.spawn("shell", "sh")
    agent.apply("shell", "sh", "read -s word; echo ${#word} characters\r")
    until(lambda: agent.fetch("shell", "sh").get("question", {}).get("secret"))
    assert agent.keephold("send", "sh", "open-sesame").code == 1
    said = agent.keephold("send", "sh", "--password", stdin="open-sesame\n")
    assert (said.code, said.err) == (0, "")
    assert "11 characters" in said.out
    assert "open-sesame" not in agent.keephold("logs", "sh", "--raw").out


async def test_P_input_for_a_call_that_waits_for_permission_is_refused_with_what_to_do(tmp_path: Path) -> None:
    @keephold.tool(actions=("spawn", "apply"), run="ask")
    async def deploy(call: keephold.Call) -> str:
        """Deploy what it is told."""
        return str(await call.input())

    asked = asyncio.Event()

    async def silent(prompt: Prompt) -> Decision:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    store = f"sqlite:///{tmp_path}/work.db"
    call = keephold.ToolCall("1", "deploy", {"action": "spawn", "id": "d"})
    async with keephold.Runtime([deploy], store=store, prompter=silent) as rt, rt.turn("main") as turn:
        calling = asyncio.ensure_future(turn.run([call]))
        await asked.wait()
        async with asyncio.timeout(PATIENCE):
            look = ("requests", "--json", "--store", store)
            while not (listed := await asyncio.to_thread(ran, look, tmp_path, os.environ)).out:
                pass
        refused = await asyncio.to_thread(ran, ("send", "d", "hello", "--store", store), tmp_path, os.environ)
        turn.cancel()
        await asyncio.gather(calling, return_exceptions=True)
    assert refused.code == 1 and f"`keephold allow {listed.json['id']}` starts it" in refused.err
