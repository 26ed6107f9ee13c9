"""A small MCP server on pipes that an editor brings to a session. Standard library only.

Its first argument is its name: `whoami` says it, with the directory it was started in. Further arguments are names of
more tools.
"""

import json
import sys
from pathlib import Path
from typing import Any

NAME, *MORE = sys.argv[1:]


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        version = params.get("protocolVersion", "2025-06-18")
        info = {"name": NAME, "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        schema = {"type": "object", "properties": {}}
        return {"tools": [{"name": name, "inputSchema": schema} for name in ("whoami", *MORE)]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": f"{NAME} in {Path.cwd()}"}]}
    return None


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        result = answer(message["method"], message.get("params") or {})
        rest = {"error": {"code": -32601, "message": "Method not found"}} if result is None else {"result": result}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **rest}) + "\n")
        sys.stdout.flush()
