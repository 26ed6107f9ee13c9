"""The MCP server: keephold's handles as tools, tasks and resources. The client's side is `tools/remote`."""

from keephold.extras import MCP, need

need("mcp", "MCP", *MCP)
