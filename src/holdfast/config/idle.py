"""Settings that this version reads and does not act on yet, so that `holdfast check` can say so.

A setting leaves this list in the change that makes it work.
"""

from collections.abc import Iterator

from holdfast.config.locate import KeyPath
from holdfast.config.model import Config, ToolSettings
from holdfast.config.source import TOOLS

_NO_INQUIRY = "this version asks no model; without a person the question is treated as `detached` says"


def idle_settings(config: Config) -> list[str]:
    """One line for each such setting that is written and would change something."""
    source = config.source
    if source is None:
        return []
    found = list(_outside_tools(config))
    for name, tool in config.conversation.tools.items():
        found += [((*TOOLS, name, *key), reason) for key, reason in _of_tool(tool)]
    found.sort(key=lambda note: source.line(note[0]))
    return list(dict.fromkeys(f"{source.at(key)}: not acted on yet: {reason}" for key, reason in found))


def _outside_tools(config: Config) -> Iterator[tuple[KeyPath, str]]:
    if config.conversation.detached == "auto":
        yield ("conversation", "detached"), 'this version asks no model; "auto" lets calls run and answers no question'
    if config.conversation.inquiry.assistant:
        yield ("conversation", "inquiry"), "this version asks no model"


def _of_tool(tool: ToolSettings) -> Iterator[tuple[KeyPath, str]]:
    if tool.source == "builtin":
        return
    if tool.spawn.notifications.model_fields_set:
        yield ("spawn", "notifications"), "no notifications are sent"
    if tool.output.history.model_fields_set:
        yield ("output", "history"), "no history is stored"
    if "on_turn_end" in tool.spawn.lifecycle.model_fields_set and tool.spawn.lifecycle.on_turn_end == "inquire":
        yield ("spawn", "lifecycle", "on_turn_end"), 'this version asks no model; "inquire" is treated as "abort"'
    if tool.spawn.lifecycle.assistant:
        yield ("spawn", "lifecycle", "assistant"), "this version asks no model at the end of a turn"
    for question, settings in tool.questions.items():
        if settings.target != "user":
            yield ("questions", question, "target"), _NO_INQUIRY
