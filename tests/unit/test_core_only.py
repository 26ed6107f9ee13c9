"""A plain `pip install keephold`: the library works, and commands that need an extra say which one, in one line.

The child processes of these tests can import only keephold, its dependencies and theirs.
"""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.trusting import write_trusted

from keephold.errors import KeepholdError
from keephold.tools.remote import server

pytestmark = [pytest.mark.slow, pytest.mark.cold]  # a warm program has imported everything already
ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio
import keephold
from keephold.tools.waiting import NAMES


@keephold.tool
async def add(a: int, b: int) -> int:
    return a + b


def refused(**settings):
    try:
        keephold.Runtime(**settings)
    except keephold.KeepholdError as error:
        print(error.code, error.message)


async def main() -> None:
    tools = [add, keephold.command(["echo", "hi"], name="hi")]
    offered = [name for name in NAMES if name != "execute_workflow_async"]
    async with keephold.Runtime(tools=tools, store="sqlite:///store.db", builtins=offered) as rt, rt.turn() as turn:
        calls = [keephold.ToolCall("1", "add", {"a": 1, "b": 2}), keephold.ToolCall("2", "hi", {})]
        print([response.result for response in await turn.run(calls)])
    refused(servers=[keephold.mcp_server("x", command=["x"])])
    refused(builtins=["execute_workflow_async"])
    refused(config="workflows.toml")
    refused(store="postgresql://127.0.0.1/x")


asyncio.run(main())
"""
MODULES = """
import importlib
import pkgutil
import keephold

OPTIONAL = re.compile(
    r"keephold\\.(agent|engines|mcp|serve|store\\.postgres|tools\\.remote|tracing|adapters\\.pydantic_ai|cli\\.top_\\w+"
    r"|control\\.remote(_talk)?|tools\\.workflow\\.pinned|testing\\.model)(\\.|$)"
)
names = [each.name for each in pkgutil.walk_packages(keephold.__path__, "keephold.", onerror=lambda name: None)]
for name in names:
    if not OPTIONAL.match(name) and not name.endswith("__main__"):
        importlib.import_module(name)
for name in ("keephold.mcp.http", "keephold.serve.metrics"):
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(error)
"""
COMMANDS = """
import shlex
from click.testing import CliRunner
from keephold import cli

for line in sys.stdin.read().splitlines():
    result = CliRunner().invoke(cli.main, shlex.split(line))
    print(result.exit_code, repr(result.output))
"""
CONFIG = """
[conversation.tools.greet]
source = "local"
command = ["echo", "hello"]

[serve]
host = "127.0.0.1"
"""
WORKER = """
[engines.temporal]
address = "127.0.0.1:1"

[conversation.tools.order]
source = "python"
function = "shop:order"
engine = "temporal"
"""
LOGIN = '[mcp.servers.x]\nurl = "https://example.org/mcp"\noauth = true\n'
WORKFLOWS = '[conversation.tools.execute_workflow_async]\nsource = "builtin"\n'
NEEDING = {
    "serve --store memory:": "serve",
    "mcp --store memory:": "mcp",
    "mcp --store memory: --http 0": "serve",
    "spawn greet": "mcp",
    "mcp-login x --config login.toml": "mcp",
    "logout --store sqlite:///store.db": "serve",
    "ps --server http://127.0.0.1:1": "serve",
    "top --store sqlite:///store.db": "tui",
    "acp --store memory:": "agent",
    "tools --config workflows.toml": "serve",
}
"""Commands, and the extra that each needs."""


def packages(extra: str | None = None) -> set[str]:
    """Return the distributions that `pip install keephold`, or one extra of it, brings here, beside keephold."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    names = project["dependencies"] + ([] if extra is None else project["optional-dependencies"][extra])
    wanted = [Requirement(each) for each in names]
    found: set[str] = set()
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        try:
            wanted += [Requirement(each) for each in requires(name) or ()]
        except PackageNotFoundError:
            pytest.fail(f"{name} is not installed")
    return found


