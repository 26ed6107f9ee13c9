"""Passwords that programs ask for in their terminals: a person types them, and nobody else ever sees them (Q4, K5)."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.terminals import Assistant, at_work, python, quick, shell
from tests.patience import PATIENCE
from tests.turn.people import Person

from keephold import Tool, terminal
from keephold.turn.prompts import Answer, AskQuestion, Dismissed

SECRET = "correct-horse-7731"
TYPED = "read -s -p 'Vault password: ' word; echo; "
ANSWERED = 'echo "it has ${#word} characters: $word"\n'
"""What bash says of it: everything."""
SUDO = """
import getpass
for attempt in range(3):
    if getpass.getpass("[sudo] password for me: ") == sys.argv[1]:
        print("welcome")
        break
    print("Sorry, try again.")
else:
    sys.exit("3 incorrect password attempts")
"""


def sudo(name: str = "sudo") -> Tool:
    """Asks at the terminal, though its input is none, as `sudo` and `ssh` do."""
    script = [sys.executable, "-I", "-c", "import sys\n" + SUDO, SECRET]
    return terminal(["sh", "-c", 'exec "$@" < /dev/null', "sh", *script], name=name)


def question(text: str) -> dict[str, object]:
    return {"id": "password", "text": text, "answer_type": "Text", "secret": True}


def everything(directory: Path) -> bytes:
    """The content of all files below a directory, and of those this process has open, removed or not."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    files += [path for path in Path("/proc/self/fd").iterdir() if path.is_file()]
    return b"".join(path.read_bytes() for path in files)


def recorded(store: str, *arguments: str) -> bytes:
    """What a command tells of what the store has."""
    command = [sys.executable, "-m", "keephold", *arguments, "--store", store]
    return subprocess.check_output(command, timeout=PATIENCE)


async def test_Q4_a_password_is_a_question_that_only_a_person_answers() -> None:
    person = Person()
    async with at_work(quick(shell()), prompter=person) as assistant:
        session = await assistant.spawn("shell")
        await session.apply(TYPED + ANSWERED)
        assert (await session.waits())["question"] == question("Vault password:")
        assert session.said["state"] == "waiting"
        assert session.new.endswith("Vault password: ")

        refused = await assistant.refused("shell", action="apply", id="shell", input="a guess")
        assert refused.code == "question_exclusive"
        assert refused.result.startswith(
            "Only a person may answer question `password` of handle `shell`; it stays open"
        )
        again = await session.fetch()
        assert (again["state"], again["question"]) == ("waiting", question("Vault password:"))
        prompt = await person.sees()
        assert isinstance(prompt, AskQuestion)
        assert (prompt.tool, prompt.id) == ("shell", "shell")
        assert (prompt.question.text, prompt.question.secret) == ("Vault password:", True)

        await person.says(Answer(SECRET))
        assert (await session.reads("********\n$ ")).endswith("it has 18 characters: ********\n$ ")
        assert len(person.seen) == 1, "the guess was not typed either"


async def test_Q4_an_interrupt_answers_nothing_and_backs_out() -> None:
    person = Person()
    async with at_work(quick(shell()), prompter=person) as assistant:
        session = await assistant.spawn("shell")
        await session.apply(TYPED + ANSWERED)
        await person.sees()
        await session.apply(keys=["C-c"])
        await session.reads("$ ")
        await person.sees_nothing()
        await session.apply(ANSWERED)
        assert (await session.reads("$ ")).endswith("it has 0 characters: \n$ ")


async def test_K5_what_a_person_typed_is_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = f"sqlite:///{tmp_path}/work.db"
    repeats = 'for i in $(seq 60000); do echo "line $i: $word"; done\n'  # more than is kept in memory
    person = Person(Answer(SECRET))
    async with at_work(quick(shell()), store=store, prompter=person) as assistant:
        session = await assistant.spawn("shell")
        await session.reads("$ ")
        await session.apply(TYPED + repeats)
        await session.reads("line 60000: ********\n$ ")
        await session.apply('exit "${#word}"\n')
        ended = await session.stops()
        assert ended["result"].startswith("The command ended with exit code 18.")
        assert (await session.output(pattern="line 60000:"))["matches"][0]["line"] == "line 60000: ********"
        kept = everything(tmp_path)
        assert b"Vault password:" in kept and b"line 60000: ********" in kept, "this looks where it would be"
        assert (tmp_path / "work.db-wal").stat().st_size > 0
        assert SECRET.encode() not in kept
        for arguments in (("logs", "shell", "--cast", "-"), ("logs", "shell", "--raw"), ("show", "shell", "--json")):
            told = recorded(store, *arguments)
            assert b"shell" in told or b"line 60000: ********" in told
            assert SECRET.encode() not in told
    assert SECRET.encode() not in everything(tmp_path)
    assert not [text for text in assistant.heard if SECRET in text]
    assert SECRET not in caplog.text
    assert SECRET not in str(os.environ)


