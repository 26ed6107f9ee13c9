"""The documentation as a site (`docs/site.py`): its navigation has every page, and nothing comes from another host."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.docs.pages import PAGES, ROOT, anchors, name

from docs import site

SOAK = pytest.mark.skipif(not os.environ.get("KEEPHOLD_SOAK"), reason="installs the packages that build the site")


def test_every_page_is_in_the_navigation_once() -> None:
    wanted = {name(page) for page in PAGES} - {"README.md"}
    listed = [site.source(path) for path in site.paths() if path != site.A_TO_Z]
    assert sorted(listed) == sorted(wanted | {"bench/RESULTS.md"}), "the navigation is `nav` in zensical.toml"


@pytest.mark.parametrize("path", site.paths())
def test_links_of_the_moved_page_lead_to_what_they_led_to(path: str) -> None:
    """Links that leave `docs/` lead to pages and examples that are copied beside it."""
    copied = {*site.paths()}
    for link in re.findall(r"(?<!!)\]\(([^)\s:#]+)[)#]", site.moved(path)):
        target = os.path.normpath(Path(path).parent / link)
        assert target in copied or re.match("examples/|pictures/", target), f"{path}: {link} is not on the site"


def test_the_index_leads_to_headings() -> None:
    entries = re.findall(r"^- \[(.+)\]\(([^#]+)#([^)]+)\), .+$", site.a_to_z(), re.M)
    assert {"`Runtime`", "`keephold serve`", "Handle", "`[conversation.tools.<name>]`"} <= {
        title for title, _, _ in entries
    }
    wrong = [each for each in entries if each[2] not in anchors(ROOT / site.source(each[1]))]
    assert wrong == []


def test_llms_txt_describes_every_page() -> None:
    lines = site.llms().splitlines()
    assert lines[0] == "# keephold"
    assert lines[2].startswith("> keephold ")
    entries = [re.fullmatch(r"- \[([^\]]+)\]\(([^)]+)\): (\S.{14,})", line) for line in lines if line.startswith("- ")]
    assert [entry[2] if entry else None for entry in entries] == site.paths()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('<script src="https://unpkg.com/x"></script>', ["https://unpkg.com/x"]),
        ('<link rel="preconnect" href="//fonts.gstatic.com" crossorigin>', ["//fonts.gstatic.com"]),
        ("@font-face { src: url(https://fonts.gstatic.com/a.woff) }", ["https://fonts.gstatic.com/a.woff"]),
        ('<img srcset="http://example.org/a.png">', ["http://example.org/a.png"]),
        ('<a href="https://example.org">link</a> <img src="a.png"> <svg xmlns="http://www.w3.org/2000/svg">', []),
    ],
)
def test_what_a_page_would_load_from_another_host_is_found(text: str, found: list[str], tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(text)
    assert site.loaded(tmp_path / "page.html") == found


@SOAK
@pytest.mark.timeout(900)
def test_the_site_is_built() -> None:
    """Strictly: links and anchors are right. Without addresses: the build fails if a page loads from another host."""
    subprocess.run(["make", "site"], cwd=ROOT, check=True)
    assert "site_url" not in site.CONFIG.read_text()
    assert {path.name for path in site.SITE.iterdir()} >= {"index.html", "index.md", "llms.txt", "search.json"}
    assert [f"{file.name}: {each}" for file in site.SITE.rglob("*") for each in site.loaded(file)] == []
    assert not any(
        'class="mermaid"' in file.read_text() for file in site.SITE.rglob("*.html")
    )  # would load its program


TASKS = (
    "howto/background-commands.md",
    "howto/ready.md",
    "howto/interactive-tools.md",
    "howto/ask-a-human.md",
    "howto/durable-execution.md",
    "howto/webhooks.md",
    "howto/mcp.md",
    "howto/agent-loop.md",
    "howto/chat.md",
    "howto/serve.md",
)
"""The ten commonest tasks. `docs/index.md` lists them."""


@pytest.mark.parametrize("path", TASKS)
def test_a_common_task_takes_at_most_600_words(path: str) -> None:
    """Code counts. The page says where the task is done: there `More` begins."""
    task, more, _ = site.moved(path).partition("\n## More\n")
    assert more
    assert len(task.split()) <= 600


def test_the_index_lists_the_common_tasks() -> None:
    tasks = (ROOT / "docs" / "index.md").read_text().partition("\n## How do I …\n")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"\]\(([^)]+)\)", tasks)) == TASKS
