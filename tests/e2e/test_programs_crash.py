"""The process that runs terminals is killed: nothing of their programs is left, and the next one says so (R1, R2)."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.agent import Agent
from tests.e2e.driver import until
from tests.programs import needs

JOBS = "sleep 1001 & setsid sleep 1002 & (trap '' HUP TERM; sleep 1003) & echo jobs: $(jobs -p | wc -l)\r"
"""Work in the background: of the shell's session, of one of its own, and one that takes no hints."""


@pytest.fixture(scope="module", autouse=True)
def _programs() -> None:
    needs("vim")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with Agent(tmp_path) as agent:
        yield agent


def alive(agent: Agent) -> list[str]:
    """Command lines of all processes that come from this agent: they inherit a variable that names its store."""
    wanted = f"STORE_OF_TEST={agent.environment['STORE_OF_TEST']}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip())
            except OSError:  # gone, or somebody else's
                continue
    return found


def shows(agent: Agent, id: str, text: str) -> None:
    """Fetch the screen until the text is on it."""

    def seen() -> bool:
        ((result, _),) = agent.run(("shell", {"action": "fetch", "id": id, "view": "screen"}))
        return text in json.loads(result)["content"]

    until(seen, what=lambda: f"{text!r} is not on the screen of `{id}`")


def test_R2_nothing_of_a_terminal_outlives_a_crash(agent: Agent, tmp_path: Path) -> None:
    poem = tmp_path / "poem"
    for id in ("jobs", "editor", "flood"):
        agent.spawn("shell", id)
        shows(agent, id, "$")
    agent.apply("shell", "jobs", JOBS)
    shows(agent, "jobs", "jobs: 3")
    agent.apply("shell", "editor", f"vim -u NONE -N -i NONE -n {poem}\r")
    shows(agent, "editor", "~")
    agent.apply("shell", "editor", "iunsaved")
    shows(agent, "editor", "unsaved")
    agent.apply("shell", "flood", "yes\r")
    shows(agent, "flood", "y\ny")
    programs = {"sleep 1001", "sleep 1002", "sleep 1003", f"vim -u NONE -N -i NONE -n {poem}", "yes"}
    until(lambda: programs <= set(alive(agent)), what=lambda: str(alive(agent)))

    agent.kill()
    until(lambda: not alive(agent), lambda: f"left behind: {alive(agent)}")
    assert not poem.exists()

    with Agent(tmp_path) as after:
        for id in ("jobs", "editor", "flood"):
            ((result, code),) = after.run(("shell", {"action": "fetch", "id": id}))
            said = json.loads(result)
            assert (said["state"], said["is_error"], said["transient"]) == ("stopped", True, True)
            assert said["result"] == "The process that ran this call ended before the call did."
            assert code is None
            shown = json.loads(after.keephold("show", id, "--json").out)
            assert (shown["state"], shown["ended_by"]) == ("stopped", "crash")
        ((refused, code),) = after.run(("shell", {"action": "apply", "id": "jobs", "input": "ls\r"}))
        assert (code, "stopped" in refused) == ("not_running", True)
        after.spawn("shell", "jobs")  # the id is free again
        after.apply("shell", "jobs", "echo fresh $((1 + 1))\r")
        shows(after, "jobs", "fresh 2")


def test_R2_nothing_of_a_terminal_outlives_an_agent_that_ends(agent: Agent) -> None:
    """The same programs, and a process that ends in good order: those that take no hints go as well."""
    agent.spawn("shell", "jobs")
    agent.apply("shell", "jobs", JOBS)
    shows(agent, "jobs", "jobs: 3")
    agent.__exit__()
    until(lambda: not alive(agent), lambda: f"left behind: {alive(agent)}")
    shown = json.loads(agent.keephold("show", "jobs", "--json").out)
    assert (shown["state"], shown["ended_by"]) == ("stopped", "turn_end")
