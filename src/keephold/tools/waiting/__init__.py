"""The wait tools: create, wait for, complete, list and cancel handles of asynchronous operations (W)."""

from collections.abc import Iterable

from keephold.extras import CEL, installed, need
from keephold.tools.base import Tool
from keephold.tools.waiting.changing import cancel_tool, complete_tool, update_tool
from keephold.tools.waiting.cleanup import gc_tool
from keephold.tools.waiting.create import create_tool
from keephold.tools.waiting.execute import (
    ALLOW_HOST,
    STEP,
    agent_step_tool,
    allow_host_tool,
    execute_agent_tool,
    execute_workflow_tool,
)
from keephold.tools.waiting.listing import list_tool
from keephold.tools.waiting.tasks import task_tools
from keephold.tools.waiting.tool import WaitToolHost
from keephold.tools.waiting.wait import sleep_tool, wait_for_multiple_tool, wait_for_tool

__all__ = ["INTERNAL", "LASTING", "NAMES", "WAITING", "WaitToolHost", "need_packages", "wait_tools"]

WAITING = ("await", "wait_for", "wait_for_multiple")
"""The tools whose calls only wait for handles; `await` is in `tools/builtin`."""

INTERNAL = (STEP, ALLOW_HOST)
"""Tools that only steps of workflows call."""
LASTING = ("execute_agent_async", "execute_workflow_async")
"""Tools whose handles run something: after a crash they are recovered like any tool's."""
NAMES = (
    "sleep",
    "create_wait_handle",
    "wait_for",
    "wait_for_multiple",
    "complete_wait_handle",
    "list_wait_handles",
    "update_wait_handle",
    "cancel_wait_handle",
    "gc_wait_handles",
    *LASTING,
    "create_task",
    "update_task_status",
    "get_task",
    "list_tasks",
    "get_task_timer",
    "pause_resume_task_timer",
)


def need_packages(names: Iterable[str]) -> None:
    """Raise `MissingExtra` if one of these wait tools needs a package that is not installed."""
    if "execute_workflow_async" in names:
        need("serve", "`execute_workflow_async`", CEL, "httpx2")


def wait_tools(host: WaitToolHost) -> list[Tool]:
    """Make all wait tools; that of workflows only if it can run, so that recovery leaves its calls to others (R1)."""
    return [
        sleep_tool(host),
        create_tool(host),
        wait_for_tool(host),
        wait_for_multiple_tool(host),
        complete_tool(host),
        list_tool(host),
        update_tool(host),
        cancel_tool(host),
        gc_tool(host),
        execute_agent_tool(host),
        *([execute_workflow_tool(host)] if installed(CEL) else ()),
        agent_step_tool(host),
        allow_host_tool(host.detached),
        *task_tools(host),
    ]
