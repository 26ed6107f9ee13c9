"""Images, audio and links that our own tools return, and what a configuration declares of a tool (M1)."""

import base64
from pathlib import Path
from typing import Any

import mcp.types as types
from mcp import Client

import keephold
from keephold import Runtime
from keephold.content import Audio, Image, Link
from keephold.mcp.server import Server


@keephold.tool
def draw() -> Image:
    """Draw."""
    return Image(b"\x89PNG", "image/png")


@keephold.tool(hints={"title": "Show all"})
async def show() -> list[Any]:
    """Show all kinds."""
    return ["here", Audio(b"RIFF"), Link("file:///a.txt", name="a", mime_type="text/plain")]


@keephold.tool
def mixed() -> list[Any]:
    """Mix what cannot be mixed."""
    return [Image(b""), {"a": 1}]


CONFIG = """
[conversation.tools."*"]
run = "unattended"
source = "local"
[conversation.tools.dot]
command = ["printf", "GIF89a"]
returns = "image/gif"
hints = { title = "Dot", readOnlyHint = true }
[conversation.tools.torn]
command = { program = "printf 'GIF89a'; exit 3", shell = true }
returns = "image/gif"
[conversation.tools.sum]
command = ["echo", '{"sum": 3}']
returns = { type = "object", properties = { sum = { type = "integer" } }, required = ["sum"] }
"""


dot = keephold.command(["printf", "GIF89a"], name="dot", returns="image/gif")
both = keephold.command(["echo", '{"sum": 3}'], name="sum", returns={"type": "object", "properties": {"sum": {}}})


async def test_M1_commands_made_in_python_return_images_and_objects() -> None:
    async with Runtime([dot, both]) as rt, Client(Server(rt)) as client:
        _, image = (await client.call_tool("dot", {})).content
        assert isinstance(image, types.ImageContent) and image.mime_type == "image/gif"
        assert (await client.call_tool("sum", {})).structured_content == {"sum": 3}


async def test_M1_functions_return_images_audio_and_links() -> None:
    async with Runtime([draw, show, mixed]) as rt, Client(Server(rt)) as client:
        text, image = (await client.call_tool("draw", {})).content
        assert isinstance(text, types.TextContent) and text.text == "[image image/png, 4 bytes]"
        assert isinstance(image, types.ImageContent) and base64.b64decode(image.data) == b"\x89PNG"
        text, audio, link = (await client.call_tool("show", {})).content
        assert isinstance(text, types.TextContent)
        assert text.text == "here\n[audio audio/wav, 4 bytes]\n[resource a (text/plain): file:///a.txt]"
        assert isinstance(audio, types.AudioContent) and isinstance(link, types.ResourceLink)
        assert (link.uri, link.name, link.mime_type) == ("file:///a.txt", "a", "text/plain")
        wrong = await client.call_tool("mixed", {})
        assert wrong.is_error and "a list may have texts, not a dict" in str(wrong.content[0])


async def test_M1_commands_return_images_and_declare_titles_hints_and_objects(tmp_path: Path) -> None:
    (tmp_path / "keephold.toml").write_text(CONFIG)
    async with Runtime(config=tmp_path / "keephold.toml") as rt, Client(Server(rt)) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["dot"].title == "Dot" and tools["dot"].annotations is not None
        assert tools["dot"].annotations.read_only_hint
        assert tools["sum"].output_schema == {"type": "object", "properties": {"sum": {"type": "integer"}}}
        _, image = (await client.call_tool("dot", {})).content
        assert isinstance(image, types.ImageContent) and image.mime_type == "image/gif"
        assert base64.b64decode(image.data) == b"GIF89a"
        assert (await client.call_tool("sum", {})).structured_content == {"sum": 3}
        torn = await client.call_tool("torn", {})
        assert torn.is_error and len(torn.content) == 1


@keephold.tool(actions=("spawn", "fetch", "abort"))
async def later() -> Image:
    """Draw in the background."""
    return Image(b"late")


async def test_M1_fetch_and_await_bring_the_images_of_the_handles_that_have_stopped() -> None:
    async with Runtime([later]) as rt, Client(Server(rt)) as client:
        await client.call_tool("later", {"spawn": "a"})
        await client.call_tool("later", {"spawn": "b"})
        assert [part.type for part in (await client.call_tool("await", {"all": ["a", "b"]})).content] == [
            "text",
            "image",
            "image",
        ]
        assert [part.type for part in (await client.call_tool("handle_fetch", {"id": "a"})).content] == [
            "text",
            "image",
        ]
