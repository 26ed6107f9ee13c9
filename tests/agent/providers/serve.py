"""A provider as a process of its own: `python -m tests.agent.providers.serve FORMAT SCRIPT.json [RECORD]`.

The first line on stdout is `{"url", "model", "env"}`: where it serves, a model string for the agent, and what a process
needs in its environment to ask it. Each request is added to the file RECORD, a line of JSON each. It ends at the end of
its stdin or at SIGTERM; nothing is to be written to it.
"""

import asyncio
import contextlib
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.agent.providers.base import KEY, Provider, running
from tests.agent.providers.formats import FORMATS, WIRES
from tests.agent.providers.neutral import Asked
from tests.agent.providers.script import read_script

_NAMES = {
    "openai-chat": ("openai-chat", "OPENAI_BASE_URL", "OPENAI_API_KEY"),
    "openai-responses": ("openai-responses", "OPENAI_BASE_URL", "OPENAI_API_KEY"),
    "anthropic": ("anthropic", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
    "gemini": ("google", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_API_KEY"),
}
"""How pydantic-ai calls the provider, and what its SDK looks for in the environment."""


def model_name(format: str) -> str:
    """The model as a configuration names it."""
    return f"{_NAMES[format][0]}:{WIRES[format].models[0]}"


def environment(provider: Provider) -> dict[str, str]:
    """What makes the SDK of a format ask this server."""
    _, url, key = _NAMES[provider.wire.format]
    return {url: provider.url, key: KEY}


async def serve(format: str, script: Path, record: Path | None) -> None:
    def recorded(asked: Asked) -> None:
        if record is not None:
            with record.open("a") as lines:
                lines.write(json.dumps(as_record(asked)) + "\n")

    provider = Provider(WIRES[format](), read_script(script.read_bytes()), recorded)
    async with running(provider):
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, ended.set)
        with contextlib.suppress(PermissionError):  # a file, or /dev/null, has no end to wait for
            loop.add_reader(sys.stdin.fileno(), ended.set)
        about = {"url": provider.url, "model": model_name(format), "env": environment(provider)}
        print(json.dumps(about), flush=True)
        await ended.wait()
        loop.remove_reader(sys.stdin.fileno())


def as_record(asked: Asked) -> dict[str, Any]:
    """A request as JSON; without the headers, one of which is the key."""
    return {key: value for key, value in asdict(asked).items() if key != "headers"}


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 4 or sys.argv[1] not in FORMATS:
        sys.exit(f"usage: python -m tests.agent.providers.serve {{{'|'.join(FORMATS)}}} SCRIPT.json [RECORD]")
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) == 4 else None))
