"""The Agent Client Protocol: the wire, a client library, keephold's agent, and a conformance kit.

These names are the client library; `client/connection.py` shows how to use them.
"""

from keephold.acp.client.connection import Connection, connect
from keephold.acp.client.session import PermissionRequest, PromptTurn, Session, TurnResult
from keephold.acp.wire import ConnectionLost, RpcError

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
