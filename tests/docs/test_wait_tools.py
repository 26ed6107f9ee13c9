"""The page of the wait tools has every tool, every parameter and every key of a reply, and no other."""

import pytest
from tests.docs.pages import ROOT, rows, sections

from keephold import Runtime
from keephold.tools.waiting import NAMES

PAGE = ROOT / "docs" / "reference" / "wait-tools.md"


def test_W_every_wait_tool_has_a_section() -> None:
    assert [title for title in sections(PAGE) if title != "The wait tools"] == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_W_parameters_and_replies_are_those_of_the_tool(name: str) -> None:
    tool = Runtime(builtins=[name]).toolbox.find(name)
    parameters, _, reply = sections(PAGE)[name].partition("| reply |")
    assert tool.returns is not None
    assert list(rows(parameters)) == list(tool.parameters["properties"])
    assert list(rows(reply)) == list(tool.returns["properties"])
    required = [key for key, cells in rows(parameters).items() if cells[1].startswith("required")]
    assert sorted(required) == sorted(tool.parameters.get("required", []))
