"""MCP: keephold's handles for any client, as tools, tasks and resources (M, W). The client's side is `tools/remote`."""