def blocking(extra: str | None = None) -> str:
    """Return the start of a program that can import only keephold and the packages of its core, and of one extra."""
    core = {*packages(extra), "keephold"}
    others = [
        name
        for name, distributions in packages_distributions().items()
        if not core & set(map(canonicalize_name, distributions)) and name not in sys.stdlib_module_names
    ]
    return f"import re, sys\nsys.modules |= dict.fromkeys({others!r})\n"


def run(program: str, directory: Path, given: str = "", extra: str | None = None) -> list[str]:
    command = [sys.executable, "-c", blocking(extra) + program]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, input=given, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_L1_the_core_has_at_most_20_packages_and_none_that_only_serves() -> None:
    core = packages()
    assert len(core) <= 20, sorted(core)
    assert core.isdisjoint({"anyio", "cel-expr-python", "httpx2", "mcp", "prometheus-client", "starlette", "uvicorn"})


def test_Y1_functions_commands_and_stores_work_with_the_core(tmp_path: Path) -> None:
    write_trusted(tmp_path / "workflows.toml", WORKFLOWS)
    values, *refused = run(PROGRAM, tmp_path)
    assert values == r"['3', 'hi\n']"
    needs = "missing_extra {} needs the package {}, which is not installed: pip install 'keephold[{}]'"
    assert refused == [
        needs.format("MCP", "mcp", "mcp"),
        needs.format("`execute_workflow_async`", "cel-expr-python", "serve"),
        needs.format("`execute_workflow_async`", "cel-expr-python", "serve"),
        needs.format("a PostgreSQL store", "asyncpg", "postgres"),
    ]


def test_Y1_every_module_of_the_core_can_be_imported(tmp_path: Path) -> None:
    http, metrics = run(MODULES, tmp_path)
    assert http.endswith("pip install 'keephold[mcp]'")
    assert metrics.endswith("pip install 'keephold[serve]'")


def test_L1_a_command_that_needs_an_extra_says_in_one_line_how_to_install_it(tmp_path: Path) -> None:
    write_trusted(tmp_path / "keephold.toml", CONFIG)
    write_trusted(tmp_path / "workflows.toml", WORKFLOWS)
    write_trusted(tmp_path / "login.toml", LOGIN)
    (tmp_path / "store.db").touch()
    answers = run(COMMANDS, tmp_path, "\n".join(NEEDING))
    for (line, extra), answer in zip(NEEDING.items(), answers, strict=True):
        one = re.fullmatch(r"2 [\"']Error: ([^\n]*)\\n[\"']", answer)
        assert one is not None and one[1].endswith(f"pip install 'keephold[{extra}]'"), (line, answer)


def test_L1_other_commands_need_no_extra(tmp_path: Path) -> None:
    write_trusted(tmp_path / "keephold.toml", CONFIG)
    lines = ["tools", "check", "turn --help", "store --help", "ps", "help serve", "bench --help"]
    tools, check, *others = run(COMMANDS, tmp_path, "\n".join(lines))
    assert tools.startswith("0 ") and "greet" in tools
    assert check.startswith("0 ") and "keephold[serve]" in check
    assert [other[:1] for other in others] == ["0", "0", "2", "0", "0"]
    assert "there is no store" in others[2]


def test_L1_a_worker_needs_only_the_extra_temporal(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("def order(item: str) -> str:\n    return item\n")
    write_trusted(tmp_path / "keephold.toml", WORKER)
    (answer,) = run(COMMANDS, tmp_path, "worker --engine temporal --metrics 127.0.0.1:1", extra="temporal")
    needs = "--metrics needs the package prometheus-client, which is not installed: pip install 'keephold[serve]'"
    assert answer == f"2 {f'Error: {needs}' + chr(10)!r}"  # nothing else was missing: it says so last


def test_L1_an_older_mcp_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "version", lambda _: "1.30.0")
    with pytest.raises(KeepholdError, match=r"needs mcp 2, but mcp 1\.30\.0 is installed"):
        server.need_mcp()
