"""The Agent Client Protocol: the wire, a client library, keephold's agent, and a conformance kit.

These names are the client library; `client/connection.py` shows how to use them.
"""

from keephold.acp.client.connection import Connection, connect
from keephold.acp.client.session import Permission, Session
from keephold.acp.client.turns import Turn, TurnResult
from keephold.acp.rpc import ConnectionLost, RpcError

__all__ = ["Connection", "ConnectionLost", "Permission", "RpcError", "Session", "Turn", "TurnResult", "connect"]
