"""`keephold init`: its file works as it is and says everything, and its snippets are what clients read."""

import json
import re
import shutil
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.e2e.driver import TurnProcess
from tests.e2e.place import Place, Said

from keephold.config import load_config, model

STARTER = Path(__file__).parents[2] / "src" / "keephold" / "cli" / "starter.toml"

TABLES: dict[str, type[BaseModel]] = {
    "conversation": model.ConversationSettings,
    "conversation.assistant": model.AssistantSettings,
    "conversation.inquiry": model.InquirySettings,
    "conversation.tools.example": model.ToolSettings,
    "conversation.tools.example.output": model.OutputSettings,
    "conversation.tools.example.retry": model.RetrySettings,
    "conversation.tools.example.questions.proceed": model.QuestionSettings,
    "conversation.tools.example.spawn": model.SpawnSettings,
    "conversation.tools.example.spawn.lifecycle": model.LifecycleSettings,
    "conversation.tools.example.spawn.notifications": model.NotificationSettings,
    "conversation.tools.example.terminal": model.TerminalSettings,
    "agents.reviewer": model.AgentSettings,
    "mcp.servers.files": model.McpServerSettings,
    "engines.temporal": model.TemporalSettings,
    "wait_handles.retention_secs": model.WaitRetention,
}
NAMED_BY_THE_USER = {"conversation.tools", "agents", "mcp.servers", "conversation.tools.example.questions"}


@pytest.fixture
def place(tmp_path: Path) -> Any:
    with ExitStack() as stack:
        yield Place(tmp_path, stack)


def init(place: Place, *arguments: str) -> Said:
    return place.keephold("init", *arguments)


# The file


def test_L1_the_file_works_as_it_is(place: Place) -> None:
    assert init(place).code == 0
    checked = place.keephold("check", "--json")
    assert checked.code == 0, checked
    assert [(tool["name"], tool["source"], tool["found"]) for tool in checked.json["tools"]] == [
        ("list_files", "local", True),
        ("shell", "terminal", True),
    ]


