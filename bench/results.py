"""`bench/RESULTS.md`: what was measured last, a section for each kind of run. A run replaces its own and no other."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

FILE = Path(__file__).with_name("RESULTS.md")
TITLE = "# Results\n\nWritten by `make bench` and `make soak`; each run replaces its own section.\n"


def keep(heading: str, text: str, file: Path = FILE) -> None:
    """Put the text under `## heading`, in the place of what stood there, or at the end."""
    title, *sections = (file.read_text() if file.exists() else TITLE).split("\n## ")
    new = f"{heading}\n\n{text.strip()}\n"
    kept = [section for section in sections if section.partition("\n")[0] != heading]
    at = next((number for number, section in enumerate(sections) if section not in kept), len(sections))
    kept.insert(at, new)
    file.write_text("\n## ".join([title, *kept]))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, with columns that also line up in a terminal."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    shown = (" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(f"| {line} |" for line in shown)


def bullets(facts: Mapping[str, str]) -> str:
    return "\n".join(f"- {name}: {fact}" for name, fact in facts.items())
