"""`keephold serve`: one process for everything over HTTP: MCP, completions, the API, metrics and the dashboard."""
