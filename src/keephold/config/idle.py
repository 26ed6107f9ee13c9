"""Settings that are read and not acted on, so that `keephold check` can say so.

Some are not acted on at all yet. Others need a model, and the configuration names none.
"""

from collections.abc import Iterator

from keephold.config.locate import KeyPath
from keephold.config.model import Config, ToolSettings
from keephold.config.source import TOOLS

_NO_MODEL = "there is no model to ask ([conversation.assistant] names one, or a program by `Runtime(inquiry=…)`);"


def idle_settings(config: Config) -> list[str]:
    """One line for each such setting that is written and would change something."""
    source = config.source
    if source is None:
        return []
    found = [] if config.has_model else list(_outside_tools(config))
    for name, tool in config.conversation.tools.items():
        found += [((*TOOLS, name, *key), reason) for key, reason in _of_tool(tool, config.has_model)]
    found.sort(key=lambda note: source.line(note[0]))
    return list(dict.fromkeys(f"{source.at(key)}: {reason}" for key, reason in found))


def _outside_tools(config: Config) -> Iterator[tuple[KeyPath, str]]:
    if config.conversation.detached == "auto":
        yield ("conversation", "detached"), f'{_NO_MODEL} "auto" lets calls run and answers no question'


def _of_tool(tool: ToolSettings, has_model: bool) -> Iterator[tuple[KeyPath, str]]:
    if tool.source == "builtin":
        return
    if tool.output.history.model_fields_set:
        yield ("output", "history"), "not acted on yet: the history has what the model was shown"
    if has_model:
        return
    if "on_turn_end" in tool.spawn.lifecycle.model_fields_set and tool.spawn.lifecycle.on_turn_end == "inquire":
        yield ("spawn", "lifecycle", "on_turn_end"), f'{_NO_MODEL} "inquire" is treated as "abort"'
    for question, settings in tool.questions.items():
        if settings.target != "user":
            reason = "a person is asked, or the caller by `apply`; with neither, `detached` decides"
            yield ("questions", question, "target"), f"{_NO_MODEL} {reason}"
