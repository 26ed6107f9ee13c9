"""A conversation whose process is killed goes on in the next one (G1, G2, B9, R): real processes, SIGKILL.

Whatever moment it dies at: in the end every call has exactly one result, the history is one that providers take, no
message of the user is lost or said twice, and nothing with side effects was done twice that its tool does not allow.
"""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolReturnPart, UserPromptPart
from tests.agent.mortal import NEWS, SCENES, effects
from tests.agent.scripted import problems
from tests.soak import SOAK

_ROOT = Path(__file__).parents[2]
_MESSAGE: TypeAdapter[ModelMessage] = TypeAdapter(ModelMessage)


class Nursery:
    """The process that forks those that are killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.agent.mortal"],
            cwd=_ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, request: dict[str, Any]) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@dataclass
class Life:
    """One store, and the runs on it."""

    nursery: Nursery
    directory: Path
    scene: str

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True)

    def run(self, *, kill: str | None = None, moment: str | None = None) -> int:
        code = self.nursery.run({"directory": str(self.directory), "scene": self.scene, "kill": kill, "moment": moment})
        assert code in (0, -signal.SIGKILL), f"exit {code}\n{self}"
        return code

    def finish(self) -> dict[str, Any]:
        """Undisturbed to the end; then all must be well."""
        assert self.run() == 0
        report: dict[str, Any] = json.loads((self.directory / "report").read_text())
        wrong = [*report["invalid"], *report["open"], *report["live"], *self._wrong(report)]
        assert not wrong, f"{wrong}\n{self}"
        return report

    def _wrong(self, report: dict[str, Any]) -> Iterator[str]:
        said = Counter(text for messages in self.messages(report).values() for text in user_texts(messages))
        for prompt in {*SCENES[self.scene], *(text for text in said if text.startswith("prompt "))}:
            if said[prompt] != 1:
                yield f"{prompt} is there {said[prompt]} times"
        for news in NEWS if self.scene == "news" else ():
            if not any(news in text for text in said):
                yield f"{news} is lost"
        for id, messages in self.messages(report).items():
            whole = messages if isinstance(messages[-1], ModelRequest) else messages[:-1]
            yield from (f"{id}: {problem}" for problem in problems(merged(whole)))
            if isinstance(messages[-1], ModelResponse) and messages[-1].tool_calls:
                yield f"{id} ends with calls that nobody answered"
        for effect, times in Counter(effects(self.directory)).items():
            if times > 1 and not effect.startswith("step"):
                yield f"{effect} was done {times} times"
            if times > 2:  # a kill between a step and its record (E4)
                yield f"{effect} was done {times} times"

    def messages(self, report: dict[str, Any]) -> dict[str, list[ModelMessage]]:
        """What was said in each conversation."""
        return {
            id: [_MESSAGE.validate_python(body) for kind, body in lines if kind in ("request", "response")]
            for id, lines in report["lines"].items()
        }

    def __str__(self) -> str:
        errors = self.directory / "stderr"
        said = errors.read_text()[-4000:] if errors.exists() else ""
        report = self.directory / "report"
        return "\n".join([self.scene, *effects(self.directory), report.read_text() if report.exists() else "", said])


def user_texts(messages: list[ModelMessage]) -> list[str]:
    return [
        str(part.content)
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]


def merged(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Requests that follow one another as one, as the transcript gives them to a model."""
    whole: list[ModelMessage] = []
    for message in messages:
        last = whole[-1] if whole else None
        if isinstance(message, ModelRequest) and isinstance(last, ModelRequest):
            parts = sorted([*last.parts, *message.parts], key=lambda part: not isinstance(part, ToolReturnPart))
            whole[-1] = ModelRequest(parts)
        else:
            whole.append(message)
    return whole


def results(messages: list[ModelMessage]) -> dict[str, ToolReturnPart]:
    """By the id of the call."""
    return {
        part.tool_call_id: part
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    }


