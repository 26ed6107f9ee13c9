"""What the terminal prompter does to the terminal: nothing that lasts, and nothing that holds up the rest (Q5)."""

import contextlib
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import psutil
import pytest
from tests.e2e.driver import until
from tests.e2e.person import CANCELLED, CTRL_C, ENTER, ESCAPE, LEFT, Person, approved, ask, denied, person, run, said

GONE = {"type": "cancelled", "reason": "the terminal went away"}


def goes_on(somebody: Person, count: int = 3) -> None:
    """The program's other task runs on."""
    before = somebody.ticks()
    until(lambda: somebody.ticks() >= before + count)


# Taken and put back


@pytest.mark.parametrize("key", ["y", CTRL_C, ESCAPE])
def test_Q5_the_terminal_is_taken_for_a_prompt_and_put_back(key: str) -> None:
    with person() as somebody:
        before = somebody.modes
        somebody.asked(run())
        somebody.sees("Run it?")
        assert not somebody.modes[3] & (termios.ICANON | termios.ECHO | termios.ISIG)
        somebody.types(key)
        somebody.decides()
        assert somebody.modes == before
        assert somebody.leaves() == 0


def test_Q5_ctrl_c_cancels_the_prompt_and_not_the_process() -> None:
    with person() as somebody:
        for _ in range(3):
            somebody.asked(run())
            somebody.sees("Run it?")
            somebody.types(CTRL_C + "\x1a\x1c")  # those that stop and quit are keys as well
            assert somebody.decides() == CANCELLED
        assert somebody.leaves() == 0


def test_Q5_everything_else_keeps_running() -> None:
    with person() as somebody:
        somebody.asked(run())
        somebody.sees("Run it?")
        goes_on(somebody)
        somebody.types("y")
        assert somebody.decides() == approved()


def test_Q5_a_terminal_that_takes_nothing_holds_up_nobody() -> None:
    """More is shown than the terminal takes while nobody reads it; keys count only once it is all there."""
    with person() as somebody:
        somebody.asked(ask("Boolean", text="\n".join("x" * 70 for _ in range(2000))))
        with somebody.looking_away():
            goes_on(somebody)
        somebody.types("y")
        somebody.sees("Yes or no?")
        goes_on(somebody)  # it knows that everything was taken
        somebody.types("n")
        assert somebody.decides() == said(False)


def test_P5_type_ahead_is_thrown_away() -> None:
    with person() as somebody:
        for keys in ("y", "y\n", "yyyy"):
            somebody.types(keys)
            somebody.sees("y")  # the terminal's own echo: it has arrived
            somebody.asked(run())
            somebody.sees("Run it?")
            goes_on(somebody)
            somebody.types("n")
            assert somebody.decides() == denied()


def test_P5_keys_left_over_from_one_prompt_do_not_answer_the_next() -> None:
    with person() as somebody:
        somebody.asked(run())
        somebody.sees("Run it?")
        somebody.types("yyy")
        assert somebody.decides() == approved()
        somebody.asked(run())
        somebody.sees("Run it?")
        goes_on(somebody)
        somebody.types("n")
        assert somebody.decides() == denied()


@pytest.mark.parametrize("secret", [False, True])
def test_P5_a_withdrawn_prompt_says_so_and_the_next_is_shown(secret: bool) -> None:
    with person() as somebody:
        before = somebody.modes
        somebody.asked(ask("Text", secret=secret))
        somebody.sees("> ")
        somebody.types("half a w")
        goes_on(somebody)
        somebody.order(withdraw=True)
        assert somebody.hears() == {"withdrawn": True}
        somebody.sees("\r\nWithdrawn: nobody needs the answer any more.\r\n")
        assert somebody.modes == before
        somebody.asked(ask("Text"))
        somebody.sees("> ")
        somebody.types("whole" + ENTER)
        assert somebody.decides() == said("whole")
        assert ("half" in somebody.text) is not secret


def test_Q5_closing_in_the_middle_puts_the_terminal_back() -> None:
    with person() as somebody:
        before = somebody.modes
        somebody.asked(run())
        somebody.sees("Run it?")
        somebody.order(close=True)
        assert somebody.hears() == {"closed": True}
        assert somebody.modes == before
        assert somebody.decides() == GONE
        somebody.order(prompt=run())
        assert somebody.decides() == GONE
        assert somebody.leaves() == 0


def test_Q5_a_prompt_of_a_job_in_the_background_is_withdrawn_without_its_terminal() -> None:
    """The shell has it. Whoever set its modes from there would be stopped for it, and spoil what the shell has set."""
    with person(shell='set -m; "$@"; stty -echo </dev/tty; echo MINE >&2; bg >&2; wait') as somebody:
        somebody.asked(run())
        somebody.sees("Run it?")
        os.kill(somebody.pid, signal.SIGSTOP)
        somebody.sees("MINE")
        goes_on(somebody)
        taken = somebody.modes
        somebody.order(withdraw=True)
        assert somebody.hears() == {"withdrawn": True}
        assert somebody.modes == taken
        assert somebody.leaves() == 0


