"""The spawn configuration as it was written down, and what it does at the end of a turn (L4, T1, T3)."""

from pathlib import Path
from typing import Any

import pytest
from tests.scenarios.assistant import one

import keephold
from keephold.config import load_config

TOOL = """
[conversation.tools.cargo_check]
source = "local"
run = "unattended"
command = ["sh", "-c", "echo compiling; until [ -e gate ]; do sleep 0.01; done; printf 'ok, 0 warnings'"]
"""

SPAWN = """
[conversation.tools.cargo_check.spawn]
stateful = true

# Notification policy: when should JP notify the assistant about this handle?
[conversation.tools.cargo_check.spawn.notifications]
on_success = true # handle stopped with Ok result
on_failure = true # handle stopped with Err result
on_waiting = true # handle entered Waiting state (needs input)
on_content = false # new output while Running (noisy for builds)

# Lifecycle policy: what happens if this handle is still running when the
# turn would end?
[conversation.tools.cargo_check.spawn.lifecycle]
on_turn_end = "inquire" # "inquire" | "await" | "abort"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "keephold.toml"


def test_L4_the_tables_are_accepted_as_they_are_written(config: Path) -> None:
    config.write_text(TOOL + SPAWN)
    spawn = load_config(config).conversation.tools["cargo_check"].spawn
    assert spawn.stateful is True
    assert spawn.notifications.model_dump(exclude={"deliver", "on_ready"}) == {
        "on_success": True,
        "on_failure": True,
        "on_waiting": True,
        "on_content": False,
    }
    assert spawn.lifecycle.on_turn_end == "inquire"
    tools = {tool["name"] for tool in keephold.Runtime(config=config).tools()}
    assert {"cargo_check", "await"} <= tools


def test_L4_what_is_left_out_has_the_defaults_of_the_table(config: Path) -> None:
    config.write_text(TOOL + SPAWN)
    written = load_config(config).conversation.tools["cargo_check"].spawn
    config.write_text(TOOL + "[conversation.tools.cargo_check.spawn]\nstateful = true\n")
    assert load_config(config).conversation.tools["cargo_check"].spawn == written


def test_L4_each_flag_is_read(config: Path) -> None:
    flipped = SPAWN.replace("= true #", "= no #").replace("= false #", "= true #").replace("= no #", "= false #")
    config.write_text(TOOL + flipped)
    notifications = load_config(config).conversation.tools["cargo_check"].spawn.notifications
    assert notifications.model_dump(exclude={"deliver", "on_ready"}) == {
        "on_success": False,
        "on_failure": False,
        "on_waiting": False,
        "on_content": True,
    }


@pytest.mark.parametrize("policy", ["inquire", "abort"])
async def test_T3_a_handle_that_still_runs_is_aborted(config: Path, policy: str) -> None:
    """`inquire` would ask the assistant; with nobody to ask it is treated as `abort`."""
    config.write_text(TOOL + SPAWN.replace('= "inquire"', f'= "{policy}"'))
    async with keephold.Runtime(config=config) as rt, rt.turn("main") as turn:
        await one(turn, "cargo_check", {"action": "spawn", "id": "check"})
        (result,) = (await turn.end()).results
        assert result["result"].startswith("Aborted at the end of the turn.")
        assert (result["id"], result["state"], result["ended_by"]) == ("check", "stopped", "turn_end")
        assert rt.live() == []


async def test_T3_a_handle_that_still_runs_is_awaited(config: Path) -> None:
    """A second handle of the conversation opens the gate when it is aborted, that is: when the end has begun."""
    opener = """
[conversation.tools.opener]
source = "local"
run = "unattended"
command = ["sh", "-c", "trap 'touch gate; exit' TERM; touch ready; while :; do sleep 0.01; done"]
spawn = { stateful = true, actions = ["spawn", "fetch"], lifecycle.on_turn_end = "abort" }
"""
    config.write_text(TOOL + SPAWN.replace('= "inquire"', '= "await"') + opener)
    async with keephold.Runtime(config=config) as rt, rt.turn("main") as turn:
        await one(turn, "opener", {"action": "spawn", "id": "opener"})
        await one(turn, "cargo_check", {"action": "spawn", "id": "check"})
        while not (config.parent / "ready").exists():
            await rt.wait(all=["check"], timeout=0.02, conversation="main")
        results: dict[str, Any] = {handle["id"]: handle for handle in (await turn.end()).results}
        assert results["check"] == {"id": "check", "state": "stopped", "result": "compiling\nok, 0 warnings"}
        assert results["opener"]["ended_by"] == "turn_end"
