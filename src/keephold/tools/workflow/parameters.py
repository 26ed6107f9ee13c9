"""The JSON schema of what `execute_workflow_async` takes.

What is in a `config` is not in it: `read_workflow` checks that, and says all that is wrong at once.
"""

from typing import Any

from keephold.tools.workflow.configs import READERS
from keephold.tools.workflow.definition import END

_CEL = "A CEL expression over input, data, context, vars, steps.<id>, error and, in a loop, item and index."

_STEP: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "Unique in the workflow. The result is steps.<id> in expressions."},
        "type": {"type": "string", "description": f"One of {', '.join(READERS)}."},
        "config": {
            "type": "object",
            "description": 'What the step does, by its type. Anywhere in it {"cel": "…"} stands for what the '
            "expression gives. In every type: preserveData, continueOnError, timeoutMs.",
        },
        "onSuccess": {"type": "string", "description": f"Id of the step to go on with; {END} ends the list."},
        "onError": {"type": "string", "description": "The same for when the step fails."},
        "condition": {"type": "string", "description": f"The step is skipped unless this is true. {_CEL}"},
        "skipIf": {"type": "string", "description": f"The step is skipped if this is true. {_CEL}"},
    },
    "required": ["id", "type"],
}

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "workflowId": {"type": "string", "description": "Names the workflow; part of the id of its handle."},
        "name": {"type": "string", "description": "What the workflow is, for people."},
        "steps": {"type": "array", "items": _STEP, "description": "Run in order, unless a step jumps."},
        "input": {"description": "What the workflow is given: `input` in expressions, and the first `data`."},
        "context": {"type": "object", "description": "More of it: `context` in expressions."},
        "timeoutMs": {"type": "integer", "minimum": 0, "description": "Limit of the whole run; 0 is none."},
        "priority": {"type": "integer", "description": "Higher starts first where runs queue. Default 0."},
    },
    "required": ["workflowId", "name", "steps"],
}
