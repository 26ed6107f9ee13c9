"""The terminal prompter, key by key: what a person sees of each prompt, and what the runtime hears of them (P).

Questions are in `test_prompter_questions.py`, what happens to the terminal in `test_prompter_terminal.py`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.person import (
    CANCELLED,
    CTRL_C,
    CTRL_D,
    ENTER,
    ESCAPE,
    UP,
    Person,
    approved,
    deliver,
    denied,
    person,
    run,
)


@pytest.fixture
def somebody() -> Iterator[Person]:
    with person() as one:
        yield one


# May it run?


def test_P1_the_panel_says_what_would_run(somebody: Person) -> None:
    somebody.asked(run({"env": "prod", "hosts": ["a", "b"]}, action="spawn", id="d1", problem="`env` was wrong"))
    shown = somebody.sees("Run it?")
    assert shown.index("`env` was wrong") < shown.index("deploy") < shown.index("spawn, handle d1")
    for line in ('  "env": "prod",', '    "a",', '    "b"'):
        assert line in shown
    somebody.types("n")
    assert somebody.decides() == denied()


@pytest.mark.parametrize(
    ("keys", "decision"),
    [
        ("y", approved()),
        ("Y", approved(remember=True)),
        ("n", denied()),
        ("N", denied(remember=True)),
        ("rnot on a Friday\r", denied(reason="not on a Friday")),
        ("r\r", denied()),
        (CTRL_C, CANCELLED),
        (CTRL_D, CANCELLED),
        (ESCAPE, CANCELLED),
        ("rhm" + CTRL_C, CANCELLED),
    ],
)
def test_P5_one_key_decides(somebody: Person, keys: str, decision: dict[str, Any]) -> None:
    somebody.asked(run())
    somebody.sees("Run it?")
    somebody.types(keys)
    assert somebody.decides() == decision


def test_P5_no_other_key_does(somebody: Person) -> None:
    """Not Enter, not what is pasted, not a key with Alt, not the letters that an arrow key sends."""
    somebody.asked(run())
    somebody.sees("Run it?")
    somebody.types(f"{ENTER} x\t\x1b[200~y\x1b[201~\x1by\x1b[1;5y{UP}\x1bOy\x1b]11;rgb:y\x07\x00")
    somebody.types("?")
    assert "N  no, and to this tool until the turn ends" in somebody.sees("Run it?")
    somebody.types("n")
    assert somebody.decides() == denied()


def test_K4_nothing_in_the_arguments_acts_on_the_terminal_or_hides(somebody: Person) -> None:
    tricks = [
        "\x1b]0;title\x07",
        "\x1b[2J",
        "\x9b31m",
        "a\rb",
        "\u202etxt.exe",
        "\u200b",
        "[red]r[/red]",
        ":smile:",
        "\x7f",
    ]
    arguments = {"all": tricks, "".join(tricks): 1}
    somebody.asked(run(arguments, tool=f"de{''.join(tricks)}ploy", id=f"d{''.join(tricks)}", action="\x1b[2J"))
    shown = somebody.sees("Run it?")
    escaped = [r"\u001b]0;title\u0007", r"\u001b[2J", r"\u009b31m", r"a\rb", r"\u202etxt.exe", r"\u200b"]
    for text in (*escaped, "[red]r[/red]", ":smile:", r"\u007f"):
        assert f'│     "{text}"' in shown
    ours = shown.replace("\x1b[?2004h", "").replace("\r\n", "")
    assert all(character.isprintable() for character in ours), repr(ours)
    somebody.types("n")
    somebody.decides()


def test_O3_long_arguments_are_cut_with_a_count(somebody: Person) -> None:
    somebody.asked(run({"script": "a" * 1000 + "b" * 80, "hosts": list(range(100))}))
    shown = somebody.sees("Run it?").replace("│", " ")
    # `  "script": "` and the 1080 and `",` make 1095 characters.
    assert f"{1095 - 300 - 80} characters left out" in " ".join(shown.split())
    assert f"{'b' * 30}" in shown
    # The braces, the script, the two lines of the list and its 100 numbers make 105 lines.
    assert f"{105 - 30 - 10} lines left out" in " ".join(shown.split())
    assert " 99 " in shown
    assert " 60," not in shown
    somebody.types("n")
    somebody.decides()


# Editing what would run


def editor(directory: Path, *versions: str) -> str:
    """An editor that writes the next of these contents each time it is used; what it found stays beside it."""
    for number, version in enumerate(versions, start=1):
        (directory / f"{number}.new").write_text(version)
    script = directory / "editor.sh"
    script.write_text(
        f"cd '{directory}' && n=$(($(cat count 2>/dev/null || echo 0) + 1)) && echo $n >count && "
        'cat "$1" >$n.found && stat -c %a "$1" "${1%/*}" >modes && echo "$1" >path && cat $n.new >"$1"\n'
    )
    return f"sh '{script}'"


def test_P5_edited_arguments_are_shown_and_asked_for(tmp_path: Path) -> None:
    with person(EDITOR=editor(tmp_path, '{"env": "test"}')) as somebody:
        somebody.asked(run())
        somebody.sees("Run it?")
        somebody.types("e")
        shown = somebody.sees("Run it with these arguments? [y/n/N/r/e/v/?]")
        assert '"env": "test"' in shown
        somebody.types("Y")  # an approval of what was written cannot be one of what comes later
        somebody.types("y")
        assert somebody.decides() == {"type": "edited", "value": {"env": "test"}}
    assert (tmp_path / "1.found").read_text() == '{\n  "env": "prod"\n}\n'


def test_P5_unchanged_arguments_are_approved(tmp_path: Path) -> None:
    with person(EDITOR=editor(tmp_path, '{"b": [1.0, 2], "a": true}')) as somebody:
        somebody.asked(run({"a": True, "b": [1.0, 2]}))
        somebody.sees("Run it?")
        somebody.types("e")
        somebody.sees("Run it?")
        somebody.types("Y")
        assert somebody.decides() == approved(remember=True)


def test_P5_a_change_of_type_alone_is_a_change(tmp_path: Path) -> None:
    with person(EDITOR=editor(tmp_path, '{"a": 1}')) as somebody:
        somebody.asked(run({"a": True}))
        somebody.sees("Run it?")
        somebody.types("e")
        somebody.sees("Run it with these arguments?")
        somebody.types("y")
        assert somebody.decides() == {"type": "edited", "value": {"a": 1}}


def test_P1_edit_opens_the_editor_at_once(tmp_path: Path) -> None:
    with person(VISUAL=editor(tmp_path, '{"env": "test"}'), EDITOR="false") as somebody:
        somebody.asked(run(edit=True))
        assert "prod" not in somebody.sees("Run it with these arguments?")
        somebody.types("n")
        assert somebody.decides() == denied()


def test_P5_a_problem_is_read_before_the_editor_covers_it(tmp_path: Path) -> None:
    with person(EDITOR=editor(tmp_path, '{"env": "test"}')) as somebody:
        somebody.asked(run(edit=True, problem="`env` must be a string"))
        assert "`env` must be a string" in somebody.sees("Edit again?")
        assert not (tmp_path / "count").exists()
        somebody.types("y")
        somebody.sees("Run it with these arguments?")
        somebody.types("y")
        assert somebody.decides() == {"type": "edited", "value": {"env": "test"}}


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ('{"env": "test",}', "line 1 column 16"),
        ("", "line 1 column 1"),
        ('["test"]', "must be a JSON object"),
        ('{"env": NaN}', "NaN is not JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_P5_what_is_no_arguments_may_be_edited_again(tmp_path: Path, written: str, why: str) -> None:
    with person(EDITOR=editor(tmp_path, written, '{"env": "test"}')) as somebody:
        somebody.asked(run())
        somebody.sees("Run it?")
        somebody.types("e")
        assert why in " ".join(somebody.sees("Edit again?").split())
        somebody.types("y")
        somebody.sees("Run it with these arguments?")
        somebody.types("y")
        assert somebody.decides() == {"type": "edited", "value": {"env": "test"}}
    assert (tmp_path / "2.found").read_text() == written


def test_P5_a_bad_edit_can_be_given_up(tmp_path: Path) -> None:
    with person(EDITOR=editor(tmp_path, "{")) as somebody:
        somebody.asked(run())
        somebody.sees("Run it?")
        somebody.types("e")
        somebody.sees("Edit again?")
        somebody.types("n")
        assert '"env": "prod"' in somebody.sees("Run it?")
        somebody.types("y")
        assert somebody.decides() == approved()


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("sh -c 'exit 3'", "`sh` ended with exit code 3"),
        ("sh -c 'kill -9 $$'", "`sh` ended by signal 9"),
        ("no-such-editor -x", "`no-such-editor` cannot be started: No such file or directory"),
        ("vi 'half", "$EDITOR cannot be read: No closing quotation"),
        ("rm", "The edited text cannot be read"),
        ("sh -c 'printf \"\\377\" >$0'", "The edited text cannot be read"),
    ],
)
def test_P5_an_editor_that_fails_changes_nothing(command: str, why: str) -> None:
    with person(EDITOR=command) as somebody:
        somebody.asked(run())
        somebody.sees("Run it?")
        somebody.types("e")
        assert why in somebody.sees("Run it?")
        somebody.types("y")
        assert somebody.decides() == approved()


def test_P5_no_editor_at_all(tmp_path: Path) -> None:
    with person(PATH=str(tmp_path)) as somebody:
        somebody.asked(run(edit=True))
        assert "(editor, nano, vi): set EDITOR to one" in somebody.sees("Run it?")
        somebody.types("n")
        assert somebody.decides() == denied()


def test_K5_the_file_is_private_and_goes(tmp_path: Path) -> None:
    with person(EDITOR=editor(tmp_path, "{}"), TMPDIR=str(tmp_path)) as somebody:
        somebody.asked(run())
        somebody.sees("Run it?")
        somebody.types("e")
        somebody.sees("Run it with these arguments?")
        assert (tmp_path / "modes").read_text().split()[-1] == "700"  # nobody else gets at what is inside
        path = Path((tmp_path / "path").read_text().strip())
        assert path.parent.parent == tmp_path
        assert not path.parent.exists()
        somebody.types("n")
        somebody.decides()


# May the result be seen?


@pytest.mark.parametrize(
    ("keys", "decision"), [("y", approved()), ("n", denied()), (CTRL_C, CANCELLED), (ESCAPE, CANCELLED)]
)
def test_P1_a_result_is_shown_before_the_assistant_sees_it(
    somebody: Person, keys: str, decision: dict[str, Any]
) -> None:
    somebody.asked(deliver("all \x1b[31mgood\x1b[0m\nreally"))
    shown = somebody.sees("May the model see it?")
    assert "Result of build b" in shown
    assert "│ all <U+001B>[31mgood<U+001B>[0m " in shown
    assert "│ really " in shown
    somebody.types(keys)
    assert somebody.decides() == decision


def test_P1_an_error_is_said_to_be_one(somebody: Person) -> None:
    somebody.asked(deliver("it broke", is_error=True, id=None))
    assert "Error of build " in somebody.sees("May the model see it?")
    somebody.types("YNr")  # not offered here
    somebody.types("n")
    assert somebody.decides() == denied()


def test_P1_a_long_result_has_a_head_and_a_tail_and_can_be_viewed(tmp_path: Path) -> None:
    result = "\n".join(f"line {number} \x1b[5m" for number in range(1000))
    with person(PAGER=f"sh -c 'cp $0 {tmp_path}/viewed; stty size; read x'") as somebody:
        somebody.asked(deliver(result))
        shown = somebody.sees("May the model see it?")
        assert "… 960 lines left out: v shows all …" in shown
        assert "│ line 29 " in shown
        assert "│ line 30 " not in shown
        assert "│ line 989 " not in shown
        assert "│ line 990 " in shown
        somebody.types("y")
        somebody.sees("Not all of it is on the screen (6 of its rows have scrolled away): press v to view all of it")
        somebody.sees("May the model see it?")
        somebody.types("v")
        somebody.sees("40 80")  # the pager has the terminal
        somebody.types("\n")
        somebody.sees("May the model see it?")
        somebody.types("y")
        assert somebody.decides() == approved()
    assert (tmp_path / "viewed").read_text() == result.replace("\x1b", "<U+001B>")


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(("before", "written", "value"), [("a\x1bb", "c\n", "c"), ("a\n", "c\n", "c\n"), ("a", "", "")])
def test_P5_a_result_can_be_edited(tmp_path: Path, before: str, written: str, value: str, at_once: bool) -> None:
    with person(EDITOR=editor(tmp_path, written)) as somebody:
        somebody.asked(deliver(before, edit=at_once))
        if not at_once:
            somebody.sees("May the model see it?")
            somebody.types("e")
        somebody.sees("May the model see it?")
        somebody.types("y")
        assert somebody.decides() == {"type": "edited", "value": value}
    assert (tmp_path / "1.found").read_text() == before.replace("\x1b", "<U+001B>")


def test_P5_a_result_that_only_got_a_newline_is_approved(tmp_path: Path) -> None:
    with person(EDITOR=editor(tmp_path, "fine\n")) as somebody:
        somebody.asked(deliver("fine", edit=True))
        somebody.sees("May the model see it?")
        somebody.types("y")
        assert somebody.decides() == approved()
