"""A model that plays a script: what it says to each request, answers to inquiries, and writes as a summary.

Everything it is sent is kept, and looked at as a provider would: `invalid` names each history that one would refuse.
A script of the configuration is put on the `STAGE` and named `python:tests.agent.scripted:<name>`.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pydantic_ai.messages import (
    FinishReason,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.models.function import (
    AgentInfo,
    DeltaThinkingPart,
    DeltaToolCall,
    FunctionModel,
    FunctionStreamedResponse,
)
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

Sent = tuple[str, str, dict[str, Any] | str]
"""Id, tool and arguments of a call."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One streamed response. `pause` is the time before each piece; `breaks` is raised behind the words."""

    text: str | Sequence[str] = ()
    calls: Sequence[Sent] = ()
    thinks: str = ""
    pause: float = 0.0
    finish: FinishReason | None = None
    usage: tuple[int, int] | None = None
    breaks: Exception | None = None


Line = str | list[Sent] | Reply | Exception
Lines = Sequence[Line | Callable[[list[ModelMessage]], Line]]
Answer = Any
"""What an inquiry is answered: a value, an exception, or a function of the question's text."""


class Script:
    """Says one line to each request. With `by_history`, the line of the number of responses that are in the history:
    so it goes on in another process."""

    def __init__(
        self,
        *lines: Line | Callable[[list[ModelMessage]], Line],
        answers: Iterable[Answer] | Callable[[str], Answer] = (),
        summaries: Iterable[Line] = (),
        by_history: bool = False,
        profile: ModelProfile | None = None,
    ) -> None:
        self._lines = list(lines)
        self._answers = answers if callable(answers) else iter(answers)
        self._summaries = iter(summaries)
        self._by_history = by_history
        self.read: list[list[ModelMessage]] = []
        """The history of each request."""
        self.offered: list[AgentInfo] = []
        self.asked: list[list[ModelMessage]] = []
        """That of each inquiry."""
        self.asked_by: list[AgentInfo] = []
        self.wished: list[str] = []
        """From what summaries were to be made."""
        self.invalid: list[str] = []
        self.model = _Model(self, profile)

    def next(self, messages: list[ModelMessage], info: AgentInfo) -> Line:
        if not info.instructions:
            return self._summary(messages)
        self.read.append(list(messages))
        self.offered.append(info)
        self.invalid += problems(messages)
        at = sum(isinstance(each, ModelResponse) for each in messages) if self._by_history else len(self.read) - 1
        if at >= len(self._lines):
            raise AssertionError(f"the script has no line {at}, and was sent: {messages[-1]}")
        line = self._lines[at]
        return line(messages) if callable(line) else line

    def _summary(self, messages: list[ModelMessage]) -> Line:
        (wish,) = messages[-1].parts
        assert isinstance(wish, UserPromptPart)
        self.wished.append(str(wish.content))
        return next(self._summaries)

    def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        """To an inquiry."""
        self.invalid += problems(messages)
        native = info.model_request_parameters.output_mode == "native"
        newest = messages[-1].parts[-1]
        text = str(newest.content) if isinstance(newest, UserPromptPart) else ""
        self.asked.append(list(messages))
        self.asked_by.append(info)
        given = self._answers(text) if callable(self._answers) else next(self._answers)
        if isinstance(given, Exception):
            raise given
        if isinstance(given, str) or native:
            return ModelResponse([TextPart(given if isinstance(given, str) else json.dumps(given))])
        return ModelResponse([ToolCallPart(info.output_tools[0].name, given, "answer-1")])

    def told(self, request: int = -1) -> list[str]:
        """What the newest message of a request says, besides results."""
        return [str(part.content) for part in self.read[request][-1].parts if isinstance(part, UserPromptPart)]

    def results(self, request: int = -1) -> list[str]:
        """The results in the newest message of a request."""
        return [str(part.content) for part in self.read[request][-1].parts if isinstance(part, ToolReturnPart)]


