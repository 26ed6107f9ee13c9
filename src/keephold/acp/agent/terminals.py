"""Terminals of the client, in which it shows what our programs print.

A program stays ours: it is durable, can be talked to and aborted, and outlives the editor. What runs in the client's
terminal is `keephold logs --follow` of its handle, which ends when the handle does. That needs a store that another
process can open, and a client that has terminals; without them what is printed is told as text.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keephold.acp.wire import REQUEST_CANCELLED, Call, Peer, RpcError
from keephold.handles.handle import Handle
from keephold.store.base import Store

OUTPUT_BYTES = 1024 * 1024
"""How much the client keeps of what a terminal shows."""


class Terminals:
    """The terminals of one session."""

    def __init__(self, peer: Peer, session: str, store: Store, *, has_terminals: bool) -> None:
        self._peer = peer
        self._session = session
        path = getattr(store, "path", None)
        self._store = str(Path(path).absolute()) if has_terminals and store.durable and path is not None else None
        self.failed = False
        """The client could not make one: it is not asked again."""

    def may_show(self, handle: Handle) -> bool:
        """Whether what this handle prints can be shown in a terminal."""
        return self._store is not None and not self.failed and handle.tool.source in ("local", "terminal")

    def open(self, handle: Handle, then: Callable[[str | None], None]) -> None:
        """Have the client make a terminal for a handle; `then` gets its id, None if it could not."""
        raw = ["--raw"] if handle.tool.source == "terminal" else []
        params: dict[str, Any] = {
            "sessionId": self._session,
            "command": sys.executable,
            "args": ["-m", "keephold", "logs", "--follow", *raw, "--store", f"sqlite:///{self._store}", handle.uid],
            "env": [],
            "outputByteLimit": OUTPUT_BYTES,
        }
        self._peer.request("terminal/create", params, answered=lambda call: then(self._made(call)))

    def _made(self, call: Call) -> str | None:
        if call.cancelled():
            return None
        refused = call.exception()
        if refused is not None:  # a client that ties terminals to a prompt cancels what its end leaves open
            self.failed = not (isinstance(refused, RpcError) and refused.number == REQUEST_CANCELLED)
            return None
        result = call.result()
        id = result.get("terminalId") if isinstance(result, dict) else None
        self.failed = not (isinstance(id, str) and id)
        return None if self.failed else id

    def release(self, id: str, *, wait: bool = False) -> None:
        """Give it back; with `wait` when it has shown all there is. A client keeps showing what was in it."""
        params = {"sessionId": self._session, "terminalId": id}
        if not wait:
            self._peer.request("terminal/release", params)
            return
        self._peer.request(
            "terminal/wait_for_exit", params, answered=lambda _: self._peer.request("terminal/release", params)
        )
