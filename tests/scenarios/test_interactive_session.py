"""A tool that holds a conversation of its own: the assistant spawns it, reads it and types into it (C3–C6)."""

import asyncio
from pathlib import Path

from tests.scenarios.assistant import one, text

import keephold
from keephold.testing import VirtualClock


@keephold.tool(actions=("spawn", "fetch", "apply", "abort"))
async def git(call: keephold.Call, command: str, args: list[str]) -> str:
    call.emit("diff --git a/...")
    await asyncio.sleep(2)
    call.emit("Stage this hunk? [y/n/...]")
    staged = 1 if await call.input() == "y" else 0
    call.emit("Next hunk: ...")
    await asyncio.sleep(2)
    return f"Staged {staged + 2} hunks."


async def test_C3_interactive_staging_step_by_step(clock: VirtualClock) -> None:
    async with keephold.Runtime([git], clock=clock) as rt, rt.turn("main") as turn:
        spawned = await one(turn, "git", {"action": "spawn", "id": "h_1", "command": "stage", "args": ["--patch"]})
        assert spawned == {"id": "h_1", "state": "running", "content": "diff --git a/..."}
        await clock.advance(2)
        fetched = await one(turn, "git", {"action": "fetch", "id": "h_1"})
        assert fetched == {"id": "h_1", "state": "running", "content": "Stage this hunk? [y/n/...]"}
        applied = await one(turn, "git", {"action": "apply", "id": "h_1", "input": "y"})
        assert applied == {"id": "h_1", "state": "running", "content": "Next hunk: ..."}
        await clock.advance(2)
        fetched = await one(turn, "git", {"action": "fetch", "id": "h_1"})
        assert fetched == {"id": "h_1", "state": "stopped", "result": "Staged 3 hunks."}


# What `git add --patch` does, line by line, as a program that knows nothing of keephold.
CONFIG = """
[conversation.tools.git]
source = "local"
run = "unattended"
command = ["sh", "-c", '''
    [ "$1 $2" = "stage --patch" ] || { echo "usage: git stage --patch" >&2; exit 129; }
    staged=0
    for hunk in 1 2 3; do
        printf 'diff --git a/file%s\\nStage this hunk [y,n,q]? ' "$hunk"
        read -r answer || break
        [ "$answer" = q ] && break
        [ "$answer" = y ] && staged=$((staged + 1))
    done
    printf '\\nStaged %s hunks.' "$staged"
''', "git", "{{ tool.arguments.command }}", "{{ tool.arguments.args[0] }}"]
parameters.command = { enum = ["stage", "commit", "rebase"], required = true }
parameters.args = { type = "array", items = { type = "string" } }
# A shell that waits for input is seen to wait; the settle times are for one that does not, and a busy machine.
spawn = { stateful = true, stdin = true, settle_ms = 60000, settle_max_ms = 60000 }
"""


async def test_C4_a_program_that_waits_for_input_answers_with_its_prompt_at_once(tmp_path: Path) -> None:
    """No fetch is needed: every reply holds what is new, up to the next prompt (C5), and the last one the end."""
    config = tmp_path / "keephold.toml"
    config.write_text(CONFIG)
    async with keephold.Runtime(config=config) as rt, rt.turn("main") as turn:
        prompt = "diff --git a/file{}\nStage this hunk [y,n,q]? "
        spawned = await one(turn, "git", {"action": "spawn", "id": "h_1", "command": "stage", "args": ["--patch"]})
        assert spawned == {"id": "h_1", "state": "running", "content": prompt.format(1)}
        for hunk in (2, 3):
            applied = await one(turn, "git", {"action": "apply", "id": "h_1", "input": "y"})
            assert applied == {"id": "h_1", "state": "running", "content": prompt.format(hunk)}
        assert await one(turn, "git", {"action": "fetch", "id": "h_1"}) == {"id": "h_1", "state": "running"}
        stopped = await one(turn, "git", {"action": "apply", "id": "h_1", "input": "y\n"})
        assert stopped == {"id": "h_1", "state": "stopped", "result": "\nStaged 3 hunks."}
        assert (await rt.handle("h_1", conversation="main")).exit_code == 0


async def test_C7_an_interactive_session_can_be_given_up(tmp_path: Path) -> None:
    config = tmp_path / "keephold.toml"
    config.write_text(CONFIG)
    async with keephold.Runtime(config=config) as rt, rt.turn("main") as turn:
        await one(turn, "git", {"action": "spawn", "id": "h_1", "command": "stage", "args": ["--patch"]})
        aborted = await one(turn, "git", {"action": "abort", "id": "h_1"})
        assert (aborted["state"], aborted["ended_by"]) == ("stopped", "abort")
        assert await one(turn, "git", {"action": "abort", "id": "h_1"}) == aborted  # twice is harmless
        assert await one(turn, "git", {"action": "fetch", "id": "h_1"}) == aborted
        output = await text(turn, "read_output", {"id": "h_1"})
        assert "Stage this hunk" in output  # what it said is kept
