"""Builds the documentation as a site: `make site` runs it, with the packages of `requirements/site.txt`.

The pages are those of the repository. Their copies differ in two ways: files that they link to outside `docs/` are
beside them, and comments for tests are removed. Programs get `llms.txt`, and each page as Markdown beside its HTML. The
build fails if a link leads nowhere, or if a page would load something from another host.
"""

import os
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "zensical.toml"
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"
BESIDE = ("CHANGELOG.md", "bench/RESULTS.md")
"""Pages that are not below `docs/`."""
A_TO_Z = "a-z.md"
"""The page that is made from the headings of others."""

_COMMENT = re.compile(r"^<!--.*?-->[ \t]*\n?", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^##+ (.+)$", re.MULTILINE)
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]*`)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()([^)\s:#]+)")
_LOADED = re.compile(
    r"""(?:\b(?:src|srcset|poster|data)=["']?|<link\b[^>]*\bhref=["']?|url\(["']?|@import ["'])"""
    r"""((?:https?:)?//[^"'\s)>]+)"""
)


def main() -> int:
    """Build the site."""
    stage()
    build = [str(Path(sys.executable).with_name("zensical")), "build", "--clean", "--strict", "-f", str(CONFIG)]
    built = subprocess.run(build, env=os.environ | {"PYTHONPATH": str(ROOT)})
    if built.returncode:
        return built.returncode
    for path in paths():
        shutil.copy(PAGES / path, SITE / path)
    found = [
        f"{file.relative_to(SITE)} loads {address}" for file in sorted(SITE.rglob("*")) for address in loaded(file)
    ]
    print("\n".join(found) or f"To read it: python3 -m http.server -d {SITE.relative_to(ROOT)}", file=sys.stderr)
    return bool(found)


def stage() -> None:
    """Copy everything that the site is built from."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    shutil.copytree(ROOT / "examples", PAGES / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for path in paths():
        (PAGES / path).parent.mkdir(exist_ok=True)
        (PAGES / path).write_text(moved(path))
    (PAGES / "llms.txt").write_text(llms())


# Navigation


def sections() -> dict[str, list[str]]:
    """The pages of the site in the order of its navigation, by the headings above them."""
    found: dict[str, list[str]] = {}
    for heading, path in _leaves("", tomllib.loads(CONFIG.read_text())["project"]["nav"]):
        found.setdefault(heading, []).append(path)
    return found


def _leaves(above: str, entries: list[str | dict[str, object]]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        for title, below in entry.items() if isinstance(entry, dict) else [("", entry)]:
            if isinstance(below, list):
                yield from _leaves(f"{above}: {title}" if above else title, below)
            else:
                yield above, str(below)


def paths() -> list[str]:
    return [path for below in sections().values() for path in below]


# Pages


def source(path: str) -> str:
    """The page's path in the repository."""
    return path if path in BESIDE else f"docs/{path}"


def moved(path: str) -> str:
    """The page as it is on the site, where `docs/` is the root."""
    if path == A_TO_Z:
        return a_to_z()

    def fit(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source(path)), link[0]))
        return posixpath.relpath(target.removeprefix("docs/"), posixpath.dirname(path) or ".")

    prose = _CODE.split(_COMMENT.sub("", (ROOT / source(path)).read_text()))
    return "".join(_LINK.sub(fit, part) if not part.startswith("`") else part for part in prose)


def a_to_z() -> str:
    """Every command, setting, name and term that has a heading, in the order of the alphabet."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in paths():
        if path.startswith("reference/") or path == "glossary.md":
            page = described(path)[0]
            for title in _HEADING.findall(_CODE.sub(_inline, moved(path))):
                if title.startswith("`") or path == "glossary.md":
                    named = title.replace("`", "").strip("[]")
                    entry = f"[{title}]({path}#{slug(title, '-')}), {page}"
                    found.setdefault(named[0].upper(), []).append((named.lower(), entry))
    lines = ["# Index", "", "Commands, settings, Python names, operations and terms from A to Z."]
    for letter, entries in sorted(found.items()):
        lines += ["", f"## {letter}", ""]
        lines += [f"- {entry}" for _, entry in sorted(entries)]
    return "\n".join([*lines, ""])


def _inline(code: re.Match[str]) -> str:
    return "" if code[0].startswith("```") else code[0]


def slug(title: str, separator: str) -> str:
    """The anchor of a heading, by GitHub's rules, for which links are written."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", separator)


def slugs() -> Callable[[str, str], str]:
    return slug


def llms() -> str:
    """The index for programs that read the site: each page as Markdown, with its first sentence."""
    _, summary = described("index.md")
    lines = ["# keephold", "", f"> {summary}", ""]
    for heading, below in sections().items():
        lines += [f"## {heading}", ""]
        lines += [f"- [{title}]({path}): {text}" for path in below for title, text in [described(path)]]
        lines.append("")
    return "\n".join(lines)


def described(path: str) -> tuple[str, str]:
    """The title of a page and its first sentence, without markup."""
    title, _, rest = moved(path).partition("\n")
    paragraph = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", rest.strip().partition("\n\n")[0])
    plain = " ".join(re.sub(r"[*`]", "", paragraph).split())
    return title.removeprefix("# ").replace("`", ""), re.split(r"(?<=\.)\s", plain)[0]


def loaded(file: Path) -> list[str]:
    """The addresses from which a browser that shows the file would load something."""
    return _LOADED.findall(file.read_text()) if file.suffix in (".html", ".css", ".svg") else []


if __name__ == "__main__":
    raise SystemExit(main())
