"""What a provider was asked, in no provider's words: the same conversation reads the same over every format.

Messages alternate between `user` and `assistant`: neighbours of one role are one message, and results of tools stand
in the user's, before its text, as Anthropic has them. Ids are those on the wire.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Schema = dict[str, Any]


class Call(NamedTuple):
    """A tool call of the assistant."""

    id: str
    name: str
    arguments: Any
    """Decoded; the text itself if it is not JSON."""


class Result(NamedTuple):
    """What a tool call was answered."""

    id: str
    text: str
    is_error: bool | None = None
    """None where the format has no word for it."""


@dataclass
class Message:
    """One side's contribution."""

    role: Literal["user", "assistant"]
    text: str = ""
    thinking: str = ""
    calls: list[Call] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)


class OfferedTool(NamedTuple):
    """A tool that the model may call."""

    name: str
    description: str
    schema: Schema
    strict: bool = False


class Wanted(NamedTuple):
    """Structured output: which schema, and the tool whose call is to be it, or None if the text is."""

    schema: Schema
    tool: str | None


@dataclass
class Asked:
    """One request. `body` and `headers` are what came over the wire."""

    format: str
    model: str
    stream: bool
    body: dict[str, Any]
    headers: dict[str, str]
    system: str = ""
    messages: list[Message] = field(default_factory=list)
    tools: list[OfferedTool] = field(default_factory=list)
    choice: str = "auto"
    """`auto`, `none`, `required`, or the name of the one tool that must be called."""
    schema: Schema | None = None
    """That of native structured output."""
    refused: str | None = None
    """Why the provider did not take the request."""
    answered: bool = False
    """The whole answer was sent."""
    abandoned: bool = False
    """The client went before the answer was there."""

    @property
    def wanted(self) -> Wanted | None:
        """The structured output that is wanted.

        Of several tools, one of which must be called, it is the last. A tool that is offered alone is taken for it
        also where it is not forced: pydantic-ai does not force models that would stop thinking for it.
        """
        if self.schema is not None:
            return Wanted(self.schema, None)
        if not self.tools or self.choice == "none" or (self.choice == "auto" and len(self.tools) > 1):
            return None
        forced = next((tool for tool in self.tools if tool.name == self.choice), self.tools[-1])
        return Wanted(forced.schema, forced.name)

    def say(
        self,
        role: Literal["user", "assistant"],
        text: str = "",
        *,
        thinking: str = "",
        calls: tuple[Call, ...] = (),
        results: tuple[Result, ...] = (),
    ) -> None:
        """Add to the conversation, to its last message if that is of the same role."""
        if not self.messages or self.messages[-1].role != role:
            self.messages.append(Message(role))
        last = self.messages[-1]
        last.text = "\n".join(part for part in (last.text, text) if part)
        last.thinking += thinking
        last.calls.extend(calls)
        last.results.extend(results)

    @property
    def calls(self) -> list[Call]:
        """All tool calls of the conversation, in order."""
        return [call for message in self.messages for call in message.calls]

    @property
    def results(self) -> list[Result]:
        """All results of the conversation, in order."""
        return [result for message in self.messages for result in message.results]


def decoded(arguments: Any) -> Any:
    """Arguments that came as JSON text."""
    try:
        return json.loads(arguments)
    except (TypeError, ValueError):
        return arguments


def texts(content: Any, *types: str) -> str:
    """The text of content that is a string, or a list of parts of which some have text."""
    if isinstance(content, str):
        return content
    parts = content or []
    return "\n".join(part["text"] for part in parts if part.get("type", "text") in types and part.get("text"))
