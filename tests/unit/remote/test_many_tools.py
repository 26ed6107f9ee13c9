"""A server that lists many tools, and others every time (K6)."""

from typing import Any

from mcp.types import Tool as ListedTool

from keephold.tools.guard import Guard
from keephold.tools.remote.server import mcp_server
from keephold.tools.remote.servers import Servers
from keephold.tools.toolbox import Toolbox


class Listing:
    """A server without a connection, whose lists are given."""

    def __init__(self) -> None:
        self.toolbox = Toolbox([])
        self.told: list[Any] = []
        server = mcp_server("s", command=["true"])
        self.servers = Servers([server], Guard(), self.toolbox, lambda *said: self.told.append(said), lambda: None)
        (self.connection,) = self.servers._connections
        self.connection.used_by("main")

    def list(self, *names: str, **schema: Any) -> None:
        listed = (ListedTool(name=name, input_schema={"type": "object", **schema}) for name in names)
        self.connection.tools = {tool.name: tool for tool in listed}
        self.servers.listed(self.connection)


def test_K6_tools_that_are_left_out_do_not_fill_a_conversation() -> None:
    here = Listing()
    for turn in range(3):
        here.list(*(f"{turn}-{at}{'x' * 10_000}" for at in range(100)), properties=3)
    assert len(here.told) == 21 and max(len(message) for _, _, message, _ in here.told) <= 500
    assert here.servers.problems()[-1] == "MCP server `s`: more of its tools are left out"


def test_K6_tools_that_a_server_lists_no_longer_are_not_all_kept() -> None:
    here = Listing()
    for turn in range(4):
        here.list(*(f"t{turn}-{at}" for at in range(500)))
    assert len(list(here.toolbox.remote())) == 1500
    assert [tool.name for tool in here.toolbox.remote() if tool.offered] == [f"t3-{at}" for at in range(500)]
