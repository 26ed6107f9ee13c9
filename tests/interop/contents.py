"""Tools, resources and prompts of the fixture server that show something: every kind of content, and errors.

Names, texts and schemas are those that the conformance suite asks for; a docstring is what a client is shown.
"""

import asyncio
import base64
import json
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import Prompt, UserMessage
from mcp.shared.exceptions import MCPError
from mcp.types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)
from pydantic import Field

IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
AUDIO = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="

SCHEMA_2020_12: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def _text(text: str) -> TextContent:
    return TextContent(type="text", text=text)


def _image() -> ImageContent:
    return ImageContent(type="image", data=IMAGE, mime_type="image/png")


def _embedded(uri: str, text: str, mime_type: str = "text/plain") -> EmbeddedResource:
    contents = TextResourceContents(uri=uri, mime_type=mime_type, text=text)
    return EmbeddedResource(type="resource", resource=contents)


def test_simple_text() -> str:
    """Answers with text."""
    return "This is a simple text response for testing."


def test_image_content() -> list[ImageContent]:
    """Answers with an image."""
    return [_image()]


def test_audio_content() -> list[AudioContent]:
    """Answers with audio."""
    return [AudioContent(type="audio", data=AUDIO, mime_type="audio/wav")]


def test_embedded_resource() -> list[EmbeddedResource]:
    """Answers with an embedded resource."""
    return [_embedded("test://embedded-resource", "This is an embedded resource content.")]


def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """Answers with text, an image and a resource."""
    mixed = _embedded("test://mixed-content-resource", '{"test": "data", "value": 123}', "application/json")
    return [_text("Multiple content types test:"), _image(), mixed]


async def test_tool_with_logging(ctx: Context) -> str:
    """Writes three log messages while it works."""
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(message)
        await asyncio.sleep(0.05)
    return "Tool with logging executed successfully"


async def test_tool_with_progress(ctx: Context) -> str:
    """Reports progress three times while it works."""
    for done in (0, 50, 100):
        await ctx.report_progress(progress=done, total=100, message=f"Completed step {done} of 100")
        await asyncio.sleep(0.05)
    return "Progress reported"


def test_error_handling() -> str:
    """Fails."""
    raise RuntimeError("This tool intentionally returns an error for testing")


_Region = Annotated[str, Field(description="Mirrored into a header", json_schema_extra={"x-mcp-header": "Region"})]


def test_x_mcp_header(region: _Region = "<none>") -> str:
    """Has an argument that clients mirror into the header Mcp-Param-Region."""
    return f"region={region}"


async def test_missing_capability(ctx: Context) -> str:
    """Refuses clients that do not declare sampling."""
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        message = "This tool requires the client 'sampling' capability"
        missing: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(code=MISSING_REQUIRED_CLIENT_CAPABILITY, message=message, data=missing)
    return "Client declared sampling capability; proceeding."


def json_schema_2020_12_tool() -> str:
    """Has a schema with the keywords of JSON Schema 2020-12."""
    return "json_schema_2020_12_tool"


async def test_reconnection(ctx: Context) -> str:
    """Closes its stream while it works; the client is to come back for the rest."""
    await ctx.close_sse_stream()
    await asyncio.sleep(0.2)
    return "Reconnection test completed"


TOOLS = (
    test_simple_text, test_image_content, test_audio_content, test_embedded_resource, test_multiple_content_types,
    test_tool_with_logging, test_tool_with_progress, test_error_handling, test_x_mcp_header, test_missing_capability,
    json_schema_2020_12_tool, test_reconnection,
)  # fmt: skip


def test_simple_prompt() -> list[UserMessage]:
    """A prompt without arguments."""
    return [UserMessage(content=_text("This is a simple prompt for testing."))]


def test_prompt_with_arguments(arg1: str, arg2: str) -> list[UserMessage]:
    """A prompt with two arguments."""
    return [UserMessage(content=_text(f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"))]


def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:  # noqa: N803
    """A prompt that holds a resource."""
    resource = _embedded(resourceUri, "Embedded resource content for testing.")
    return [UserMessage(content=resource), UserMessage(content=_text("Please process the embedded resource above."))]


def test_prompt_with_image() -> list[UserMessage]:
    """A prompt that holds an image."""
    return [UserMessage(content=_image()), UserMessage(content=_text("Please analyze the image above."))]


PROMPTS = (test_simple_prompt, test_prompt_with_arguments, test_prompt_with_embedded_resource, test_prompt_with_image)


def add_contents(server: MCPServer) -> None:
    """Give the server these tools, prompts and resources."""
    for tool in TOOLS:
        server.add_tool(tool)
    # MCPServer makes schemas from signatures alone; this one is about keywords that no signature yields.
    server._tool_manager._tools["json_schema_2020_12_tool"].parameters = SCHEMA_2020_12
    for prompt in PROMPTS:
        server.add_prompt(Prompt.from_function(prompt))
    _add_resources(server)
    _add_changes(server)


def _add_resources(server: MCPServer) -> None:
    @server.resource("test://static-text")
    def static_text() -> str:
        """A text."""
        return "This is the content of the static text resource."

    @server.resource("test://static-binary")
    def static_binary() -> bytes:
        """An image."""
        return base64.b64decode(IMAGE)

    @server.resource("test://template/{id}/data")
    def template(id: str) -> str:
        """What a template makes of an id."""
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})

    @server.resource("test://watched-resource")
    def watched() -> str:
        """A text one can subscribe to."""
        return "Watched resource content"


def _add_changes(server: MCPServer) -> None:
    def changing() -> str:
        """Comes and goes."""
        return "dynamic"

    @server.tool()
    async def test_trigger_tool_change(ctx: Context) -> str:
        """Changes the list of tools and says so."""
        server.add_tool(changing, name="test_dynamic_tool")
        server.remove_tool("test_dynamic_tool")
        await ctx.notify_tools_changed()
        return "tool list changed"

    @server.tool()
    async def test_trigger_prompt_change(ctx: Context) -> str:
        """Changes the list of prompts and says so."""
        server.add_prompt(Prompt.from_function(changing, name="test_dynamic_prompt"))
        server.remove_prompt("test_dynamic_prompt")
        await ctx.notify_prompts_changed()
        return "prompt list changed"