def answered(conversations: dict[str, list[ModelMessage]]) -> list[ToolReturnPart]:
    """What the calls of all conversations were answered, in order."""
    return [
        part
        for _, messages in sorted(conversations.items())
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


def differs(answer: ToolReturnPart, wanted: ToolReturnPart) -> bool:
    """Whether that is neither what an undisturbed run was told, nor what a crash makes of it."""
    if answer.tool_call_id != wanted.tool_call_id:
        return True
    crashed = answer.tool_name in ("note", "later") and "ended before the call did" in str(answer.content)
    started = answer.tool_call_id == "c5" or str(wanted.content).startswith('{"id":"h"')  # sooner or later
    return not crashed and not started and answer.content != wanted.content


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scene", ["whole", "news", "same ids", "agent", "spawned agent", "failing agent"])
def test_R4_killed_at_every_commit(nursery: Nursery, tmp_path: Path, scene: str) -> None:
    """Before one is written, after the next: to the store that is nearly the same. One in five, or all in a soak."""
    rehearsal, died = Life(nursery, tmp_path / "rehearsal", scene).finish(), 0
    numbers = range(1, rehearsal["commits"] + 1, 1 if SOAK else 5)  # odd and even ones in turn
    for number in numbers:
        life, side = Life(nursery, tmp_path / str(number), scene), ("before", "after")[number % 2]
        died += life.run(kill=f"{side}:{number}") != 0
        if number % 3 == 1:
            life.run(kill=f"after:{1 + number % 5}")
        found, wanted = answered(life.messages(life.finish())), answered(life.messages(rehearsal))
        wrong = [each for each in zip(found, wanted, strict=True) if differs(*each)]
        assert not wrong, f"{side}:{number}: {wrong}\n{life}"
    assert died > len(numbers) * 2 // 3  # several commits may go into one transaction now and then


@pytest.mark.parametrize("tool", ["slow", "patient"])
def test_B9_killed_in_a_batch_of_four(nursery: Nursery, tmp_path: Path, tool: str) -> None:
    life = Life(nursery, tmp_path / "life", f"batch of a {tool}")
    assert life.run(moment="in a batch") == -signal.SIGKILL
    before = effects(life.directory)
    assert {"note a", "note b"} < set(before) and "later c" not in before  # two finished, one started, one did not
    report = life.finish()
    found = results(life.messages(report)["main"])
    assert [found[id].content for id in ("c1", "c2", "c4")] == ["noted a", "noted b", "done later c"]
    if tool == "slow":
        assert "ended before the call did" in str(found["c3"].content) and found["c3"].outcome == "failed"
    else:
        assert found["c3"].content == "slow is done"
    assert report["answers"] == [["Done.", "end_turn", None]]


@pytest.mark.parametrize("moment", ["after 'First '", "after 'words.'", "after 'One '", "after a batch"])
def test_G1_killed_in_a_stream(nursery: Nursery, tmp_path: Path, moment: str) -> None:
    life = Life(nursery, tmp_path / "life", "whole")
    assert life.run(moment=moment) == -signal.SIGKILL
    report = life.finish()
    assert [answer[1:] for answer in report["answers"]] == [["end_turn", None], ["end_turn", None]]
    assert report["answers"][1][0] == "Two is done."


def test_Q6_killed_in_a_question(nursery: Nursery, tmp_path: Path) -> None:
    life = Life(nursery, tmp_path / "life", "question")
    assert life.run(moment="in a question") == -signal.SIGKILL
    found = results(life.messages(life.finish())["main"])
    assert [found[id].content for id in ("c1", "c2")] == ["asked: True", "noted a"]


def test_T2_killed_at_the_end_of_a_turn(nursery: Nursery, tmp_path: Path) -> None:
    life = Life(nursery, tmp_path / "life", "end")
    assert life.run(moment="in the end") == -signal.SIGKILL
    report = life.finish()
    ((text, stop, _),) = report["answers"]
    assert (stop, text) in (("end_turn", "Really done."), ("end_turn", "Done."))
    assert "work is done" in json.dumps(report["lines"]) or text == "Done."


def test_G2_killed_in_a_batch_of_a_sub_agent(nursery: Nursery, tmp_path: Path) -> None:
    life = Life(nursery, tmp_path / "life", "agent in a batch")
    assert life.run(moment="in a batch") == -signal.SIGKILL
    assert "later c" not in effects(life.directory)
    report = life.finish()
    assert results(life.messages(report)["main"])["c1"].content == "Helped."
    (helper,) = (id for id in report["lines"] if id != "main")
    found = results(life.messages(report)[helper])
    wanted = ["noted a", "noted b", "slow is done", "done later c"]
    assert [found[id].content for id in ("c1", "c2", "c3", "c4")] == wanted
