"""What commands are given and cannot use: names, tokens, addresses. It is refused before anything is done (L3, K5)."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.trusting import write_trusted

from keephold.cli import main

GOOD = "0123456789abcdef"


@pytest.fixture(autouse=True)
def _beside_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEEPHOLD_STORE", "sqlite:///work.db")
    monkeypatch.delenv("KEEPHOLD_TOKEN", raising=False)
    write_trusted(Path("keephold.toml"), "")


def refused(*arguments: str, **environment: str) -> str:
    """What is said on stderr by a command that has done nothing."""
    result: Result = CliRunner().invoke(main, arguments, prog_name="keephold", env=environment)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert isinstance(result.exception, SystemExit)
    assert not Path("work.db").exists()
    return result.stderr


@pytest.mark.parametrize("name", ["", " "])
@pytest.mark.parametrize(
    "arguments",
    [
        ("abort", "--all-in"),
        ("abort", "x", "--conversation"),
        ("attach", "x", "--conversation"),
        ("chat", "hi", "--conversation"),
        ("forget", "--yes"),
        ("logs", "x", "--conversation"),
        ("mcp", "--conversation"),
        ("ps", "--conversation"),
        ("revoke",),
        ("send", "x", "y", "--conversation"),
        ("serve", "--port", "0", "--conversation"),
        ("show", "x", "--conversation"),
        ("turn", "--conversation"),
        ("wait", "x", "--conversation"),
    ],
)
def test_S6_a_conversation_has_a_name(arguments: tuple[str, ...], name: str) -> None:
    assert "it is empty; a conversation has a name" in refused(*arguments, name)


def test_what_is_not_UTF_8_is_refused_in_words() -> None:
    for arguments in (("revoke", "\udcff"), ("ps", "--conversation", "a\udcff")):
        assert "is not UTF-8" in refused(*arguments)
    assert "is not UTF-8" in refused("complete", "\udcff", "--timeout", "--server", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    "token", ["secret-token-of-é-mine", "secret-one\nsecret-two", "secret-token-of-mine ", "\udcff" * 20]
)
def test_K5_a_token_that_no_header_can_bear_is_refused_and_not_shown(token: str) -> None:
    for server in (("serve", "--port", "0"), ("mcp", "--http", "0")):
        told = refused(*server, KEEPHOLD_TOKEN=token)
        assert "KEEPHOLD_TOKEN has characters that no token has; a token is one line" in told
        assert "secret" not in told
    told = refused("ps", "--server", "http://127.0.0.1:1", KEEPHOLD_TOKEN=token)
    assert "KEEPHOLD_TOKEN holds no token: a token is one line" in told
    assert "secret" not in told


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (b"\xff\xfe\x00", "cannot be read: it is not text"),
        ("ann secret-token-of-é-mine".encode(), "line 1: the token has"),
    ],
)
def test_K5_a_file_of_tokens_that_has_none_is_refused_and_not_shown(held: bytes, why: str) -> None:
    Path("tokens").touch(0o600)
    Path("tokens").write_bytes(held)
    for server in (("serve", "--port", "0"), ("mcp", "--http", "0")):
        told = refused(*server, "--tokens", "tokens")
        assert why in told and "secret" not in told


@pytest.mark.parametrize(
    "url", ["", "http://", "httpfoo://x", "http://x:99999", "http://[::1", "http://x?y", "http://x#y"]
)
def test_an_address_that_others_could_not_use_is_refused(url: str) -> None:
    for server in (("serve", "--port", "0"), ("mcp", "--http", "0")):
        assert "--url must begin with http:// or https:// and name a host" in refused(*server, "--url", url)
    write_trusted(Path("keephold.toml"), f'[serve]\nport = 0\nurl = "{url}"\n')
    told = refused("serve", "--port", "0").strip()
    assert told.startswith("Error: keephold.toml:3: serve.url: must begin with http:// or https:// and name a host")
    checked = CliRunner().invoke(main, ["check"], prog_name="keephold")
    assert checked.exit_code == 1 and f"problem: {told.removeprefix('Error: ')}\n" in checked.output


def test_a_host_that_has_no_such_name_is_refused() -> None:
    told = refused("serve", "--port", "0", "--host", "a..b", KEEPHOLD_TOKEN=GOOD)
    assert "cannot listen on a..b:0: that is not the name of a machine" in told
