"""Providers for tests: in the test's own loop, or as a process for tests that start the command line.

async with provider("anthropic", [Reply(text="Hello.")]) as server, model_of(server) as model:
    await model_request(model, …)
server.requests[0].messages
"""

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider
from tests.agent.providers.base import KEY, Provider, running
from tests.agent.providers.formats import WIRES
from tests.agent.providers.script import Saying, Script, Step, Turn
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
KEPT: list[Any] = []
"""What was used to ask: Google's client starts a task when it is collected, which no test would wait for."""


@asynccontextmanager
async def provider(
    format: str, turns: Sequence[Step] | Saying = (), *, inquiries: Sequence[Step] = ()
) -> AsyncIterator[Provider]:
    """A server in this loop that follows the script."""
    async with running(Provider(WIRES[format](), Script(turns, inquiries))) as server:
        yield server


@asynccontextmanager
async def model_of(server: Provider, name: str | None = None, *, key: str = KEY) -> AsyncIterator[Model[Any]]:
    """The model of pydantic-ai that asks this server; its connections are closed at the end."""
    made = _model(server, name or server.wire.models[0], key)
    KEPT.append(made)
    async with made:
        yield made


def _model(server: Provider, name: str, key: str) -> Model[Any]:
    match server.wire.format:
        case "openai-chat":
            return OpenAIChatModel(name, provider=OpenAIProvider(base_url=server.url, api_key=key))
        case "openai-responses":
            return OpenAIResponsesModel(name, provider=OpenAIProvider(base_url=server.url, api_key=key))
        case "anthropic":
            return AnthropicModel(name, provider=AnthropicProvider(base_url=server.url, api_key=key))
    return GoogleModel(name, provider=GoogleProvider(base_url=server.url, api_key=key))


@dataclass
class Served:
    """A provider in another process."""

    url: str
    model: str
    """As a configuration names it."""
    env: dict[str, str]
    record: Path

    def requests(self) -> list[dict[str, Any]]:
        """What it was asked so far: the fields of `Asked`, less the headers."""
        return [json.loads(line) for line in self.record.read_text().splitlines()] if self.record.exists() else []


@contextmanager
def provider_process(
    format: str, directory: Path, turns: Sequence[Turn], *, inquiries: Sequence[Turn] = ()
) -> Iterator[Served]:
    """A server as a process of its own. Its script and what it was asked are files of the directory."""
    script, record = directory / f"{format}.script.json", directory / f"{format}.requests"
    script.write_bytes(msgspec.json.encode({"turns": list(turns), "inquiries": list(inquiries)}))
    command = [sys.executable, "-m", "tests.agent.providers.serve", format, str(script), str(record)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        about = json.loads(process.stdout.readline() or "{}")
        assert about, "the provider did not start"
        yield Served(about["url"], about["model"], about["env"], record)
    finally:
        process.stdin.close()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    assert process.returncode == 0, "the provider was asked more than its script has, or failed: see its stderr"
