"""Which engine runs a tool, and where that engine is, as the file and the code say."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit import config_files
from tests.unit.config_files import build, load

import keephold
from keephold.cli import main
from keephold.config.model import TemporalSettings, TlsSettings
from keephold.errors import ConfigError

MODULE = """
import keephold

async def plain() -> None: ...

@keephold.tool(engine="temporal")
async def of_engine() -> None: ...

command = keephold.command("true", name="command")
"""
TABLE = "[engines.temporal]\n"
COMMANDS = 'engine = "temporal" runs functions; commands run where keephold runs'
NO_TABLE = "there is no table [engines.temporal]; write one with the `address` of the engine, or remove `engine`"


@pytest.fixture(autouse=True)
def _beside_a_module(empty_directory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("engine_tools.py").write_text(MODULE)
    monkeypatch.delitem(sys.modules, "engine_tools", raising=False)


def problem(text: str) -> str:
    return config_files.problem(text, build)


def python(function: str, more: str = "") -> str:
    return f"[conversation.tools.t]\nsource = 'python'\nfunction = 'engine_tools:{function}'\n{more}\n"


def test_F_an_engine_has_defaults_and_every_key_of_it_is_read() -> None:
    assert load("").engines == {}
    assert load(TABLE).engines == {"temporal": TemporalSettings()}
    text = "address = 'h:1'\nnamespace = 'n'\ntask_queue = 'q'\napi_key_env = 'K'\n"
    files = TlsSettings(ca_file="a", cert_file="c", key_file="k")
    for tls, expected in (("true", TlsSettings()), ("{ ca_file = 'a', cert_file = 'c', key_file = 'k' }", files)):
        engine = load(f"{TABLE}{text}tls = {tls}\n").engines["temporal"]
        assert engine == TemporalSettings(address="h:1", namespace="n", task_queue="q", api_key_env="K", tls=expected)
    assert load(f"{TABLE}tls = false\n").engines["temporal"].tls is None


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("address = 'h'", 'address: must be a host and a port, such as "127.0.0.1:7233"'),
        ("task_queue = ''", "task_queue: "),
        ("tls = 'yes'", "tls: must be true, false, or a table of files: ca_file, cert_file and key_file"),
        ("tls = { cafile = 'x' }", "tls.cafile: unknown key; did you mean `ca_file`?"),
        ("tls = { cert_file = 'x' }", "tls: `cert_file` and `key_file` belong together"),
        ("api_key_env = 'K'", "api_key_env: the key would be sent unencrypted; add `tls = true`"),
        ("adress = 'h:1'", "adress: unknown key; did you mean `address`?"),
    ],
)
def test_F_a_mistake_in_the_table_is_named_with_its_line(line: str, sentence: str) -> None:
    assert problem(f"{TABLE}{line}\n").startswith(f"keephold.toml:2: engines.temporal.{sentence}")


def test_F_an_engine_that_is_not_known_is_named() -> None:
    assert problem("[engines.temporl]\n") == "keephold.toml:1: engines.temporl: unknown key; did you mean `temporal`?"
    wrong = problem(TABLE + python("plain", "engine = 'restate'"))
    assert wrong.endswith('t.engine: must be one of "temporal", not "restate"')


def test_F_the_file_or_the_code_names_the_engine_of_a_function() -> None:
    assert build(python("plain")).engine is None
    assert build(TABLE + python("plain", "engine = 'temporal'")).engine == "temporal"
    assert build(TABLE + python("of_engine")).engine == "temporal"
    assert build(f"{TABLE}[conversation.tools.'*']\nengine = 'temporal'\n{python('plain')}").engine == "temporal"


def test_F_an_engine_without_a_table_is_a_mistake() -> None:
    assert (
        problem(python("plain", "engine = 'temporal'")) == f"keephold.toml:4: conversation.tools.t.engine: {NO_TABLE}"
    )
    assert problem(python("of_engine")) == f"keephold.toml:3: conversation.tools.t.function: {NO_TABLE}"
    default = "[conversation.tools.'*']\nengine = 'temporal'\n"
    assert problem(default + python("plain")) == f'keephold.toml:2: conversation.tools."*".engine: {NO_TABLE}'


@pytest.mark.parametrize("source", ["local", "terminal"])
def test_F_commands_have_no_engine_and_ignore_that_of_the_defaults(source: str) -> None:
    command = f"[conversation.tools.t]\nsource = '{source}'\ncommand = 'true'\n"
    assert (
        problem(f"{TABLE}{command}engine = 'temporal'") == f"keephold.toml:5: conversation.tools.t.engine: {COMMANDS}"
    )
    assert build(f"{TABLE}[conversation.tools.'*']\nengine = 'temporal'\n{command}").engine is None


def test_F_a_command_that_code_made_has_no_engine_either() -> None:
    wrong = problem(TABLE + python("command", "engine = 'temporal'"))
    assert wrong == f"keephold.toml:5: conversation.tools.t.engine: {COMMANDS}"
    assert build(f"{TABLE}[conversation.tools.'*']\nengine = 'temporal'\n{python('command')}").engine is None
    for make in (keephold.command, keephold.terminal):
        with pytest.raises(ConfigError) as caught:
            make("true", name="x", engine="temporal")  # type: ignore[call-arg]
        assert caught.value.problems == (f"tool `x`: {COMMANDS}",)


def test_a_worker_without_a_configuration_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    refused = CliRunner().invoke(main, ["worker", "--engine", "temporal"])
    assert refused.exit_code == 2
    assert "there is no keephold.toml in " in refused.output and "~/.config/keephold" in refused.output
    assert "name a file by --config" in refused.output
