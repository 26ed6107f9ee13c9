"""A tool offers the actions it supports and no others: by its schema, and by an error if one is called anyway (C2)."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.scenarios.assistant import error, one

import keephold

CONFIG = """
[conversation.tools."*"]
source = "local"
run = "unattended"

[conversation.tools.git]
command = "cat"
parameters.command = { enum = ["stage", "commit", "rebase"], required = true }
parameters.args = { type = "array", items = { type = "string" } }
spawn = { stateful = true, stdin = true }

[conversation.tools.cargo_check]
command = "sleep 300"
parameters.package.type = "string"
spawn.stateful = true

[conversation.tools.background_task]
command = "sleep 300"
spawn.actions = ["spawn", "fetch"]
"""

# The two schemas as they were asked for, and `id` in the spawn variant, as was asked for later.
ID = {"type": "string", "description": "Handle ID for this tool instance. Must be unique across active handles."}

GIT = """
{
"type": "object",
"oneOf": [
{
"properties": {
"action": {
"const": "spawn"
},
"command": {
"enum": [
"stage",
"commit",
"rebase"
]
},
"args": {
"type": "array",
"items": {
"type": "string"
}
}
},
"required": [
"action",
"command"
]
},
{
"properties": {
"action": {
"const": "fetch"
},
"id": {
"type": "string"
}
},
"required": [
"action",
"id"
]
},
{
"properties": {
"action": {
"const": "apply"
},
"id": {
"type": "string"
},
"input": {}
},
"required": [
"action",
"id",
"input"
]
},
{
"properties": {
"action": {
"const": "abort"
},
"id": {
"type": "string"
}
},
"required": [
"action",
"id"
]
}
]
}
"""

CARGO_CHECK = """
{
"type": "object",
"oneOf": [
{
"properties": {
"action": {
"const": "spawn"
},
"package": {
"type": "string"
}
},
"required": [
"action"
]
},
{
"properties": {
"action": {
"const": "fetch"
},
"id": {
"type": "string"
}
},
"required": [
"action",
"id"
]
},
{
"properties": {
"action": {
"const": "abort"
},
"id": {
"type": "string"
}
},
"required": [
"action",
"id"
]
}
]
}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "keephold.toml"
    path.write_text(CONFIG)
    return path


def with_id(asked: str) -> Any:
    schema = json.loads(asked)
    schema["oneOf"][0]["properties"]["id"] = ID
    schema["oneOf"][0]["required"].insert(1, "id")
    return schema


def schemas(config: Path) -> dict[str, Any]:
    return {tool["name"]: tool["parameters"] for tool in keephold.Runtime(config=config).tools("canonical")}


def test_C2_the_schema_of_git_which_supports_everything(config: Path) -> None:
    assert schemas(config)["git"] == with_id(GIT)


def test_C2_the_schema_of_cargo_check_which_takes_no_input(config: Path) -> None:
    assert schemas(config)["cargo_check"] == with_id(CARGO_CHECK)


TABLE = {
    "git": ["spawn", "fetch", "apply", "abort"],  # needs input for interactive staging
    "cargo_check": ["spawn", "fetch", "abort"],  # no stdin, just poll for completion
    "background_task": ["spawn", "fetch"],  # fire and forget, cannot be stopped
}


@pytest.mark.parametrize("tool", TABLE)
async def test_C2_the_table_of_action_sets(config: Path, tool: str) -> None:
    actions = TABLE[tool]
    offered = [variant["properties"]["action"]["const"] for variant in schemas(config)[tool]["oneOf"]]
    assert offered == actions
    async with keephold.Runtime(config=config) as rt, rt.turn("main") as turn:
        arguments = {"command": "stage"} if tool == "git" else {}
        await one(turn, tool, {"action": "spawn", "id": "h", **arguments})
        calls: dict[str, dict[str, Any]] = {"fetch": {}, "apply": {"input": "y"}, "abort": {}}
        for action, given in calls.items():
            if action in actions:
                assert (await one(turn, tool, {"action": action, "id": "h", **given}))["id"] == "h"
            else:
                told = await error(turn, tool, {"action": action, "id": "h", **given})
                assert f'`{tool}` has no action "{action}"' in told
                assert ", ".join(f'"{each}"' for each in actions) in told


async def test_C2_what_the_assistant_cannot_abort_ends_with_the_turn_all_the_same(config: Path) -> None:
    async with keephold.Runtime(config=config) as rt, rt.turn("main") as turn:
        await one(turn, "background_task", {"action": "spawn", "id": "h"})
        ending = await turn.end()
        assert [(handle["id"], handle["ended_by"]) for handle in ending.results] == [("h", "turn_end")]
        assert rt.live() == []
