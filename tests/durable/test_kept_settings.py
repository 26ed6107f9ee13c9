"""R7: which tools may keep their processes, and where. The keeping itself: tests/crash/test_kept.py."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.patience import until
from tests.turn.calls import STATEFUL, call, spawn

import keephold
from keephold import Runtime
from keephold.config import load_config
from keephold.errors import ConfigError
from keephold.outcomes import Failure
from keephold.policies import RetryPolicy

TOOL = '[conversation.tools.t]\nsource = "local"\ncommand = ["true"]\nspawn.stateful = true\non_crash = "keep"\n'


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"wire": True}, "needs wire = false"),
        ({"retry": "idempotent"}, 'needs retry = "never"'),
        ({"retry": RetryPolicy(policy="safe")}, 'needs retry = "never"'),
        ({"returns": "image/png"}, "prints text; leave out `returns`"),
        ({"keep_secs": 0}, "keep_secs must be a number of seconds above 0, not 0"),
        ({"keep_secs": float("inf")}, "keep_secs must be a number of seconds above 0, not inf"),
    ],
)
def test_R7_settings_that_a_kept_process_cannot_have_are_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match="tool `true`: ") as refused:
        keephold.command("true", actions=STATEFUL, on_crash="keep", **options)
    assert expected in str(refused.value)


def test_R7_a_function_is_not_a_process_and_cannot_be_kept() -> None:
    with pytest.raises(ConfigError, match='"keep" keeps a process: it is for commands and terminals'):

        @keephold.tool(on_crash="keep")
        async def work() -> None: ...


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("wire = true", "needs wire = false"),
        ('retry.policy = "safe"', 'needs retry = "never"'),
        ('returns = "image/png"', "prints text; leave out `returns`"),
        ("keep_secs = 0", "keep_secs: must be above 0"),
        ("keep_sec = 1", "unknown key; did you mean `keep_secs`?"),
    ],
)
def test_R7_a_file_is_told_what_a_kept_tool_cannot_have(tmp_path: Path, line: str, expected: str) -> None:
    file = tmp_path / "keephold.toml"
    file.write_text(TOOL + line + "\n")
    with pytest.raises(ConfigError) as refused:
        load_config(file)
    assert expected in str(refused.value)
    file.write_text(TOOL + "keep_secs = 60.5\n")
    assert load_config(file).conversation.tools["t"].keep_secs == 60.5


async def test_R7_a_one_shot_call_that_became_a_handle_is_not_kept(tmp_path: Path) -> None:
    work = keephold.command(["sleep", "600"], name="work", actions=STATEFUL, on_crash="keep")
    store = f"sqlite:///{tmp_path}/work.db"
    async with Runtime([work], store=store) as rt:
        turn = await rt.turn("main").__aenter__()
        running = asyncio.ensure_future(turn.run([call("work")]))
        await until(
            lambda: any(handle.run is not None and handle.run.live is not None for handle in rt.registry.live("main"))
        )
        (handle,) = rt.registry.live("main")
        await rt.registry.promote_to_handle(handle, "w")
    await asyncio.gather(running, return_exceptions=True)
    async with Runtime([work], store=store) as rt:
        info = await rt.handle("w", conversation="main")
        assert (info.state, info.ended_by) == ("stopped", "shutdown")


async def test_R7_a_store_that_keeps_nothing_refuses_to_spawn_and_runs_one_shot_calls() -> None:
    echo = keephold.command(["echo", "hello"], actions=STATEFUL, on_crash="keep")
    async with Runtime([echo]) as rt, rt.turn("main") as turn:
        spawned, one_shot = await turn.run([spawn("echo", "e"), call("echo")])
        assert "sqlite:///" in spawned.result
        assert one_shot.result == "hello\n"
        info = await rt.handle("e", conversation="main")
        assert (info.state, info.started) == ("stopped", None)
        assert isinstance(info.outcome, Failure) and info.outcome.code == "requires_durable"
