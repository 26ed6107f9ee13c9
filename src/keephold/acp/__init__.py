"""The Agent Client Protocol: the wire, a client library, keephold's agent, and a conformance kit.

These names are the client library; `client/connection.py` shows how to use them.
"""

from keephold.acp.client.connection import Connection, connect
from keephold.acp.client.session import PermissionRequest, Session
from keephold.acp.client.turns import PromptTurn, TurnResult
from keephold.acp.rpc import ConnectionLost, RpcError

__all__ = [
    "Connection",
    "ConnectionLost",
    "PermissionRequest",
    "PromptTurn",
    "RpcError",
    "Session",
    "TurnResult",
    "connect",
]
