"""Agents that others wrote pass `acp-check` with a model that only talks (X5). They are large: only for `make soak`."""

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.interop.foreign import NODE, ROOT, need
from tests.soak import SOAK

from keephold.acp.check import Settings, run

AGENTS = ROOT / "build" / "agents"
SLOWLY = "speak slowly"


class Talking(BaseHTTPRequestHandler):
    """A model of an OpenAI-compatible provider: it says a few words, or one a tenth of a second if it is asked to."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        slowly = SLOWLY in json.dumps(asked["messages"][-2:])
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if asked.get("stream") else "application/json")
        self.end_headers()
        if not asked.get("stream"):
            self.wfile.write(json.dumps(self._said("message", {"role": "assistant", "content": "hello"})).encode())
            return
        try:
            for _ in range(3000 if slowly else 3):
                self._send(self._said("delta", {"role": "assistant", "content": "hello "}, None))
                time.sleep(0.1 if slowly else 0)
            self._send(self._said("delta", {}))
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            pass  # the turn was cancelled

    def _said(self, key: str, value: dict[str, Any], end: str | None = "stop") -> dict[str, Any]:
        kind = "chat.completion" if key == "message" else "chat.completion.chunk"
        choice = {"index": 0, key: value, "finish_reason": end}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return {"id": "1", "object": kind, "created": 1, "model": "talking", "choices": [choice], "usage": usage}

    def _send(self, event: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def provider() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Talking)
    server.daemon_threads = True
    serving = Thread(target=server.serve_forever)
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    serving.join()
    server.server_close()


@pytest.mark.skipif(not SOAK, reason="only with KEEPHOLD_SOAK=1")
@pytest.mark.timeout(600)
async def test_X5_qwen_code_passes_after_it_was_authenticated(
    tmp_path: Path, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(AGENTS)
    settings = {"HOME": str(tmp_path), "OPENAI_API_KEY": "x", "OPENAI_BASE_URL": provider, "OPENAI_MODEL": "talking"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    command = (str(NODE), str(AGENTS / "node_modules" / ".bin" / "qwen"), "--acp")
    report = await run(Settings(command, 100.0, ("OPENAI_API_KEY",), auth="openai", prompt="talk", slow_prompt=SLOWLY))
    assert [(each.name, each.why) for each in report.checks if each.outcome == "failed"] == []
    skipped = {each.name for each in report.checks if each.outcome == "skipped" and each.topic != "turn_complete"}
    without_tools = {"tool-call-order", "cancel-permission"}
    without_tools |= {f"permission-{name}" for name in ("request", "allow", "reject")}
    assert skipped == without_tools | {"close-session"}
