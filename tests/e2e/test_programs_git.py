"""`git add --patch` on a real repository, hunk by hunk: what the whole protocol was asked for with (C3–C6)."""

import re
import subprocess
from pathlib import Path

import pytest
from tests.e2e.driver import Start
from tests.e2e.terminals import Said, at_work, patient
from tests.patience import PATIENCE
from tests.programs import needs

from keephold import terminal

QUESTION = re.compile(r"\((\d)/3\) Stage this hunk \[y,n,.*\?\]\? \Z")
CHANGES = {2: "two", 30: "thirty", 58: "fifty-eight"}
ENVIRONMENT = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C.UTF-8"}
"""Git with nobody's settings: it shows its hunks in colour, as it does to most people."""

CONFIG = f"""
[conversation.tools.git]
source = "terminal"
command = ["git", "add", "--patch", "{{{{ tool.arguments.path }}}}"]
parameters.path = {{ type = "string", required = true }}
run = "unattended"
cwd = "repository"
env = {{ {", ".join(f'{name} = "{value}"' for name, value in ENVIRONMENT.items())} }}
spawn = {{ input = "line", settle_ms = 60000, settle_max_ms = 60000 }}
"""


@pytest.fixture(scope="module", autouse=True)
def _programs() -> None:
    needs("git")


class Repository:
    """A file of sixty numbered lines, three of them changed, far apart."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.git("init", "--quiet")
        lines = [f"{number}\n" for number in range(1, 61)]
        (path / "numbers.txt").write_text("".join(lines))
        self.git("add", "numbers.txt")
        for number, word in CHANGES.items():
            lines[number - 1] = f"{word}\n"
        (path / "numbers.txt").write_text("".join(lines))

    def git(self, *arguments: str) -> str:
        return subprocess.check_output(["git", *arguments], cwd=self.path, text=True, timeout=PATIENCE)

    @property
    def staged(self) -> dict[int, str]:
        """The lines that are changed in the index, by their number."""
        lines = self.git("show", ":numbers.txt").splitlines()
        return {number: line for number, line in enumerate(lines, 1) if line != str(number)}

    @property
    def unstaged(self) -> list[str]:
        return re.findall(r"^\+(\w\S*)$", self.git("diff"), re.MULTILINE)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def check_hunk(said: Said, number: int, answer: str = "") -> None:
    """The reply shows this hunk and asks about it, behind the echo of the answer to the one before."""
    line = list(CHANGES)[number - 1]
    assert said.keys() == {"id", "state", "content", "yielded_because"}
    assert (said["id"], said["state"], said["yielded_because"]) == ("h_1", "running", "waiting_for_input")
    content = said["content"]
    assert content.startswith(f"{answer}\n@@ " if answer else "diff --git a/numbers.txt b/numbers.txt\n")
    hunk = f" {line - 1}\n-{line}\n+{CHANGES[line]}\n {line + 1}\n"
    assert hunk in content
    assert content.count("@@ -") == 1, "one hunk at a time"
    question = QUESTION.search(content)
    assert question and int(question[1]) == number, content[-100:]
    assert content.index(hunk) < question.start()


async def test_C3_three_hunks_are_staged_from_python(repository: Repository) -> None:
    git = terminal(
        ["git", "add", "--patch", "{{ tool.arguments.path }}"],
        parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        input="line",
        env=ENVIRONMENT,
        cwd=str(repository.path),
    )
    async with at_work(patient(git)) as assistant:
        session = await assistant.spawn("git", id="h_1", path="numbers.txt")
        check_hunk(session.said, 1)
        assert await session.fetch() == {"id": "h_1", "state": "running", "yielded_because": "waiting_for_input"}
        check_hunk(await session.apply("y"), 2, "y")
        check_hunk(await session.apply("n"), 3, "n")
        stopped = await session.apply("y")
        result = stopped.pop("result")
        assert stopped == {"id": "h_1", "state": "stopped", "yielded_because": "exited"}
        assert result.split() == ["y"], "nothing but the echo: git says no more"
        assert repository.staged == {2: "two", 58: "fifty-eight"}
        assert repository.unstaged == ["thirty"]


def test_C3_three_hunks_are_staged_by_json_lines(start: Start, repository: Repository) -> None:
    turn = start(CONFIG)
    check_hunk(turn.one("git", {"action": "spawn", "id": "h_1", "path": "numbers.txt"}).json, 1)
    fetched = turn.one("git", {"action": "fetch", "id": "h_1"}).json
    assert fetched == {"id": "h_1", "state": "running", "yielded_because": "waiting_for_input"}
    check_hunk(turn.one("git", {"action": "apply", "id": "h_1", "input": "y"}).json, 2, "y")
    check_hunk(turn.one("git", {"action": "apply", "id": "h_1", "input": "n"}).json, 3, "n")
    last, waited = turn.run(
        ("git", {"action": "apply", "id": "h_1", "input": "y"}),
        ("await", {"all": ["h_1"]}),
    )
    assert (last.json["state"], last.json["yielded_because"]) == ("stopped", "exited")
    (completed,) = waited.json["completed"]
    assert (completed["id"], completed["state"], "is_error" in completed) == ("h_1", "stopped", False)
    assert turn.finish() == []
    assert repository.staged == {2: "two", 58: "fifty-eight"}


async def test_C4_with_the_usual_patience_nothing_is_lost_however_replies_fall(repository: Repository) -> None:
    """A slow machine makes a pause in the middle of a hunk: then the reply comes, and the next one goes on there."""
    git = terminal(["git", "add", "--patch"], name="git", env=ENVIRONMENT, cwd=str(repository.path))
    async with at_work(git) as assistant:
        session = await assistant.spawn("git")
        shown = [await session.reads("]? ")]
        for answer in "ny":
            await session.apply(answer, keys=["ENTER"])
            shown.append(await session.reads("]? "))
        await session.apply("n", keys=["ENTER"])
        await session.stops()
        assert [int(found[1]) for found in map(QUESTION.search, shown) if found] == [1, 2, 3]
        assert session.text == (await session.output())["content"]
    assert repository.staged == {30: "thirty"}
