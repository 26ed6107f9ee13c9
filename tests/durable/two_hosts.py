"""The tool of `test_two_hosts.py`."""

import keephold
from keephold import Call, Question


@keephold.tool(actions=("spawn", "fetch", "apply", "abort"))
async def asks(call: Call) -> str:
    """Ask whether the caller is sure."""
    return f"said {await call.ask(Question('sure', 'Sure?', answer_type='Boolean'))}"
