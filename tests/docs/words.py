"""Finds words and sentence openings that the project does not use, in everything a person reads.

`python -m tests.docs.words [PATH …]` prints each one with its file and line. `test_words.py` fails if there is any. It
reads Markdown without code, docstrings, comments, all strings that have a space (errors, help, what a model reads),
HTML templates, the starter configuration, and the comments of SQL, JavaScript, CSS and the Makefile.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
READ = ("README.md", "CHANGELOG.md", "Makefile", "docs", "src", "examples")

_OPENING = re.compile(
    r"(?:^|[.!?:|]\s+|^\s*[-*]\s+|\n\s*\n\s*)(What|Whoever|Whatever|Of an?|Of the)\s[^.?!|]*[.!|:]?", re.M
)
_BANNED = {
    "news": r"\bnews\b",
    "whoever, whatever": r"\b(?:whoever|whatever|whomever|whosever)\b",
    "go on (continue, resume)": r"\b(?:go|goes|gone|going|went) on\b",
    "let go of (release, delete, detach, evict)": r"\b(?:let|lets|letting) go\b",
    "goes before": r"\bgo(?:es)? before\b",
    "anew (again)": r"\banew\b",
    "for ever (forever, indefinitely)": r"\bfor ever\b",
    "so many": r"\bso many\b",
    "is told": r"\b(?:is|are|was|were|be) told\b",
    "a word": r"\ba word\b",
    "a place": r"\ba place\b",
    "look on": r"\blook(?:s|ing)? on\b",
    "stand before": r"\bst(?:and|ands|ood) before\b",
    "is no (is not a)": r"(?<!there )\b(?:is|are|was|were) no (?!longer|more|one\b|\d)[a-z]",
    "is none": r"\bthat (?:is|are) none\b",
}
_PATTERNS = {name: re.compile(pattern, re.I) for name, pattern in _BANNED.items()}


class Text(NamedTuple):
    """A piece of prose: where its first line is, and whether its sentences are checked for their openings."""

    path: Path
    line: int
    words: str


class Finding(NamedTuple):
    path: Path
    line: int
    rule: str
    excerpt: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.rule}: {self.excerpt}"


def files(*paths: str) -> Iterator[Path]:
    """The files below these paths that hold prose."""
    for name in paths or READ:
        path = ROOT / name
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        yield from (each for each in found if (each.suffix or each.name) in _READERS)


def texts(path: Path) -> Iterator[Text]:
    """The prose of a file."""
    return _READERS[path.suffix or path.name](path)


def findings(path: Path) -> Iterator[Finding]:
    """Every banned word and opening of a file."""
    for text in texts(path):
        prose = _without_code(text.words)
        for rule, pattern in _PATTERNS.items():
            for found in pattern.finditer(prose):
                yield _finding(text, rule, prose, found.start())
        for found in _OPENING.finditer(prose):
            if not prose[found.start() : found.end() + 1].rstrip().endswith("?"):
                yield _finding(text, f"a sentence opens with `{found[1]}`", prose, found.start(1))


def _finding(text: Text, rule: str, prose: str, at: int) -> Finding:
    excerpt = " ".join(prose[max(0, at - 20) : at + 60].split())
    return Finding(text.path, text.line + prose.count("\n", 0, at), rule, excerpt)


def _without_code(words: str) -> str:
    """The same text, as long as before, with fenced and inline code blanked."""
    words = re.sub(r"^( *)```.*?^ *```", lambda found: re.sub(r"[^\n]", " ", found[0]), words, flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`", lambda found: "x" * len(found[0]), words)


def _markdown(path: Path) -> Iterator[Text]:
    yield Text(path, 1, path.read_text())


def _python(path: Path) -> Iterator[Text]:
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(value=str(words)) if " " in words.strip():
                yield Text(path, node.lineno, words)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(path, token.start[0], token.string.lstrip("# "))


def _html(path: Path) -> Iterator[Text]:
    blank = re.compile(r"\{%.*?%\}|\{\{.*?\}\}|<[^>]*>", re.S)
    yield Text(path, 1, blank.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), path.read_text()))


def _comments(path: Path) -> Iterator[Text]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = re.search(r"(?:--|#)\s(.*)", line)
        if found:
            yield Text(path, number, found[1])


def _scripts(path: Path) -> Iterator[Text]:
    source = path.read_text()
    for found in re.finditer(r"/\*([\s\S]*?)\*/|(?:^|\s)//\s(.*)", source, re.M):
        yield Text(path, source.count("\n", 0, found.start()) + 1, found[1] or found[2] or "")


_READERS = {
    ".md": _markdown, ".py": _python, ".html": _html, ".sql": _comments, ".toml": _comments, "Makefile": _comments,
    ".js": _scripts, ".css": _scripts,
}  # fmt: skip


def main() -> int:
    found = [each for path in files(*sys.argv[1:]) for each in findings(path)]
    for each in found:
        print(each)
    words = sum(len(text.words.split()) for path in files(*sys.argv[1:]) for text in texts(path))
    print(f"{len(found)} in {words} words")
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
