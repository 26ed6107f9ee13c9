"""The formats by name."""

from tests.agent.providers.anthropic import Anthropic
from tests.agent.providers.base import Wire
from tests.agent.providers.gemini import Gemini
from tests.agent.providers.openai_chat import OpenAIChat
from tests.agent.providers.openai_responses import OpenAIResponses

WIRES: dict[str, type[Wire]] = {wire.format: wire for wire in (OpenAIChat, OpenAIResponses, Anthropic, Gemini)}
FORMATS = list(WIRES)
