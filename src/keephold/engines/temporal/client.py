"""The front end's side of Temporal: `Engine` of `engines/base.py`."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from temporalio.client import (
    Client,
    TLSConfig,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import TerminatedError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from keephold.engines.base import EngineUnavailable
from keephold.engines.temporal.workflow import WORKFLOW
from keephold.engines.wire import Ended, EngineCall, Report
from keephold.errors import ConfigError
from keephold.handles.state import Failure

_AGAIN = (
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.ABORTED,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.INTERNAL,
    RPCStatusCode.UNKNOWN,
)
CALL_BYTES = 1088 << 10
"""A call with its arguments, which [limits] arguments_bytes bounds, too."""
_RPC = timedelta(seconds=10)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where Temporal is."""

    address: str = "127.0.0.1:7233"
    namespace: str = "default"
    task_queue: str = "keephold"
    tls: bool = False
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    api_key_env: str | None = None
    ui: str | None = None
    """The address of Temporal's own pages."""

    async def connect(self) -> Client:
        """Connect. Raises `EngineUnavailable`, or `ConfigError` for a setting that cannot be right."""
        key = None
        if self.api_key_env is not None:
            key = os.environ.get(self.api_key_env)
            if not key:
                raise ConfigError([f"[engines.temporal] api_key_env: ${self.api_key_env} is not set"])
        try:
            paths = (self.ca_file, self.cert_file, self.key_file)
            ca, cert, private = (None if path is None else path.read_bytes() for path in paths)
            tls = TLSConfig(ca, client_cert=cert, client_private_key=private) if self.tls else False
            return await Client.connect(self.address, namespace=self.namespace, api_key=key, tls=tls)
        except (ValueError, OSError) as error:
            raise ConfigError([f"[engines.temporal] {self.address}: {error}"]) from None
        except RuntimeError as error:  # the SDK has no better one
            raise EngineUnavailable(f"Temporal at {self.address}: {error}") from None


class Temporal:
    """Temporal, for a front end. It connects when it is first used."""

    def __init__(self, place: Place | None = None) -> None:
        self.place = place or Place()
        self._client: Client | None = None
        self._connecting = asyncio.Lock()

    async def _connected(self) -> Client:
        async with self._connecting:
            if self._client is None:
                self._client = await self.place.connect()
            return self._client

    async def _workflow(self, uid: str) -> WorkflowHandle[Any, Any]:
        return (await self._connected()).get_workflow_handle(uid)

    async def start(self, call: EngineCall) -> None:
        if (size := len(msgspec.json.encode(call))) > CALL_BYTES:  # the server would not say so
            raise ValueError(f"its arguments have {size} bytes; Temporal takes up to {CALL_BYTES}")
        client = await self._connected()
        with contextlib.suppress(WorkflowAlreadyStartedError):
            await asked(
                client.start_workflow(
                    WORKFLOW,
                    args=[msgspec.to_builtins(call), None],
                    id=call.uid,
                    task_queue=self.place.task_queue,
                    id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                    id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                    memo={"conversation": call.conversation, "tool": call.tool, "id": call.id},
                    rpc_timeout=_RPC,
                )
            )

    async def result(self, uid: str, *, wait: bool = True) -> Report | None:
        workflow = await self._workflow(uid)
        try:
            if not wait:
                described = await asked(workflow.describe(rpc_timeout=_RPC))
                if described.status is WorkflowExecutionStatus.RUNNING:
                    return None
            report: Report = msgspec.convert(await asked(workflow.result()), Report)
            return report
        except WorkflowFailureError as error:
            cause = error.cause
            if isinstance(cause, TerminatedError):
                return Ended(Failure("The workflow of this call was terminated in Temporal.", "cancelled"))
            return Ended(Failure(f"The workflow of this call failed in Temporal: {cause}", "engine_failed"))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            gone = Failure("Temporal knows nothing of this call any more.", "crashed", transient=True)
            return Ended(gone, crashed=True)

    async def resolve(self, uid: str, event: str, resolution: dict[str, Any]) -> None:
        workflow = await self._workflow(uid)
        await _unless_gone(workflow.signal("resolve", args=[event, resolution], rpc_timeout=_RPC))

    async def cancel(self, uid: str) -> None:
        await _unless_gone((await self._workflow(uid)).cancel(rpc_timeout=_RPC))

    def link(self, uid: str) -> str | None:
        ui = self.place.ui
        return None if ui is None else f"{ui.rstrip('/')}/namespaces/{self.place.namespace}/workflows/{uid}"

    async def close(self) -> None:
        self._client = None  # the SDK closes a connection when nothing refers to it


async def asked(asking: Awaitable[T]) -> T:
    """Return the server's answer. Raises `EngineUnavailable` if it has none now."""
    try:
        return await asking
    except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
        if isinstance(error, RPCError) and error.status not in _AGAIN and not _passes(error):
            raise
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # the SDK makes an error of its own of a cancellation
            raise asyncio.CancelledError from None
        raise EngineUnavailable(str(error)) from None


def _passes(error: RPCError) -> bool:
    """Return whether the server says something of which it will say something else. Under load, a server says that it
    does not find a namespace that it has: then nothing is known of the call, and above all not that it has ended. A
    workflow is not ready for updates and queries before its first task, or while its tasks fail at one worker."""
    kinds = ("NamespaceNotFoundFailure", "WorkflowNotReadyFailure")
    return any(each.type_url.endswith(kinds) for each in error.grpc_status.details)


async def _unless_gone(asking: Awaitable[object]) -> None:
    try:
        await asked(asking)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