async def test_Q4_a_password_that_nobody_has_noticed_is_not_typed_by_a_model(tmp_path: Path) -> None:
    """The prompt comes when no reply is settling any more: `sudo` after a long command, say."""
    person = Person()
    async with at_work(shell(cwd=str(tmp_path)), prompter=person) as assistant:
        session = await assistant.spawn("shell")
        await session.reads("$ ")
        await session.apply("until [ -e done ]; do sleep 0.01; done; " + TYPED + ANSWERED)
        (tmp_path / "done").touch()
        await session.reads("Vault password: ")
        refused = await assistant.refused("shell", action="apply", id="shell", input="a guess\n")
        assert refused.code == "question_exclusive"
        await person.says(Answer(SECRET))
        assert (await session.reads("********\n$ ")).endswith("it has 18 characters: ********\n$ ")


async def test_Q4_a_program_that_asks_at_its_terminal_is_answered_there() -> None:
    person = Person(Answer("wrong-battery-1"), Answer(SECRET))
    async with at_work(sudo(), prompter=person) as assistant:
        session = await assistant.spawn("sudo")
        await session.stops()
        prompt = "[sudo] password for me: "
        assert session.text == f"{prompt}\nSorry, try again.\n{prompt}\nwelcome\n"
        texts = [prompt.question.text for prompt in person.seen if isinstance(prompt, AskQuestion)]
        assert texts == ["[sudo] password for me:"] * 2
        assert not [text for text in assistant.heard if SECRET in text or "battery" in text]


async def test_C8_a_one_shot_call_asks_the_person_as_well() -> None:
    person = Person(Answer(SECRET))
    async with at_work(sudo(), prompter=person) as assistant:
        (response,) = await assistant.batch(("sudo", {}))
        assert (response.is_error, response.result) == (False, "[sudo] password for me: \nwelcome\n")


async def test_Q2_without_a_person_it_is_an_error_that_says_so() -> None:
    why = 'The tool asked "[sudo] password for me:" (`password`), but only a person may type a secret and none is there'
    async with at_work(sudo()) as assistant:
        session = await assistant.spawn("sudo")
        assert (session.said["state"], session.said["is_error"]) == ("stopped", True)
        assert session.said["result"].startswith(why)
        assert await ended_by(assistant, "sudo") == ("question_unanswered", "self")
        response = await assistant.refused("sudo")
        assert response.code == "question_unanswered"
        assert response.result.startswith(why)


async def test_Q7_a_person_who_does_not_want_to_ends_the_program() -> None:
    async with at_work(sudo(), prompter=Person(Dismissed())) as assistant:
        session = await assistant.spawn("sudo")
        await session.stops()
        assert session.said["is_error"] is True
        assert "the person cancelled the prompt" in session.said["result"]
        assert await ended_by(assistant, "sudo") == ("input_cancelled", "self")


async def test_A6_an_await_waits_for_the_person() -> None:
    """The caller can do nothing about it, so the wait goes on: until the timeout, or until the person has typed."""
    person = Person()
    async with at_work(sudo(), prompter=person) as assistant:
        await assistant.spawn("sudo")
        await person.sees()
        waited = await assistant.call("await", all=["sudo"], timeout_secs=1)
        assert waited == {"completed": [], "pending": [{"id": "sudo", "state": "waiting"}], "timed_out": True}
        await person.says(Answer(SECRET))
        (completed,) = (await assistant.call("await", all=["sudo"]))["completed"]
        assert completed["result"].endswith("welcome\n")


async def test_Q4_what_is_typed_without_echo_but_key_by_key_is_no_password() -> None:
    """Full-screen programs switch the echo off as well; they are the assistant's to drive."""
    keys = "import tty; tty.setraw(0); os.write(1, b'key? '); key = os.read(0, 1); os.write(1, b'it was ' + key)"
    async with at_work(python(keys), prompter=Person()) as assistant:
        session = await assistant.spawn("program")
        await session.reads("key? ")
        await session.apply(keys=["x"])
        assert (await session.stops())["state"] == "stopped"
        assert session.text == "key? it was x"


async def ended_by(assistant: Assistant, id: str) -> tuple[object, object]:
    info = await assistant.runtime.handle(id, conversation="main")
    assert info is not None
    return getattr(info.outcome, "code", None), info.ended_by
