"""No child gets an API key, a token, the store's address or a configured secret from the environment (K10).

Secrets are planted in variables and in the configuration. Then commands, terminals, MCP servers and agents run, and
every file, log and page, and `/proc/<pid>/environ` of every process, keephold's own included, is searched for them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.e2e.driver import turn, until
from tests.e2e.mcp_servers import PROGRAM
from tests.mcp.clients import connected, texts
from tests.serve.serving import TOKEN, served

import keephold
from keephold import ConfigError, acp
from keephold.cli.store import Where
from keephold.cli.top import _words
from keephold.config import load_config
from keephold.tools import environment

AGENT = Path(__file__).parents[1] / "acp" / "agents" / "obedient.py"
KEYS = (
    "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "MISTRAL_API_KEY", "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN", "NVIDIA_API_KEY", "DATABRICKS_TOKEN",
)  # fmt: skip
CONFIGURED = ("MODEL_KEY", "AGENT_KEY", "LIFECYCLE_KEY", "ASKED_KEY", "ENGINE_KEY")
PLANTED = {name: f"planted-in-{name.lower()}" for name in (*KEYS, *CONFIGURED)}
COPIES = {"COPY_OF_HEADER": "planted-header-0123", "COPY_OF_ENV": "planted-env-0123"}
SECRETS = {**PLANTED, **COPIES, "KEEPHOLD_TOKEN": TOKEN}
LOOK = r"tr '\0' '\n' < /proc/self/environ; echo; tr '\0' '\n' < /proc/$PPID/environ"


def config(directory: Path) -> str:
    """Tools of every kind that starts processes."""
    program = json.dumps([sys.executable, PROGRAM, "stdio", "modern"])
    agent = json.dumps([sys.executable, "-I", "-S", str(AGENT)])
    return f"""
[conversation.assistant]
model = "openai:gpt-5"
api_key_env = "MODEL_KEY"

[conversation.tools."*"]
run = "unattended"
output = {{ limit = 100000, max_lines = 5000 }}

[conversation.tools."*".spawn.lifecycle]
on_turn_end = "abort"

[conversation.tools.look]
source = "local"
command = {{ program = '''{LOOK}''', shell = true }}

[conversation.tools.look.spawn.lifecycle]
assistant = {{ model = "openai:gpt-5", api_key_env = "LIFECYCLE_KEY" }}

[conversation.tools.look.questions.sure]
target = {{ model = "openai:gpt-5", api_key_env = "ASKED_KEY" }}

[conversation.tools.passes]
source = "local"
command = {{ program = 'printf %s "$OPENAI_API_KEY$KEEPHOLD_TOKEN$MISTRAL_API_KEY" | wc -c', shell = true }}
pass_env = ["OPENAI_API_KEY", "KEEPHOLD_TOKEN", "NOT_THERE"]

[conversation.tools.screen]
source = "terminal"
command = ["sh", "-c", '''{LOOK}; exec sleep 1000''']
cwd = "/"

[mcp.servers.other]
command = {program}
env = {{ MCP_NOTES = "{directory}/notes", API_TOKEN = "{COPIES["COPY_OF_ENV"]}" }}
pass_env = ["GEMINI_API_KEY"]

[mcp.servers.elsewhere]
url = "https://mcp.example.org/"
headers = {{ Authorization = "Bearer {COPIES["COPY_OF_HEADER"]}" }}
enabled = false

[agents.coder]
command = {agent}
run = "unattended"
on_turn_end = "abort"
pass_env = ["ANTHROPIC_API_KEY"]

[engines.temporal]
tls = true
api_key_env = "ENGINE_KEY"

[agents.thinker]
model = "openai:gpt-5"
assistant = {{ api_key_env = "AGENT_KEY" }}
"""


def environ(pid: int) -> dict[str, str]:
    """The variables that `/proc` shows for a process, without empty ones; none if it has ended."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return {name: value for name, _, value in (entry.partition("=") for entry in entries) if value}


def family(pid: int) -> Iterator[int]:
    yield pid
    yield from (child.pid for child in psutil.Process(pid).children(recursive=True))


