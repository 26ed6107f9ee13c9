"""The pages of the documentation, read: their code blocks, links, headings and tables.

An HTML comment directly above a block says what is to be done with it:

- `<!-- file: NAME -->`: it is the file of that name, for the blocks below it. A comment that goes on after the name
  holds the file itself, which then is there for the tests and not shown.
- `<!-- terminal: SEEN | TYPED -->`: the session is run in a terminal, and so is typed when that is seen (`typed.py`).
- `<!-- fragment -->`: the TOML is lines of a tool's table, not a file.
- `<!-- signatures -->`: the Python is how public names are declared; `test_reference.py` compares it with the source.
- `<!-- foreign -->`: the Python needs a package that is not installed here; `tests/interop` runs the same.
- `<!-- handles -->`: the same for what a call sees of handles.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docs.site import slug

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^(```+)(\w*)[ \t]*\n(.*?)^\1[ \t]*$\n?", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"^<!--\s*(.*?)\s*-->[ \t]*\n?", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`[^`\n]*`")


@dataclass(frozen=True)
class Block:
    """A code block, or a file hidden in a comment (its language is then `hidden`)."""

    page: Path
    line: int
    language: str
    text: str
    mark: str = ""

    @property
    def where(self) -> str:
        return f"{name(self.page)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The name of the file it is."""
        return self.mark.removeprefix("file: ") if self.mark.startswith("file: ") else None


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, text: str | None = None) -> list[Block]:
    """The blocks of a page in order; `text` stands in for what the page holds."""
    text = page.read_text() if text is None else text
    found = [*_hidden(page, text), *_fenced(page, text)]
    return sorted(found, key=lambda block: block.line)


def _fenced(page: Path, text: str) -> Iterator[Block]:
    marks = {comment.end(): comment[1] for comment in _COMMENT.finditer(text) if "\n" not in comment[1]}
    for fence in _FENCE.finditer(text):
        yield Block(page, _line(text, fence.start()), fence[2], fence[3], marks.get(fence.start(), ""))


def _hidden(page: Path, text: str) -> Iterator[Block]:
    for comment in _COMMENT.finditer(text):
        mark, newline, content = comment[1].partition("\n")
        if newline and mark.startswith("file: "):
            yield Block(page, _line(text, comment.start()), "hidden", content + "\n", mark)


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def links(page: Path) -> list[str]:
    """Where its links lead, other sites excepted."""
    prose = _COMMENT.sub("", _FENCE.sub("", page.read_text()))
    targets = _LINK.findall(_CODE.sub("", prose))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def pictures(page: Path) -> list[str]:
    """Where its pictures are, by Markdown or by HTML."""
    return re.findall(r'(?:!\[[^\]]*\]\(|\bsrc(?:set)?=")([^)"\s]+)', page.read_text())


def anchors(page: Path) -> set[str]:
    """What may stand behind `#` in a link to the page, by GitHub's rules."""
    found: set[str] = set()
    for _, title in _HEADING.findall(_FENCE.sub("", page.read_text())):
        words = slug(title, "-")
        found.add(next(each for each in _numbered(words) if each not in found))
    return found


def _numbered(words: str) -> Iterator[str]:
    yield words
    count = 0
    while True:
        count += 1
        yield f"{words}-{count}"


def sections(page: Path) -> dict[str, str]:
    """Text by heading, backquotes taken off; the text of a heading goes up to the next one of any level."""
    text = page.read_text()
    fences = [range(*fence.span()) for fence in _FENCE.finditer(text)]
    heads = [head for head in _HEADING.finditer(text) if not any(head.start() in fence for fence in fences)]
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return {head[2].replace("`", ""): text[head.end() : end] for head, end in zip(heads, ends, strict=True)}


def rows(text: str) -> dict[str, list[str]]:
    """The tables in a text: the other cells of each row by its first one, which is code in backquotes."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and re.fullmatch(r"`[^`]+`", cells[0]):
            found[cells[0].strip("`")] = cells[1:]
    return found
