"""`keephold mcp-login`: a login by OAuth at a real server, kept in a private file and used without asking anybody."""

import asyncio
import json
import logging
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from tests.e2e.mcp_servers import names, using
from tests.e2e.oauth_server import Guarded, guarded
from tests.patience import PATIENCE, until
from tests.serve.serving import environment

from keephold import Runtime
from keephold.config.build import login_file
from keephold.config.load import load_config
from keephold.config.trust import Record
from keephold.errors import ConfigError
from keephold.tools.remote.login import LoginFile


@pytest.fixture(scope="module")
def server() -> Iterator[Guarded]:
    with guarded() as made:
        yield made


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def config(server: Guarded, tmp_path: Path) -> Path:
    tools = '[conversation.tools."*"]\nrun = "unattended"\n[conversation.tools.add]\nsource = "mcp"\nserver = "other"\n'
    file = tmp_path / "other.toml"
    file.write_text(f'{tools}[mcp.servers.other]\nurl = "{server.url}"\noauth = true\nscope = "read write"\n')
    return file


def keephold(config: Path, *words: str) -> subprocess.Popen[str]:
    """A command of a user, whose state directory is beside the configuration."""
    return subprocess.Popen(
        [sys.executable, "-m", "keephold", *words, "--config", config.name],
        cwd=config.parent, env=environment(config.parent), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def login_page(process: subprocess.Popen[str]) -> str:
    """The address that the command prints."""
    assert process.stdout is not None
    assert process.stdout.readline() == "To log in to MCP server `other`, open:\n"
    return process.stdout.readline().strip()


def redirect_of(page: str) -> str:
    """Where the server sends a browser that has logged in."""
    return httpx2.get(page, timeout=PATIENCE).headers["location"]


def log_in(config: Path) -> str:
    """Log in as a browser would; return what the command printed at the end."""
    with keephold(config, "mcp-login", "other", "--no-browser") as process:
        assert httpx2.get(redirect_of(login_page(process)), timeout=PATIENCE).status_code == 200
        said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    return said


def kept(server: Guarded) -> LoginFile:
    return login_file(server.url)


def expire(server: Guarded) -> None:
    """Let the access token expire, here and there."""
    file = kept(server).file
    known = json.loads(file.read_text())
    known["login"]["expires_at"] = 1.0
    file.write_text(json.dumps(known))
    server.provider.access.clear()


def check(config: Path) -> dict[str, Any]:
    with keephold(config, "check", "--json") as process:
        said, _ = process.communicate(timeout=PATIENCE)
    report: dict[str, Any] = json.loads(said)
    return report


async def add(rt: Runtime) -> Any:
    async with rt.turn("main") as turn:
        return await using(turn, "add", a=1, b=2)


async def works(config: Path) -> bool:
    async with Runtime(config=load_config(config), store="memory:") as rt:
        return await rt.connected(PATIENCE) and (await add(rt)).result == "3"


async def test_M6_a_login_is_kept_in_a_private_file_and_used_by_every_runtime(server: Guarded, config: Path) -> None:
    said = await asyncio.to_thread(log_in, config)
    assert said == f"logged in to MCP server `other` at {urlsplit(server.url).netloc}\n"
    file = kept(server).file
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    login = kept(server).read()
    assert login is not None and login.tokens["scope"] == "read write"
    assert await works(config)
    assert await works(config)  # after a restart
    file.chmod(0o644)
    assert "another user" in str((await asyncio.to_thread(check, config))["problems"])


async def test_M6_an_expired_login_is_refreshed_once_by_all_who_use_it(server: Guarded, config: Path) -> None:
    await asyncio.to_thread(log_in, config)
    expire(server)
    before = server.provider.refreshed
    assert all(await asyncio.gather(*(works(config) for _ in range(4))))
    assert server.provider.refreshed == before + 1  # the server revokes all if the same one comes twice
    async with Runtime(config=load_config(config), store="memory:") as rt:
        assert await rt.connected(PATIENCE)
        server.provider.access.clear()  # it has expired earlier than the server announced
        assert (await add(rt)).result == "3"
    assert stat.S_IMODE(kept(server).file.stat().st_mode) == 0o600


async def test_M6_without_a_login_calls_name_the_command_until_the_user_has_logged_in(
    server: Guarded, config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    right = "to log in: keephold mcp-login other"
    async with Runtime(config=load_config(config), store="memory:") as rt:
        assert not await rt.connected(PATIENCE)
        away = await add(rt)
        assert away.code == "mcp_disconnected" and right in away.result
        await asyncio.to_thread(log_in, config)
        await until(lambda: "add" in names(rt))
        assert (await add(rt)).result == "3"
        server.provider.revoke()
        ended = await add(rt)
        assert ended.code == "mcp_disconnected" and right in ended.result, ended.result
    assert kept(server).read() is None  # it can never be used again
    assert server.provider.issued and not any(token in caplog.text for token in server.provider.issued)


def test_M6_only_a_redirect_with_the_right_state_counts(server: Guarded, config: Path) -> None:
    with keephold(config, "mcp-login", "other", "--no-browser") as process:
        redirect = redirect_of(login_page(process))
        state = parse_qs(urlsplit(redirect).query)["state"][0]
        for wrong in (redirect.replace(state, "x" * len(state)), redirect.partition("&state")[0]):
            assert httpx2.get(wrong, timeout=PATIENCE).status_code == 400
        assert httpx2.get(redirect.replace("/callback", "/"), timeout=PATIENCE).status_code == 404
        assert process.poll() is None and kept(server).read() is None
        assert httpx2.get(redirect, timeout=PATIENCE).status_code == 200
        said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said


def test_M6_a_refused_login_keeps_the_one_before(server: Guarded, config: Path) -> None:
    log_in(config)
    before = kept(server).file.read_bytes()
    with keephold(config, "mcp-login", "other") as process:  # without a terminal no browser is opened
        given = parse_qs(urlsplit(login_page(process)).query)
        httpx2.get(
            given["redirect_uri"][0], params={"state": given["state"][0], "error": "access_denied"}, timeout=PATIENCE
        )
        said, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said) == (
        2, "Error: not logged in to MCP server `other`: the login was refused (access_denied)\n",
    )  # fmt: skip
    assert kept(server).file.read_bytes() == before


def test_K5_check_says_whether_a_login_is_there_and_nothing_of_it(server: Guarded, config: Path) -> None:
    report = check(config)
    assert report["ok"] and report["servers"][0]["logged_in"] is False
    assert "MCP server `other` needs a login: keephold mcp-login other" in report["notes"]
    log_in(config)
    report = check(config)
    assert report["servers"][0]["logged_in"] is True and "login" not in str(report["notes"])
    login = kept(server).read()
    assert login is not None and login.access not in str(report)
    with keephold(config, "mcp-login", "other", "--remove") as process:
        assert process.communicate(timeout=PATIENCE)[0] == "the login at MCP server `other` is removed\n"
    assert check(config)["servers"][0]["logged_in"] is False


def test_K5_a_token_that_a_server_repeats_is_masked(server: Guarded, config: Path) -> None:
    log_in(config)
    (spec,) = load_config(config).mcp_servers()
    assert spec.login is not None
    login = spec.login.read()
    assert login is not None and login.refresh is not None and login.access not in repr(spec)
    assert spec.without_secrets(f"no {login.access} or {login.refresh}!") == "no *** or ***!"


def test_K7_a_file_that_is_found_and_not_trusted_starts_no_login(config: Path) -> None:
    found = config.with_name("keephold.toml")
    found.write_bytes(config.read_bytes())
    config.parent.chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-m", "keephold", "mcp-login", "other"],
        cwd=config.parent, env=environment(config.parent), capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == ""
    assert "is not trusted" in done.stderr and "with your stored login there" in done.stderr
    assert not Record().read() and not (config.parent / "state/keephold/mcp-logins").exists()


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('command = ["true"]\noauth = true', "oauth: is for a server with a `url`"),
        ('url = "https://x.org"\nscope = "read"', "scope: is for a server with `oauth = true`"),
        ('url = "https://x.org"\noauth = true\nheaders = { authorization = "x" }', "remove it here"),
    ],
)
def test_F2_settings_of_a_login_that_contradict_others_are_refused(tmp_path: Path, table: str, problem: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(f"[mcp.servers.other]\n{table}\n")
    with pytest.raises(ConfigError, match=problem.replace("(", r"\(")):
        load_config(file)