def files(directory: Path) -> dict[str, str]:
    """By its name: every file below the directory, except the configuration itself."""
    found = (path for path in directory.rglob("*") if path.is_file() and path.name != "keephold.toml")
    return {str(path): path.read_bytes().decode(errors="replace") for path in found}


def free_of_secrets(text: str) -> bool:
    return not any(value in text for value in SECRETS.values())


@pytest.fixture(autouse=True)
def _planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PLAIN", "passes-as-before")


def test_K10_no_process_of_a_turn_shows_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a command, a terminal, an MCP server, an agent, the guard, and of keephold itself, which tools can look at."""
    monkeypatch.setenv("KEEPHOLD_STORE", f"sqlite:///{tmp_path}/kept.db")
    with turn(config(tmp_path), tmp_path) as process:
        looked, passed = process.run(("look", {}), ("passes", {}))
        assert looked.text.count("PLAIN=passes-as-before") == 2 and "KEEPHOLD_STORE=sqlite" not in looked.text
        assert passed.text.strip() == str(len(PLANTED["OPENAI_API_KEY"]) + len(TOKEN))
        screen, coder = process.run(
            ("screen", {"action": "spawn", "id": "s"}),
            ("coder", {"action": "spawn", "id": "c", "prompt": json.dumps([["until", str(tmp_path / "never")]])}),
        )
        assert not screen.is_error and not coder.is_error
        until((tmp_path / "pids").exists)
        until((tmp_path / "notes").exists)
        shown = {pid: environ(pid) for pid in family(process.process.pid)}
        assert len(shown) >= 5  # keephold, its guard, the terminal, the MCP server, the agent
        given = sorted(secret for each in shown.values() for secret in each.items() if secret[1] in SECRETS.values())
        assert given == [  # what an `env` or a `pass_env` of the file gives to a program, and nothing else
            ("ANTHROPIC_API_KEY", PLANTED["ANTHROPIC_API_KEY"]),
            ("API_TOKEN", COPIES["COPY_OF_ENV"]),
            ("GEMINI_API_KEY", PLANTED["GEMINI_API_KEY"]),
        ]
        assert not any(each.get("KEEPHOLD_STORE", "").startswith("sqlite") for each in shown.values())
        (fetched,) = process.run(("screen", {"action": "fetch", "id": "s"}))
        assert free_of_secrets(looked.text + passed.text + screen.text + coder.text + fetched.text)
        process.finish()
    assert (tmp_path / "kept.db").exists()
    assert [name for name, text in files(tmp_path).items() if not free_of_secrets(text)] == []


async def test_K10_nor_does_a_server(tmp_path: Path) -> None:
    """The server's log, store, pages and children; its token is in a variable, and it logs all it can."""
    with served(tmp_path, config(tmp_path), "--quiet", env=SECRETS, talkative=True) as server:
        async with connected(server.mcp, token=TOKEN) as client:
            (looked,) = texts(await client.call_tool("look", {}))
            await client.call_tool("screen", {"action": "spawn", "id": "s"})
        shown = {pid: environ(pid) for pid in family(server.process.pid)}
        given = {name for each in shown.values() for name, value in each.items() if value in SECRETS.values()}
        assert "PLAIN=passes-as-before" in looked and free_of_secrets(looked)
        assert given == {"API_TOKEN", "GEMINI_API_KEY"}
        async with server.client() as http:
            handles = (await http.get("/api/handles", params={"oneshot": "true"})).json()["handles"]
            pages = [f"{base}/{handle['uid']}" for handle in handles for base in ("/handles", "/api/handles")]
            for path in ("/", "/tools", "/stats", "/metrics", "/api/tools", *pages):
                answer = await http.get(path, headers={"accept": "text/html"})
                assert answer.status_code == 200 and free_of_secrets(answer.text), path
    assert [name for name, text in files(tmp_path).items() if not free_of_secrets(text)] == []


