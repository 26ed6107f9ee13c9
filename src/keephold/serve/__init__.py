"""`keephold serve`: one process for everything over HTTP: MCP, completions, the API, metrics and the dashboard."""

from keephold.extras import SERVE, need

need("serve", "serving HTTP", *SERVE)