# Terminals


def test_Q5_a_terminal_that_goes_away_cancels() -> None:
    with person() as somebody:
        somebody.asked(run())
        somebody.sees("Run it?")
        somebody.hangs_up()
        assert somebody.decides() == GONE
        somebody.order(prompt=run())
        assert somebody.decides() == GONE
        somebody.order(prompt=run(edit=True))
        assert somebody.decides() == GONE
        assert somebody.leaves() == 0


def test_Q5_a_terminal_that_goes_away_between_prompts_cancels_the_next() -> None:
    with person() as somebody:
        somebody.hangs_up()
        somebody.order(prompt=run())
        assert somebody.decides() == GONE
        assert somebody.leaves() == 0


def test_Q5_a_resized_terminal_goes_on() -> None:
    with person() as somebody:
        somebody.asked(ask("Text"))
        somebody.sees("> ")
        somebody.types("0123456789" * 5)
        somebody.sees("0123456789" * 5)
        for columns in (12, 1, 4, 0, 200):
            somebody.resize(24, columns)
            somebody.types(f"a{LEFT}b")
            goes_on(somebody)
        somebody.types(ENTER)
        assert somebody.decides() == said("0123456789" * 5 + "bbbbb" + "aaaaa")
        somebody.resize(30, 2)
        somebody.asked(run())
        somebody.sees("Run it?")
        somebody.types("y")
        assert somebody.decides() == approved()


def test_Q5_bytes_that_are_no_text_do_no_harm() -> None:
    with person() as somebody:
        somebody.asked(run())
        somebody.sees("Run it?")
        somebody.types(b"\xff\xfe\xc3\x28\x80\xe2\x28\xa1\x9b\x00\xf0\x28")
        somebody.types("n")
        assert somebody.decides() == denied()
        somebody.asked(ask("Text"))
        somebody.sees("> ")
        somebody.types(b"a\xffb\xc3")
        somebody.types(b"\xa4\r")  # the second half of a character
        assert somebody.decides() == said("a\ufffdbä")


def test_Q1_an_arrow_key_may_come_in_pieces() -> None:
    """A line that is slow by less than a moment: the escape is not taken for the key."""
    with person() as somebody:
        somebody.asked(ask("Text"))
        somebody.sees("> ")
        somebody.types("ac\x1b[")
        goes_on(somebody)
        somebody.types("Db" + ENTER)
        assert somebody.decides() == said("abc")


@pytest.mark.parametrize(
    ("environment", "coloured", "ascii_only"),
    [({"NO_COLOR": ""}, True, False), ({}, False, False), ({"NO_COLOR": "", "TERM": "dumb"}, False, True)],
)
def test_K4_colours_only_where_they_are_wanted(environment: dict[str, str], coloured: bool, ascii_only: bool) -> None:
    with person(**environment) as somebody:
        somebody.asked(run())
        shown = somebody.sees("Run it?")
        assert ("\x1b[1" in shown) is coloured
        assert ("\x1b" not in shown) is ascii_only
        assert ("+-" in shown) is ascii_only
        somebody.types("r")
        somebody.types(f"ac{LEFT}b{ENTER}")
        assert somebody.decides() == denied(reason="abc")
        assert somebody.leaves() == 0
        assert ("\x1b" not in somebody.text) is ascii_only


# Programs that borrow it


def editor(directory: Path, body: str) -> str:
    """An editor that does as the body says."""
    script = directory / "editor.sh"
    script.write_text(body + "\n")
    return f"sh {script}"


READS_A_LINE = 'echo READY; read line; printf "{\\"said\\": \\"$line\\"}" >"$1"'


def opened(somebody: Person) -> None:
    somebody.asked(run(edit=True))
    somebody.sees("READY")


def test_P5_the_editor_has_the_terminal_as_it_was(tmp_path: Path) -> None:
    with person(EDITOR=editor(tmp_path, READS_A_LINE)) as somebody:
        before = somebody.modes
        opened(somebody)
        assert somebody.modes == before
        assert somebody.foreground != somebody.pid
        goes_on(somebody)
        somebody.types("hello\n")
        somebody.sees("Run it with these arguments?")
        assert somebody.foreground == somebody.pid
        assert not somebody.modes[3] & termios.ICANON
        somebody.types("y")
        assert somebody.decides() == {"type": "edited", "value": {"said": "hello"}}
        assert somebody.modes == before