async def test_K10_an_agent_that_a_program_starts(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", str(AGENT)]
    async with acp.connect(command, cwd=tmp_path, pass_env=["HF_TOKEN"]) as agent:
        shown = environ(agent.process.pid)
    assert {name for name, value in shown.items() if value in SECRETS.values() and name in KEYS} == {"HF_TOKEN"}
    assert shown["PLAIN"] == "passes-as-before"


def test_K10_what_is_concealed_can_still_be_used() -> None:
    """Python and C code find the values that `/proc/<pid>/environ` does not show any more."""
    code = """
import ctypes, os, pathlib
from keephold.tools import environment
environment.conceal()
shown = pathlib.Path("/proc/self/environ").read_text()
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
assert "planted-in-openai" not in shown and "passes-as-before" in shown
assert os.environ["OPENAI_API_KEY"] == libc.getenv(b"OPENAI_API_KEY").decode() == "planted-in-openai_api_key"
environment.withhold(["PLAIN"])
assert "passes-as-before" not in pathlib.Path("/proc/self/environ").read_text()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr


def test_K10_pass_env_is_checked(tmp_path: Path) -> None:
    wrong = 'must be a list of names of environment variables, such as ["GITHUB_TOKEN"]'
    for make in (keephold.command, keephold.terminal):
        with pytest.raises(ConfigError, match="pass_env must be a list of names") as caught:
            make("true", pass_env="HOME")
        assert caught.value.problems == (f"tool `true`: pass_env {wrong}",)
    with pytest.raises(ConfigError, match="pass_env` must be a list of names"):
        keephold.mcp_server("x", command=["true"], pass_env=["A=B"])
    file = tmp_path / "keephold.toml"
    file.write_text("""
[conversation.tools.a]
source = "local"
command = "true"
pass_env = "HOME"

[conversation.tools.b]
source = "python"
function = "os:getcwd"
pass_env = ["HOME"]

[mcp.servers.c]
url = "https://mcp.example.org/"
pass_env = ["HOME"]

[agents.d]
model = "openai:gpt-5"
pass_env = ["HO ME"]
""")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert [problem.partition(": ")[2] for problem in caught.value.problems] == [
        'conversation.tools.a.pass_env: must be a list, not "HOME"',
        'conversation.tools.b.pass_env: has no meaning for source = "python": '
        "a function has the environment of the process",
        "mcp.servers.c.pass_env: is for a server with a `command`",
        'agents.d.pass_env.0: must be the name of an environment variable, such as "GITHUB_TOKEN", not "HO ME"',
    ]


def test_K10_every_table_of_keys_is_withheld(tmp_path: Path) -> None:
    """The names of the configuration are withheld once a runtime uses it; others pass."""
    file = tmp_path / "keephold.toml"
    file.write_text(config(tmp_path))
    keephold.Runtime(config=file)
    left = environment.inherited()
    assert left.keys() & SECRETS.keys() == set() and left["PLAIN"] == "passes-as-before"
    assert environment.inherited(["MODEL_KEY"])["MODEL_KEY"] == PLANTED["MODEL_KEY"]


def test_K10_the_password_of_a_postgresql_store_is_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    for kept in ("_names", "_values"):
        monkeypatch.setattr(environment, kept, set(getattr(environment, kept)))
    url = "postgresql://keephold:hush@127.0.0.1/work"
    monkeypatch.setenv("PGPASSWORD", "hush")
    monkeypatch.setenv("DATABASE_URL", url)
    keephold.Runtime([], store=url)
    assert not {"PGPASSWORD", "DATABASE_URL"} & environment.inherited().keys()
    assert environment.inherited(["PGPASSWORD"])["PGPASSWORD"] == "hush"


def test_K5_top_does_not_put_a_password_into_the_words_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql://keephold:hush@127.0.0.1/work"
    monkeypatch.setenv("KEEPHOLD_STORE", "sqlite:///other.db")
    assert _words(Where(store=url)) == []
    assert os.environ["KEEPHOLD_STORE"] == url
    assert _words(Where(store="sqlite:///work.db")) == ["--store", "sqlite:///work.db"]
