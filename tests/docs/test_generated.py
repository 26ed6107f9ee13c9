"""What is generated of the reference is what the code says now, and the rest of the page of the API fits it."""

import re
from pathlib import Path

import pytest
from docs.generate import PAGES, REFERENCE, written
from tests.docs.pages import ROOT, name, sections


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_generated_parts_are_up_to_date(page: Path) -> None:
    assert page.read_text() == written(page), "run `make docs`"


def test_every_error_code_has_advice() -> None:
    table = (REFERENCE / "errors.md").read_text().partition("<!-- generated: codes -->")[2]
    assert re.findall(r"^\| `(\w+)` \|.*\| +\|$", table, re.MULTILINE) == []


def test_every_type_of_event_is_explained() -> None:
    source = (ROOT / "src" / "keephold" / "store" / "events.py").read_text()
    types = set(re.findall(r'"((?:handle|key|turn|notification|conversation|process)\.[a-z]+)"', source))
    table = sections(REFERENCE / "api.md")["Streams"]
    assert types
    assert set(re.findall(r"`([a-z]+\.[a-z]+)`", table)) == types
