"""The wait tools: handles as asynchronous operations to create, wait for, complete and look after (W)."""

from holdfast.tools.base import Tool
from holdfast.tools.waiting.complete import complete_tool
from holdfast.tools.waiting.create import create_tool
from holdfast.tools.waiting.listing import list_tool
from holdfast.tools.waiting.sleep import sleep_tool
from holdfast.tools.waiting.tool import Show
from holdfast.tools.waiting.view import Text
from holdfast.tools.waiting.wait import wait_for_multiple_tool, wait_for_tool

NAMES = (
    "sleep",
    "create_wait_handle",
    "wait_for",
    "wait_for_multiple",
    "complete_wait_handle",
    "list_wait_handles",
)


def wait_tools(show: Show, text: Text) -> list[Tool]:
    """All of them. `show` makes a reply of an object, `text` is what a handle printed."""
    return [
        sleep_tool(show),
        create_tool(),
        wait_for_tool(show, text),
        wait_for_multiple_tool(show, text),
        complete_tool(show),
        list_tool(show),
    ]
