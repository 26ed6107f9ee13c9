"""All errors and their codes.

Each error carries a stable `code`, listed in `CODES`, and a message that says what was wrong and what would be right.
Codes are part of the public interface: scripts match on them, sentences may improve.
"""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["CODES", "ConfigError", "KeepholdError", "ToolError", "TurnFailed"]

CODES: dict[str, str] = {
    "aborted": "the call was aborted on purpose; its message says by whom",
    "acp_disconnected": "the ACP agent has ended or closed its output; the message has what it last printed",
    "acp_error": "the ACP agent or client answered with an error, or in an invalid form",
    "already_stopped": "the handle has stopped; a stopped handle is final",
    "await_event_unknown_or_revoked": "the key is not one of this store, or was revoked",
    "bad_answer": "the answer does not fit the type of the open question; the question stays open",
    "batch_open": "another batch of this turn has not been answered yet",
    "batch_rejected": "a handle id is used twice in the batch or is active already; nothing ran",
    "cancelled": "the turn was cancelled while the call ran",
    "command_failed": "the command ended with a non-zero exit code or by a signal",
    "command_not_started": "the command could not be started: no such program, no permission, bad directory",
    "config_invalid": "the configuration is wrong; the message names file, line and what would be right",
    "conversation_not_found": "no conversation of that name",
    "crash_loop": "the call was the only one that ran when its process died again; it is not resumed, only retried",
    "crashed": "the process that ran the call ended before the call did",
    "driven_by_person": "the user has taken over the terminal; nothing was sent",
    "durable_effect_duplicate_step_id": "the step id was used before in this call; a step id is used once",
    "durable_effect_empty_event_key": "an event key needs a name",
    "durable_effect_empty_process_event_type": "a process event needs a type",
    "durable_effect_empty_step_id": "a journaled step needs an id",
    "durable_effect_event_cancelled": "the awaited event was cancelled",
    "durable_effect_event_timeout": "the awaited event timed out",
    "durable_effect_hash_conflict": "the step was recorded with another input; nothing ran",
    "durable_effect_not_json": "the input or the result of a journaled step is not JSON; nothing was recorded",
    "durable_effect_process_event_unavailable": "the call belongs to no process whose events could be appended to",
    "durable_effects_missing_call_id": "durable effects need a call with an id",
    "durable_effects_unavailable": 'durable effects need an async function tool with on_crash="replay"',
    "emulator_crashed": "a program's output crashed the terminal emulator, and the program was ended",
    "engine_failed": "the engine refused or lost the call; the message says why",
    "engine_unsupported": "a call on an engine runs on another machine, where this cannot be done",
    "handle_expired": "the handle stopped so long ago that only its tombstone is left",
    "handle_not_found": "no handle of that id in this conversation",
    "handle_of_another_tool": "the handle belongs to another tool, named in the message",
    "input_cancelled": "the user cancelled the prompt, or it could not be shown",
    "input_lost": "the last input may not have reached the handle, which runs on another machine",
    "input_not_read": "the program has not read what was sent before; nothing was written",
    "inquiry_failed": "the question went to a model, which gave no usable answer",
    "invalid_arguments": "the arguments do not fit the tool's schema",
    "invalid_conversation": "a new conversation needs a name of visible characters that looks like no other name",
    "invalid_handle_id": "a handle id is 1 to 128 visible characters without spaces, and looks like no other id",
    "invalid_resolution": 'a resolution is {"status": "ok" | "err" | "timeout" | "cancelled", "payload": …}',
    "lease_lost": "another process has taken the call over; nothing was written",
    "limit_exceeded": "over one of the [limits]; the message names the limit and the setting",
    "not_storable": "a value that no store can keep, such as text that is not Unicode; nothing was written",
    "mcp_disconnected": "the MCP server of the tool cannot be reached, or was lost during the call",
    "mcp_error": "the MCP server of the tool refused the call, or answered in an invalid form",
    "missing_extra": "a part of keephold that is installed separately is not there; the message says how to get it",
    "model_failed": "a request to the model failed for good; the message has the provider's words",
    "no_model": "no model is configured, or the one that is cannot be used; the message says what is missing",
    "no_open_batch": "the turn has no batch that was left unanswered, so there is nothing to resume",
    "not_retryable": "only a handle that stopped with code crash_loop can be retried, once, where its tool is",
    "not_running": "the handle is not in a state that takes input",
    "owner_not_answering": "the process that runs the handle lives but did not answer within 5 s",
    "pending_tool_missing_completion_key": "the tool returned Pending without having taken a completion key",
    "permission_denied": "the call needs permission and nobody gave it",
    "question_exclusive": "only the user may answer the question; it stays open",
    "question_unanswered": "the tool asked a question that nobody may answer",
    "request_gone": "the request to the user is not open any more, or the standing permission has ended",
    "requires_durable": "the tool refuses to run on a store that keeps nothing",
    "resource_held": "another handle holds a resource this call needs and will not free it by itself",
    "runtime_closed": "the runtime is closed",
    "runtime_closing": "the runtime is being closed; the call is resumed in the next one",
    "server_refused": "the server did not let the command in, or does not know what it was asked",
    "server_unreachable": "no server answers at that address, or the connection to it was lost",
    "store_unavailable": "the store cannot write at present; nothing was done",
    "store_unusable": "the store cannot be opened; the message says why, and it was left as it is",
    "template_failed": "a template of the configuration could not be rendered",
    "timeout": "the tool ran longer than its timeout",
    "tool_completion_timeout": "the deadline of a parked call passed before it was completed",
    "tool_error": "the tool reported a failure",
    "turn_ended": "the turn has ended",
    "turn_failed": 'a parked call timed out with on_timeout="fail_turn"; the turn can only be ended',
    "turn_not_open": "the turn has not been entered",
    "turn_open": "the conversation has an open turn",
    "unknown_action": "the tool does not have that action",
    "unknown_dialect": "no schema dialect of that name",
    "unknown_tool": "no tool of that name",
    "unsupported_store": "this version cannot open that kind of store",
    "wire_rounds": "a one-shot tool asked more than eight rounds of questions",
}


class KeepholdError(Exception):
    """Base of all errors keephold raises. `code` is one of `CODES`."""

    code = "tool_error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class ToolError(KeepholdError):
    """A tool raises it to fail with its own message.

    `transient` says that a retry may help; `trace` is shown to users, not to models, unless a wire tool sent it.
    """

    def __init__(
        self, message: str, *, transient: bool = False, code: str = "tool_error", trace: Sequence[str] = ()
    ) -> None:
        super().__init__(str(message), code=str(code))  # a tool may give any value: it is shown and stored as text
        self.transient = bool(transient)
        self.trace = tuple(map(str, trace))


class WrongArguments(ToolError):
    """Arguments that fit the tool's schema and are wrong all the same. `instead` has values that would be right."""

    def __init__(self, message: str, *, instead: Mapping[str, Any]) -> None:
        super().__init__(message, code="invalid_arguments")
        self.instead = instead


class MissingExtra(KeepholdError, ImportError):
    """An optional package is not installed; the message has the command that installs it."""

    code = "missing_extra"


class ConfigError(KeepholdError):
    """The configuration is wrong. `problems` lists every one found, each with file, line and reason."""

    code = "config_invalid"

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class AlreadyStopped(KeepholdError):
    """The handle had stopped before; the first outcome counts."""

    code = "already_stopped"


class TurnFailed(KeepholdError):
    """The turn has failed and can only be ended. `Turn.failed` has the reason."""

    code = "turn_failed"
