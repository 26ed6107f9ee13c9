"""Which store a command means (Y1), and that looking at one that is not there makes none."""

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.trusting import write_trusted

from keephold.cli import main
from keephold.cli.store import _existing, store_of
from keephold.config import Config, load_config
from keephold.errors import ConfigError, KeepholdError

LOOKING = [("ps",), ("show", "x"), ("wait", "x"), ("complete", "k", "--timeout")]
TOOL = '[conversation.tools.t]\nsource = "local"\ncommand = "true"\n'


@pytest.fixture(autouse=True)
def _at_home_in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("KEEPHOLD_STORE", raising=False)


def keephold(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="keephold")


def config(text: str, path: str = "keephold.toml") -> Config:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return load_config(write_trusted(Path(path), text))


def file_of(url: str | None) -> Path:
    """The file that a command would look at."""
    with pytest.raises(KeepholdError, match="there is no store") as refused:
        _existing(url)
    return Path(refused.value.message.split("`")[1])


def test_Y1_the_default_is_a_private_file_in_the_users_state_directory(tmp_path: Path) -> None:
    directory = tmp_path / "user" / ".local" / "state" / "keephold"
    assert file_of(None) == directory / "keephold.db"
    assert not directory.exists()  # whoever looks makes nothing
    assert store_of(Config()) == f"sqlite:///{directory / 'keephold.db'}"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_Y1_XDG_STATE_HOME_moves_it_unless_it_is_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert store_of(Config()) == f"sqlite:///{tmp_path / 'state' / 'keephold' / 'keephold.db'}"
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    assert file_of(None).is_relative_to(tmp_path / "user")


def test_Y1_a_relative_path_in_the_configuration_counts_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = config(TOOL + '[store]\nurl = "sqlite:///work.db"\n')
    below = Path("a/b").absolute()
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert store_of(loaded) == f"sqlite:///{tmp_path / 'here' / 'work.db'}"
    assert file_of(None) == tmp_path / "here" / "work.db"  # found upwards, as by `keephold turn`
    assert file_of("sqlite:///work.db") == below / "work.db"  # who types a path means the working directory


@pytest.mark.parametrize(
    ("url", "file"), [("sqlite:////var/work.db", "/var/work.db"), ("sqlite:///~/work.db", "{tmp}/user/work.db")]
)
def test_Y1_an_absolute_path_in_the_configuration_stays(tmp_path: Path, url: str, file: str) -> None:
    assert store_of(config(f'[store]\nurl = "{url}"\n')) == f"sqlite:///{file.format(tmp=tmp_path)}"


def test_Y1_memory_in_the_configuration_is_for_turns_alone() -> None:
    loaded = config('[store]\nurl = "memory:"\n')
    assert store_of(loaded) == "memory:"
    result = keephold("ps")
    assert result.exit_code == 2
    assert "seen by no process but its own; name a file by --store" in result.stderr


def test_Y1_the_option_beats_the_environment_and_that_beats_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    config('[store]\nurl = "sqlite:///file.db"\n')
    assert "file.db" in keephold("ps").stderr
    monkeypatch.setenv("KEEPHOLD_STORE", "sqlite:///environment.db")
    assert "environment.db" in keephold("ps").stderr
    assert "option.db" in keephold("ps", "--store", "sqlite:///option.db").stderr


def test_a_mistake_elsewhere_in_the_configuration_hides_no_handles() -> None:
    file = Path("keephold.toml")
    write_trusted(file, '[store]\nurl = "sqlite:///work.db"\n[conversation]\ndetatched = "deny"\n')
    assert file_of(None) == Path("work.db").absolute()
    write_trusted(file, '[store]\nulr = "sqlite:///work.db"\n')
    with pytest.raises(ConfigError, match="did you mean `url`"):
        _existing(None)


@pytest.mark.parametrize("command", LOOKING)
@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite:///typo.db", "there is no store `{here}/typo.db`; `keephold serve` makes one, or name another"),
        ("memory:", "seen by no process but its own"),
        ("postgresql://user:hunter2@host/db", "PostgreSQL"),
        ("nonsense", "not the URL of a store"),
    ],
)
def test_a_store_that_cannot_be_looked_at_is_refused_and_nothing_made(
    command: tuple[str, ...], url: str, told: str
) -> None:
    result = keephold(*command, "--store", url)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert told.format(here=Path.cwd()) in result.stderr
    assert "hunter2" not in result.stderr  # K5
    assert list(Path.cwd().iterdir()) == []


def test_Y1_what_is_wrong_is_said_of_what_it_came_by(monkeypatch: pytest.MonkeyPatch) -> None:
    assert keephold("ps", "--store", "nonsense").stderr.startswith(
        "Error: --store: that is not the URL of a store; use"
    )
    monkeypatch.setenv("KEEPHOLD_STORE", "nonsense")
    assert keephold("ps").stderr.startswith("Error: KEEPHOLD_STORE: that is not the URL of a store; use")


@pytest.mark.parametrize("command", LOOKING)
def test_a_file_that_is_no_store_is_left_as_it_is(command: tuple[str, ...]) -> None:
    Path("notes.txt").write_text("my notes")
    result = keephold(*command, "--store", "sqlite:///notes.txt")
    assert result.exit_code == 2
    assert "is not a SQLite database" in result.stderr
    assert [path.name for path in Path.cwd().iterdir()] == ["notes.txt"]
    assert Path("notes.txt").read_text() == "my notes"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("complete", "k"), "say how it ended, by one of --ok JSON, --error CODE MESSAGE, --timeout, --cancelled"),
        (("complete", "k", "--timeout", "--cancelled"), "say how it ended, by one of"),
        (("complete", "k", "--ok", "1", "--error", "c", "m"), "say how it ended, by one of"),
        (("complete", "k", "--error", "c"), "--error"),
        (("complete", "k", "--ok", "done"), "--ok takes JSON; a text needs quotes: --ok '\"done\"'"),
        (("complete", "k", "--ok", ""), "--ok takes JSON"),
        (("complete", "k", "--ok", "[" * 100_000), "--ok takes JSON"),
        (("complete", "--timeout"), "KEY"),
        (("wait",), "ID"),
        (("wait", "x", "--timeout", "-1"), "a number of seconds, 0 or more"),
        (("wait", "x", "--timeout", "nan"), "a number of seconds, 0 or more"),
        (("ps", "--state", "asleep"), "'parked'"),
        (("ps", "--limit", "0"), "--limit"),
        (("turn", "--resume"), "--resume needs --conversation"),
    ],
)
def test_wrong_usage_says_what_would_be_right(arguments: tuple[str, ...], told: str) -> None:
    result = keephold(*arguments)
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stdout == ""
