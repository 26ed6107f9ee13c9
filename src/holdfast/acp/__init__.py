"""The Agent Client Protocol: the wire, a client library, our agent, and a conformance kit.

These names are the client library; `client.py` shows how they go together.
"""

from holdfast.acp.asking import Permission
from holdfast.acp.client import Connection, connect
from holdfast.acp.rpc import ConnectionLost, RpcError
from holdfast.acp.session import Session
from holdfast.acp.turns import Turn, TurnResult

__all__ = ["Connection", "ConnectionLost", "Permission", "RpcError", "Session", "Turn", "TurnResult", "connect"]