def test_L2_its_command_runs_with_and_without_its_argument(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    process = TurnProcess(STARTER.read_text(), tmp_path)
    try:
        here, there = process.run(("list_files", {}), ("list_files", {"path": "here"}))
        assert "keephold.toml" in here.text
        assert "keephold.toml" not in there.text
        assert not there.is_error
        process.run(("list_files", {"action": "spawn", "id": "files"}))
        process.finish()
    finally:
        process.close()


def settings() -> dict[str, dict[str, Any]]:
    """What is commented out, by table."""
    found: dict[str, dict[str, Any]] = {}
    for line in STARTER.read_text().splitlines():
        if re.match(r"#\[", line):
            table = found.setdefault(line.strip("#[]"), {})
        elif re.match(r"#\w", line):
            table |= tomllib.loads(line[1:])
    return found


def expected() -> dict[str, type[BaseModel]]:
    """Every table of the configuration, by the name it has in the file."""
    top = {
        name: field.annotation
        for name, field in model.Config.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }
    return {**top, **TABLES}


def test_F_every_setting_is_there_once_and_nothing_else() -> None:
    written, tables = settings(), expected()
    assert set(written) == set(tables)
    for name, table in tables.items():
        keys = {field.alias or key for key, field in table.model_fields.items()}
        elsewhere = {key for key in keys if f"{name}.{key}" in {*tables, *NAMED_BY_THE_USER}}
        assert set(written[name]) | elsewhere == keys, name


@pytest.mark.parametrize("name", expected())
def test_F_settings_are_shown_at_their_defaults(name: str) -> None:
    table = expected()[name]
    for key, field in table.model_fields.items():
        shown = field.alias or key
        if shown not in settings()[name]:
            continue
        value = getattr(table.model_validate({shown: settings()[name][shown]}), key)
        default = field.get_default()
        if default not in (None, "") and (table, key) not in EXAMPLES:
            assert value == default, f"{name}.{key}"


EXAMPLES = {(model.ToolSettings, "command")}
"""Not a default: what is written shows the form."""


def test_F_the_file_with_all_of_it_uncommented_is_toml() -> None:
    text = re.sub(r"^#(?=[\[\w])", "", STARTER.read_text(), flags=re.MULTILINE)
    assert tomllib.loads(text)["limits"]["batch_calls"] == 1000


def test_L1_the_next_steps_come_last(place: Place) -> None:
    here = init(place).out.splitlines()
    assert here[-5:-3] == ["Next:", ""]
    assert [line.split()[:2] for line in here[-3:]] == [
        ["keephold", "check"],
        ["keephold", "serve"],
        ["keephold", "init"],
    ]
    there = init(place, "a project").out.splitlines()
    assert there[-4] == f"    cd '{place.directory}/a project'"


# Nothing is overwritten


def test_a_file_that_is_there_stays(place: Place) -> None:
    file = place.directory / "keephold.toml"
    file.write_text("# mine\n")
    said = init(place)
    assert said.code == 2
    assert said.out == ""
    assert f"{file} is there already, and stays as it is; --force" in said.err
    assert file.read_text() == "# mine\n"


def test_force_keeps_what_was_there_each_time(place: Place) -> None:
    file = place.directory / "keephold.toml"
    for text in ("# mine\n", "# mine again\n"):
        file.write_text(text)
        assert init(place, "--force").code == 0
        assert load_config(file).conversation.tools
    assert (place.directory / "keephold.toml.bak").read_text() == "# mine\n"
    assert (place.directory / "keephold.toml.bak1").read_text() == "# mine again\n"


def test_a_directory_is_made_and_one_that_cannot_be_is_told(place: Place) -> None:
    assert init(place, "deep/down").code == 0
    assert (place.directory / "deep" / "down" / "keephold.toml").exists()
    (place.directory / "file").touch()
    said = init(place, "file/below")
    assert said.code == 2
    assert "name another DIR" in said.err


# The snippets


def test_snippets_alone_write_nothing(place: Place) -> None:
    said = init(place, "--snippets")
    assert said.code == 0
    assert list(place.directory.iterdir()) == []
    assert "wrote" not in said.out
    for client in ("Claude Desktop", "Claude Code", "Cursor", "VS Code", "Codex", "Zed", "JetBrains", "Neovim"):
        assert client in said.out


def test_snippets_are_in_the_formats_that_clients_read(place: Place) -> None:
    said = init(place, "--json").json
    assert said["config"] == str(place.directory / "keephold.toml")
    assert (said["written"], said["kept"]) == (True, None)
    found = {(each["client"], each["face"], each["by"]): each for each in said["snippets"]}
    read = {
        key: json.loads(each["text"]) if each["format"] == "json" else tomllib.loads(each["text"])
        for key, each in found.items()
        if each["format"] != "lua"
    }
    program = read["Claude Desktop", "mcp", "stdio"]["mcpServers"]["keephold"]
    assert shutil.which(program["command"]) == program["command"]
    assert program["args"][-3:] == ["mcp", "--config", said["config"]]
    assert read["VS Code", "mcp", "stdio"]["servers"]["keephold"] == {"type": "stdio", **program}
    assert read["Codex", "mcp", "stdio"]["mcp_servers"]["keephold"] == program
    assert read["Zed", "mcp", "stdio"]["context_servers"]["keephold"] == {**program, "env": {}}
    serve = model.ServeSettings()
    assert read["Claude Code", "mcp", "http"]["mcpServers"]["keephold"] == {
        "type": "http",
        "url": f"http://{serve.host}:{serve.port}/mcp",
        "headers": {"Authorization": "Bearer YOUR_TOKEN"},
    }
    agent = read["JetBrains IDEs", "acp", "stdio"]["agent_servers"]["keephold"]
    assert agent["args"][-3:] == ["acp", "--config", said["config"]]
    assert f'command = "{agent["command"]}"' in found["Neovim (avante.nvim)", "acp", "stdio"]["text"]


def test_the_program_of_a_snippet_serves(place: Place) -> None:
    """The command as a client would start it, in another directory, answers."""
    import subprocess

    (snippet, *_) = init(place, "--json").json["snippets"]
    server = json.loads(snippet["text"])["mcpServers"]["keephold"]
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
    done = subprocess.run(
        [server["command"], *server["args"], "--store", "memory:"],
        cwd="/", input=json.dumps(hello) + "\n", capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[0])["result"]["serverInfo"]["name"] == "keephold"
