"""Tools of other programs' MCP servers (M6): what is configured, the connections, and calls over them."""
