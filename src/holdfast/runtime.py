"""The runtime: tools, handles and turns in one place. What a Python program opens first."""

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from holdfast.errors import ConfigError, HoldfastError
from holdfast.handles.clock import Clock, SystemClock
from holdfast.handles.handle import HandleInfo
from holdfast.handles.registry import Registry
from holdfast.handles.spool import Spool
from holdfast.handles.state import Error
from holdfast.handles.view import Handles
from holdfast.limits import Limits
from holdfast.schema.dialects import DIALECTS, Dialect, tool_list
from holdfast.store.base import Store
from holdfast.store.memory import open_store
from holdfast.tools.base import Tool
from holdfast.tools.builtin import builtin_tools
from holdfast.tools.guard import Guard
from holdfast.tools.run import FORCE_SECS
from holdfast.tools.toolbox import Toolbox
from holdfast.turn.actions import Actions
from holdfast.turn.admission import Admission
from holdfast.turn.budget import Projector, ProjectorProtocol
from holdfast.turn.ending import all_stopped
from holdfast.turn.permission import Permission
from holdfast.turn.questions import Questions
from holdfast.turn.replies import Replies
from holdfast.turn.turn import Turn

if TYPE_CHECKING:
    from holdfast.config import Config

_CLOSE_SECS = FORCE_SECS + 1
"""How long closing waits for calls beyond the longest of their graces."""


class Runtime:
    """Runs tools. Use it as an async context manager; leaving the block ends everything that still runs.

    `store` names where handles are kept (default: what the configuration says, else `memory:`); `config` is a
    `holdfast.toml` whose tools and settings to use.
    """

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        *,
        store: str | Store | None = None,
        config: "str | Path | Config | None" = None,
        clock: Clock | None = None,
        projector: ProjectorProtocol | None = None,
    ) -> None:
        loaded = _load(config)
        self.limits = loaded.limits.policy() if loaded else Limits()
        self._guard = Guard()
        self._closing: asyncio.Task[None] | None = None
        detached = loaded.conversation.detached if loaded else "deny"
        retention = loaded.store.retention_secs if loaded else None
        if store is None:
            store = (loaded.store.url if loaded else None) or "memory:"
        self.registry = Registry(
            open_store(store) if isinstance(store, str) else store,
            clock or SystemClock(),
            Spool(),
            retention=3600 if retention is None else retention,
        )
        self.replies = Replies(projector or Projector())
        self.toolbox = self._build_toolbox(tools, loaded)
        self.permission = Permission(detached)
        questions = Questions(self.registry, self.limits, detached)
        self.admission = Admission(self.registry, self.toolbox, questions, self.permission)
        self.actions = Actions(self.registry, self.admission, self.permission, self.replies)

    def _build_toolbox(self, tools: Iterable[Tool], config: "Config | None") -> Toolbox:
        chosen = list(tools)
        for tool in chosen:
            if not isinstance(tool, Tool):
                raise ConfigError([f"{tool!r:.80} is not a tool; make one of a function with @holdfast.tool"])
        if config is None:
            return Toolbox([*chosen, *builtin_tools(chosen, self.replies.waited)])
        from holdfast.config import build_tools, configure_builtin

        chosen += build_tools(config, self._guard)
        builtins = (configure_builtin(tool, config) for tool in builtin_tools(chosen, self.replies.waited))
        return Toolbox([*chosen, *builtins], max_running=config.runtime.max_running)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def turn(self, conversation: str | None = None) -> Turn:
        """A turn of a conversation; without a name, of a new one. Open it with `async with`."""
        self.check_open()
        name = f"c-{secrets.token_hex(6)}" if conversation is None else conversation
        return Turn(self, name, f"t-{secrets.token_hex(6)}")

    def tools(self, dialect: Dialect = "generic") -> list[dict[str, Any]]:
        """The tools as a model sees them, in stable order (G3)."""
        if dialect not in DIALECTS:
            raise HoldfastError(f"unknown dialect `{dialect}`; there are {', '.join(DIALECTS)}", code="unknown_dialect")
        return tool_list(self.toolbox, dialect)

    async def wait(
        self,
        *,
        all: Sequence[str] = (),
        any: Sequence[str] = (),
        timeout: float | None = None,
        conversation: str,
    ) -> dict[str, Any]:
        """Wait as `await` does (A2, A3), with values instead of texts and `is_error` in each result."""
        waited = await Handles(self.registry, conversation).wait(all=all, any=any, timeout=timeout)
        return self.replies.values(waited)

    async def handle(self, id: str, *, conversation: str) -> HandleInfo:
        """The newest handle of that id."""
        return self.registry.find(id, conversation).info()

    async def handles(
        self,
        *,
        state: Literal["pending", "running", "waiting", "stopped"] | None = None,
        conversation: str | None = None,
        limit: int = 1000,
        after: str | None = None,
    ) -> list[HandleInfo]:
        """Spawned handles, oldest first; `after` is the uid of the last one of the page before."""
        every = (handle.info() for handle in self.registry.handles(conversation, after) if handle.stateful)
        return list(islice((info for info in every if state is None or info.state == state), limit))

    def live(self) -> list[HandleInfo]:
        """Every handle that has not stopped, and those of which something lingers."""
        return [handle.info() for handle in self.registry.live()]

    def check_open(self) -> None:
        """Raise if the runtime is closed."""
        if self._closing is not None:
            raise HoldfastError("the runtime is closed; open a new one", code="runtime_closed")

    async def close(self) -> None:
        """End everything that runs and free what it used (R6). Whoever asks again waits for the same end."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        live = self.registry.live()
        grace = max((handle.tool.spawn.abort_grace_ms for handle in live), default=0) / 1000
        self.admission.end_all(live, Error("Ended: the runtime was closed.", "aborted"), "shutdown")
        try:
            async with asyncio.timeout(grace + _CLOSE_SECS):
                await all_stopped(live)
        except TimeoutError:
            pass
        finally:
            self._guard.close()
            self.registry.close()


def _load(config: "str | Path | Config | None") -> "Config | None":
    if config is None:
        return None
    from holdfast.config import Config, load_config

    return config if isinstance(config, Config) else load_config(Path(config))
