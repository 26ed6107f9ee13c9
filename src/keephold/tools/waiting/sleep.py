"""`sleep`: a `timer` handle while it lasts (W1). Taken up again after a crash, it sleeps the rest."""

import asyncio

from keephold.handles.state import Reply
from keephold.tools.base import Tool
from keephold.tools.call import Call
from keephold.tools.waiting.tool import READS, Arguments, Show, object_schema, wait_tool
from keephold.tools.waiting.view import COUNT, FLAG, TEXT, TIME, instant, milliseconds

PARAMETERS = object_schema(
    {
        "durationMs": {
            "type": "number",
            "minimum": 0,
            "maximum": 1e14,
            "description": "Duration to wait in milliseconds.",
        },
        "label": {"type": "string", "description": "Optional label for the timer."},
    },
    ["durationMs"],
)
RETURNS = object_schema(
    {
        "success": FLAG,
        "label": TEXT,
        "requestedDurationMs": {"type": "number"},
        "actualDurationMs": COUNT,
        "startTime": TIME,
        "endTime": TIME,
    },
    ["success", "requestedDurationMs", "actualDurationMs", "startTime", "endTime"],
)


def sleep_tool(show: Show) -> Tool:
    """The tool."""

    async def sleep(call: Call, arguments: Arguments) -> Reply:
        registry = call._durability.registry
        clock, handle = registry.clock, registry.loaded(call.uid)
        start = clock.now() if handle is None else handle.state.created
        due = start + arguments["durationMs"] / 1000
        while (left := due - clock.now()) > 0:  # noqa: ASYNC110 (nobody but time can tell)
            await asyncio.sleep(left)  # again if the time of day and the loop's disagree
        end = clock.now()
        label = arguments.get("label")
        answer = {"success": True} | ({} if label is None else {"label": label})
        return show(
            answer
            | {
                "requestedDurationMs": arguments["durationMs"],
                "actualDurationMs": milliseconds(end - start),
                "startTime": instant(start),
                "endTime": instant(end),
            }
        )

    return wait_tool(
        show,
        "sleep",
        "Wait for a specified duration (simple timer/delay).",
        PARAMETERS,
        RETURNS,
        sleep,
        kind="timer",
        fleeting=False,
        hints=READS | {"title": "Sleep"},
    )
