"""Models for `acp`, played by a function: they speak at a pace, and each word is the time at which it was said."""

import asyncio
import os
import time
from collections.abc import AsyncIterator

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

WORDS = int(os.environ.get("BENCH_WORDS", "100"))
PACE = float(os.environ.get("BENCH_PACE", "0.01"))


async def speak(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    """Word after word."""
    for number in range(WORDS):
        await asyncio.sleep(PACE)
        yield f"{number}:{time.monotonic_ns()} "


model = FunctionModel(stream_function=speak)