class _Model(FunctionModel):
    def __init__(self, script: Script, profile: ModelProfile | None) -> None:
        async def request(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            return script.answer(messages, info)

        super().__init__(request, model_name="scripted", profile=profile)
        self._script = script

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: Any = None,
    ) -> AsyncGenerator[StreamedResponse]:
        settings, parameters = self.prepare_request(model_settings, model_request_parameters)
        info = AgentInfo(
            function_tools=parameters.function_tools,
            allow_text_output=parameters.allow_text_output,
            output_tools=parameters.output_tools,
            model_settings=settings,
            model_request_parameters=parameters,
            instructions="\n\n".join(part.content for part in parameters.instruction_parts or ()),
        )
        line = self._script.next(messages, info)
        if isinstance(line, Exception):
            raise line
        reply = Reply(line) if isinstance(line, str) else Reply(calls=line) if isinstance(line, list) else line
        stream = _Streamed(model_request_parameters=parameters, _model_name=self.model_name, _iter=_pieces(reply))
        stream.finish_reason = reply.finish
        stream.reply = reply
        yield stream


class _Streamed(FunctionStreamedResponse):
    reply: Reply

    @property
    def usage(self) -> RequestUsage:
        taken = self.reply.usage or (10, 5)
        return RequestUsage(input_tokens=taken[0], output_tokens=taken[1])


async def _pieces(reply: Reply) -> AsyncIterator[Any]:
    if reply.thinks:
        yield {0: DeltaThinkingPart(content=reply.thinks)}
    for piece in (reply.text,) if isinstance(reply.text, str) else reply.text:
        await asyncio.sleep(reply.pause)
        yield piece
    if reply.breaks is not None:
        raise reply.breaks
    for at, (id, name, arguments) in enumerate(reply.calls, 1):
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        yield {at: DeltaToolCall(name=name, json_args=text[:3], tool_call_id=id)}
        yield {at: DeltaToolCall(json_args=text[3:])}


def problems(messages: Sequence[ModelMessage]) -> list[str]:
    """What a provider would refuse: calls without exactly one result right behind them, results without a call."""
    found = []
    owed: Counter[str] = Counter()
    for at, message in enumerate(messages):
        if isinstance(message, ModelRequest):
            returns = Counter(part.tool_call_id for part in message.parts if isinstance(part, ToolReturnPart))
            if returns != owed:
                found.append(f"message {at} has results for {dict(returns)}, and the calls were {dict(owed)}")
            kinds = [isinstance(part, ToolReturnPart) for part in message.parts]
            if kinds != sorted(kinds, reverse=True):
                found.append(f"message {at} has results behind other parts")
            if not message.parts:
                found.append(f"message {at} is empty")
            owed = Counter()
        else:
            if at == 0 or isinstance(messages[at - 1], ModelResponse):
                found.append(f"message {at} is a response to nothing")
            owed = Counter(call.tool_call_id for call in message.tool_calls)
    if not messages or isinstance(messages[-1], ModelResponse):
        found.append("the newest message is none of the user")
    return found


def called(id: str, tool: str, /, **arguments: Any) -> Sent:
    return id, tool, arguments


def spawned(id: str, tool: str, handle: str, /, **arguments: Any) -> Sent:
    return id, tool, {"action": "spawn", "id": handle, **arguments}


def at_end(action: str) -> Callable[[str], Any]:
    """Says the same of every handle it is asked about at the end of a turn (T2)."""

    def answer(text: str) -> Any:
        listed = json.loads(text[text.index('{"handles"') :])["handles"]
        return {"handles": [{"id": each["id"], "action": action} for each in listed]}

    return answer


STAGE: dict[str, FunctionModel] = {}
"""Models that configurations name."""


def put(**scripts: Script) -> Mapping[str, str]:
    """Put scripts on the stage; their names for a configuration."""
    STAGE.update({name: script.model for name, script in scripts.items()})
    return {name: f"python:tests.agent.scripted:{name}" for name in scripts}


def __getattr__(name: str) -> FunctionModel:
    if name not in STAGE:
        raise AttributeError(name)
    return STAGE[name]
