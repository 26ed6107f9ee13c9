"""The Agent Client Protocol: the wire, a client library, our agent, and a conformance kit.

These names are the client library; `client.py` shows how they go together.
"""

from holdfast.acp.client.asking import Permission
from holdfast.acp.client.connection import Connection, connect
from holdfast.acp.client.session import Session
from holdfast.acp.client.turns import Turn, TurnResult
from holdfast.acp.rpc import ConnectionLost, RpcError

__all__ = ["Connection", "ConnectionLost", "Permission", "RpcError", "Session", "Turn", "TurnResult", "connect"]
