"""Tools of MCP servers that other programs provide (M6): the settings, the connections, and the calls over them."""
