"""Long calls say that they go on, so that clients do not give up (M4)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.mcp.clients import ERAS, connected, read, texts
from tests.mcp.serving import serving
from tests.patience import until

import keephold.mcp.calls


class Heard:
    """What a client is told of the progress of one call."""

    def __init__(self) -> None:
        self.told: list[tuple[float, float | None, str | None]] = []

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.told.append((progress, total, message))

    @property
    def values(self) -> list[float]:
        return [progress for progress, _, _ in self.told]


@pytest.mark.parametrize("era", ERAS)
async def test_M4_progress_of_a_tool_is_forwarded(era: str, tmp_path: Path) -> None:
    heard = Heard()
    async with serving() as here, connected(here.url, era) as client:
        calling = asyncio.create_task(
            client.call_tool("measure", {"gate": str(tmp_path / "gate")}, progress_callback=heard)
        )
        await until(lambda: len(heard.told) >= 3)
        (tmp_path / "gate").touch()
        assert texts(await calling) == ["measured"]
        assert sorted(heard.told)[-3:] == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]
        await until(here.idle)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("wait_for", {"handleId": "h"}),
        ("wait_for_multiple", {"handleIds": ["h"], "mode": "race"}),
        ("await", {"all": ["h"]}),
        ("sleep", {"durationMs": 60_000}),
    ],
)
async def test_M4_a_wait_is_heard_of_while_it_lasts(
    era: str, tool: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keephold.mcp.calls, "PROGRESS_SECS", 0.02)
    heard = Heard()
    async with serving() as here, connected(here.url, era) as client:
        await client.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})
        calling = asyncio.create_task(client.call_tool(tool, arguments, progress_callback=heard))
        await until(lambda: len(heard.told) >= 5)
        assert len(set(heard.values)) == len(heard.values)  # a value never comes twice: it grows
        if tool == "sleep":
            calling.cancel()
            await asyncio.wait([calling])
        else:
            await client.call_tool("complete_wait_handle", {"handleId": "h", "result": 1})
            assert not (await calling).is_error
        await until(here.idle)
        seen = len(heard.told)
        await client.call_tool("echo", {"text": "x"})
        assert len(heard.told) <= seen + 1  # what was under way; nothing is said of a call that is over


@pytest.mark.parametrize("era", ERAS)
async def test_M4_a_wait_forwards_what_its_handle_says(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the latest with the next sign of life."""
    monkeypatch.setattr(keephold.mcp.calls, "PROGRESS_SECS", 0.02)
    heard = Heard()
    async with serving() as here, connected(here.url, era) as client:
        await client.call_tool("create_wait_handle", {"handleId": "h", "type": "custom"})
        calling = asyncio.create_task(client.call_tool("wait_for", {"handleId": "h"}, progress_callback=heard))
        await until(lambda: len(heard.told) >= 2)
        half = {"handleId": "h", "progress": 1, "total": 2, "message": "half of it"}
        assert not (await client.call_tool("update_wait_handle", half)).is_error
        await until(lambda: any("half of it" in (message or "") for _, _, message in heard.told))
        await client.call_tool("complete_wait_handle", {"handleId": "h", "result": 1})
        assert read(await calling)["status"] == "completed"
        await until(here.idle)


@pytest.mark.parametrize("era", ERAS)
async def test_M4_who_does_not_ask_for_it_is_told_nothing(era: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keephold.mcp.calls, "PROGRESS_SECS", 0.01)
    messages: list[Any] = []

    async def note(message: Any) -> None:
        messages.append(message)

    async with serving() as here, connected(here.url, era, message_handler=note) as client:
        assert read(await client.call_tool("sleep", {"durationMs": 100}))["success"] is True
    assert messages == []
