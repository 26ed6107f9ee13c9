"""Output of calls on a PostgreSQL store: all that is kept goes into the row, where every machine can read it."""

from pathlib import Path

from keephold import Runtime, ToolCall
from keephold.config import load_config
from keephold.store.postgres.store import PostgresStore

CONFIG = """
[conversation.tools.flood]
source = "local"
description = "Print very much."
command = ["{program}"]
run = "unattended"
spawn.stateful = true
{more}

[conversation.tools.flood.output]
max_output = "300KiB"
"""
PROGRAM = "#!/bin/sh\nhead -c 700000 /dev/zero | tr '\\0' x; echo; echo the end\n"


def configured(directory: Path, more: str = "") -> Path:
    program, file = directory / "flood", directory / "keephold.toml"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    file.write_text(CONFIG.format(program=program, more=more))
    return file


async def test_O5_what_is_kept_of_a_long_output_is_in_the_row(tmp_path: Path, postgres: str) -> None:
    config = load_config(configured(tmp_path))
    async with Runtime(config=config, store=PostgresStore(postgres)) as runtime:
        async with runtime.turn("main") as turn:
            calls = [
                ToolCall("1", "flood", {"action": "spawn", "id": "f"}),
                ToolCall("2", "await", {"all": ["f"], "timeout_secs": 60}),
            ]
            await turn.run(calls)
        (record,) = await runtime.registry.store.handles()
    assert record.output is not None and record.output.file is None and record.output.in_file == 0
    assert record.output.total > 700_000 and 200_000 < len(record.output.data) < 400_000
    assert b"the end" in record.output.data


async def test_R7_a_process_cannot_be_kept_by_a_store_elsewhere(tmp_path: Path, postgres: str) -> None:
    config = load_config(configured(tmp_path, 'on_crash = "keep"'))
    async with Runtime(config=config, store=PostgresStore(postgres)) as runtime, runtime.turn("main") as turn:
        (refused,) = await turn.run([ToolCall("1", "flood", {"action": "spawn", "id": "f"})])
    assert "keeps its process on this machine" in str(refused.result) and "sqlite:///" in str(refused.result)
