"""What the documentation shows works: its programs run, its sessions print what they say, its links lead somewhere."""

import ast
import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.docs.pages import PAGES, ROOT, Block, anchors, blocks, links, name, pictures
from tests.docs.sessions import Step, matches, run, steps
from tests.docs.typed import run_typed, typing
from tests.trusting import trusted

from keephold import KeepholdError
from keephold.config import load_config

TOOL = '[conversation.tools.fragment]\nsource = "local"\ncommand = ["true"]\n'
"""What a fragment of a tool's table is put under."""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where a page is tried. What it starts in the background ends with it, also if it fails before it says so."""
    yield tmp_path
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd() == str(tmp_path):
                process.kill()


@pytest.mark.timeout(300)  # of a page with many sessions; each command has a limit of its own
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_the_page_shows_works(page: Path, directory: Path) -> None:
    for block in blocks(page):
        try:
            show(block, directory)
        except Exception as error:
            raise AssertionError(f"{block.where}: {error}") from error


def show(block: Block, directory: Path) -> None:
    """Do with a block what a reader would."""
    if block.file is not None:
        (directory / block.file).write_text(block.text)
    if block.file == "keephold.toml" and (directory / "state" / "keephold" / "trusted.json").exists():
        trusted(directory / block.file, directory / "state")  # the page has shown `keephold trust`
    if block.language == "toml":
        load(block, directory)
    elif block.language == "python":
        ast.parse(block.text)
        if not block.mark:
            script = directory / "block.py"
            script.write_text(block.text)
            run([sys.executable, "-W", "error", str(script)], directory)
    elif block.language == "console":
        for step in steps(block.text):
            if block.mark.startswith("terminal: "):
                printed = run_typed(step.command, directory, typing(block.mark))
            else:
                printed = run(["sh", "-c", step.command], directory)
            if not matches(step.shown, printed):
                raise AssertionError(f"`{step.command}` printed\n{printed}\nand is shown with\n{step.shown}")
    elif block.language == "json":
        for line in block.text.splitlines():
            json.loads(line)


def load(block: Block, directory: Path) -> None:
    file = directory / (block.file or "block.toml")
    file.write_text(TOOL + block.text if block.mark == "fragment" else block.text)
    load_config(file)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_file_of_the_page_is_used(page: Path) -> None:
    """A file that no later block names would be shown and never tried; `keephold.toml` is found without a name."""
    shown = blocks(page)
    for at, block in enumerate(shown):
        if block.file is not None and block.language != "hidden":
            later = "\n".join(other.text for other in shown[at + 1 :])
            assert Path(block.file).stem in later, f"{block.where}: nothing below uses {block.file}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_sessions_and_languages_are_marked_as_such(page: Path) -> None:
    """A session in a `sh` block would not be run, and a block without a language not be looked at."""
    known = {"console", "hidden", "json", "python", "sh", "text", "toml"}
    for block in blocks(page):
        assert block.language in known, f"{block.where}: a block of language `{block.language}`; known are {known}"
        if block.language in ("sh", "text"):
            assert not block.text.startswith("$ "), f"{block.where}: a session is a `console` block, which is run"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), f"{name(page)}: {link} leads out of the project"
        assert target.is_file(), f"{name(page)}: {link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{name(page)}: there is no heading #{anchor} in {name(target)}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_pictures_are_there(page: Path) -> None:
    """The browser tests make them: `pytest tests/browser --update-pictures`."""
    assert [each for each in pictures(page) if not (page.parent / each).is_file()] == []


def test_every_page_is_linked_from_another() -> None:
    linked = {(page.parent / link.partition("#")[0]).resolve() for page in PAGES for link in links(page)}
    assert [name(page) for page in PAGES if page not in linked and page != ROOT / "README.md"] == []


# The checks themselves


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\n", "a", True),
        ("", "", True),
        ("a…c\n", "abbc\n", True),
        ("…\nb\n", "a\na\nb\n", True),
        ("…\nb\n", "b\n", True),
        ("a\n", "a\nb\n", False),
        ("a\nb\n", "a\n", False),
        ("", "a\n", False),
        ("a…c\n", "a\nc\n", False),
        ("a.c\n", "abc\n", False),
    ],
)
def test_the_comparison_finds_differences(shown: str, printed: str, same: bool) -> None:
    assert matches(shown, printed) is same


def test_a_session_is_read_step_by_step() -> None:
    session = "$ one\n1\n$ cat <<'EOF'\n$ text\nEOF\n$ text\n"
    assert steps(session) == [Step("one", "1\n"), Step("cat <<'EOF'\n$ text\nEOF", ""), Step("text", "")]


PAGE = """
# `Title` one

<!-- file: a.py -->
```python
x = 1
```

<!-- file: Makefile
all:
	true
-->
```console
$ make
```

## Title one
"""


def test_a_page_is_read_block_by_block(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    found = [(block.line, block.language, block.file, block.text) for block in blocks(page)]
    assert found == [
        (5, "python", "a.py", "x = 1\n"),
        (9, "hidden", "Makefile", "all:\n\ttrue\n"),
        (13, "console", None, "$ make\n"),
    ]
    assert anchors(page) == {"title-one", "title-one-1"}


@pytest.mark.parametrize(
    ("language", "text", "mark", "reason"),
    [
        ("python", "raise SystemExit(1)\n", "", "exit code 1"),
        ("python", "def\n", "signatures", "invalid syntax"),
        ("console", "$ echo a\nb\n", "", "`echo a` printed\na\n"),
        ("console", "$ read x && echo $x\nyes\nno\n", "terminal:  | yes\\r", "printed\nyes\nyes\n"),
        ("console", "$ true\n", "terminal: Sure? | y", "'Sure?' was not shown"),
        ("toml", "[conversation.tools.a]\n", "", "source: missing"),
        ("toml", "wrong = true\n", "fragment", "unknown key"),
        ("json", "{\n", "", "Expecting property name"),
    ],
)
def test_a_block_that_does_not_work_is_found(language: str, text: str, mark: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, KeepholdError, ValueError, SyntaxError), match=re.escape(reason)):
        show(Block(ROOT / "README.md", 1, language, text, mark), tmp_path)