def test_P5_what_was_typed_before_does_not_reach_the_editor(tmp_path: Path) -> None:
    with person(EDITOR=editor(tmp_path, READS_A_LINE)) as somebody:
        somebody.types("too early\n")
        somebody.sees("too early")
        opened(somebody)
        somebody.types("in time\n")
        somebody.sees("Run it with these arguments?")
        somebody.types("y")
        assert somebody.decides() == {"type": "edited", "value": {"said": "in time"}}


def test_P5_keys_of_job_control_reach_the_editor_alone(tmp_path: Path) -> None:
    """Ctrl-C interrupts it, Ctrl-\\ quits it, and Ctrl-Z, for which there is no shell here, stops it for no time."""
    body = "trap 'echo INTERRUPTED' INT; echo READY; while :; do read line || continue; echo \"GOT $line\"; done"
    with person(EDITOR=editor(tmp_path, body)) as somebody:
        opened(somebody)
        somebody.types(CTRL_C)
        somebody.sees("INTERRUPTED")
        somebody.types("\x1a")
        somebody.sees("^Z")
        somebody.types("more\n")
        somebody.sees("GOT more")
        somebody.types("\x1c")
        assert "`sh` ended by signal 3" in somebody.sees("Run it?")
        somebody.types("y")
        assert somebody.decides() == approved()
        assert somebody.leaves() == 0


def test_P5_the_editor_may_do_as_it_likes_from_its_first_moment(tmp_path: Path) -> None:
    """A program that sets modes is stopped for it unless it is the foreground job. Those it leaves do not stay."""
    with person(EDITOR=editor(tmp_path, "stty -echo; echo QUIET; stty raw; exit 0")) as somebody:
        before = somebody.modes
        for _ in range(5):
            somebody.asked(run(edit=True))
            somebody.sees("QUIET")
            somebody.sees("Run it?")
            somebody.types("y")
            assert somebody.decides() == approved()
            assert somebody.modes == before  # not those the editor left


def members(group: int) -> list[psutil.Process]:
    """The processes of a group. A zombie has ended, even if nobody has reaped it yet."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.mark.parametrize(
    ("body", "cleans_up"),
    [
        ("echo READY; sleep 1000", False),
        ("trap 'echo CLEANED; exit 1' TERM; echo READY; while :; do read line; done", True),
        ("kill -STOP $$; echo READY; sleep 1000", False),
        ("trap '' TERM; echo READY; sleep 1000", False),
    ],
    ids=["one that dies of it", "one that cleans up", "one that stopped itself", "one that will not hear"],
)
def test_P5_a_withdrawn_prompt_ends_the_editor(tmp_path: Path, body: str, cleans_up: bool) -> None:
    with person(EDITOR=editor(tmp_path, body), TMPDIR=str(tmp_path)) as somebody:
        before = somebody.modes
        opened(somebody)
        borrower = somebody.foreground
        somebody.order(withdraw=True)
        assert somebody.hears() == {"withdrawn": True}
        shown = somebody.sees("Withdrawn")
        assert ("CLEANED" in shown) is cleans_up
        assert ("\x1b[?1049l" in shown) is not cleans_up
        until(lambda: not members(borrower), what=lambda: str(members(borrower)))
        assert list(tmp_path.glob("keephold-*")) == []
        assert somebody.foreground == somebody.pid
        assert somebody.modes == before
        assert somebody.leaves() == 0


# Where nobody can be asked


ASK = "from keephold.cli.prompter import open_prompter; raise SystemExit(10 if open_prompter() is None else 11)"


def test_P2_without_a_terminal_nobody_is_asked() -> None:
    run_ = subprocess.run([sys.executable, "-c", ASK], start_new_session=True, stderr=subprocess.PIPE)
    assert (run_.returncode, run_.stderr) == (10, b"")


@pytest.mark.parametrize(
    ("shell", "code"),
    [
        ("{ask}", 11),
        ("{ask} 2>/dev/null", 10),
        ("setsid -w {ask}", 10),  # standard error is a terminal, but not one that is theirs
        ("set -m; {ask} & wait $!", 10),  # a background job
    ],
)
def test_P2_who_can_be_asked(shell: str, code: int) -> None:
    master, slave = os.openpty()
    name = os.ttyname(slave)
    os.close(slave)
    pid = os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", shell.format(ask=f"{sys.executable} -c '{ASK}'") + "; exit $?"],
        os.environ,
        setsid=True,
        file_actions=[(os.POSIX_SPAWN_OPEN, fd, name, os.O_RDWR, 0) for fd in (0, 1, 2)],
    )
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code
    finally:
        os.close(master)


@pytest.mark.cold
def test_importing_the_prompter_does_not_import_rich() -> None:
    program = "import sys, keephold.cli.prompter; print('rich' in sys.modules)"
    run_ = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run_.stdout == "False\n"
