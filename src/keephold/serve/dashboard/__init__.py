"""The dashboard: open requests, running handles, history. The server renders the pages; they work without
JavaScript."""
