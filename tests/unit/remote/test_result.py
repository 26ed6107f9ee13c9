"""What a server answers, as the value of a call (M6): nothing is dropped, errors are told apart."""

import base64
from typing import Any

import mcp.types as types
import msgspec
import pytest
from mcp.shared.exceptions import MCPError

import keephold
from keephold.errors import ToolError
from keephold.tools.remote.following import failure, is_lost, outcome_of

SERVER = keephold.mcp_server("x", url="https://user:pass@example.org/mcp", headers={"Authorization": "Bearer abcdef"})


def answered(*content: Any, **more: Any) -> types.CallToolResult:
    return types.CallToolResult(content=list(content), **more)


def text(words: str) -> types.TextContent:
    return types.TextContent(text=words)


def data(size: int) -> str:
    return base64.b64encode(b"x" * size).decode()


def value_of(result: types.CallToolResult) -> Any:
    return outcome_of(result).value


def test_texts_are_joined() -> None:
    assert value_of(answered(text("a"), text("b"))) == "a\nb"


@pytest.mark.parametrize("value", [{"sum": 3}, [1], 0, False, "text"])
def test_structured_content_is_the_value(value: Any) -> None:
    assert value_of(answered(text("something"), structured_content=value)) == value


def test_a_text_that_was_wrapped_for_its_schema_is_a_text() -> None:
    assert value_of(answered(text("hello"), structured_content={"result": "hello"})) == "hello"


def test_what_is_no_text_is_described() -> None:
    parts = [
        types.ImageContent(data=data(12_000), mime_type="image/png"),
        types.AudioContent(data=data(10), mime_type="audio/wav"),
        types.ResourceLink(name="log", uri="file:///log", mime_type="text/plain"),
        types.EmbeddedResource(resource=types.TextResourceContents(uri="file:///a", text="inside")),
        types.EmbeddedResource(resource=types.BlobResourceContents(uri="file:///b", blob=data(2048))),
    ]
    assert value_of(answered(*parts)).splitlines() == [
        "[image image/png, 12 KiB]",
        "[audio audio/wav, 10 bytes]",
        "[resource log (text/plain): file:///log]",
        "[resource file:///a]",
        "inside",
        "[resource file:///b, binary, 2 KiB]",
    ]


def test_content_that_is_not_text_is_kept_as_it_is() -> None:
    picture = types.ImageContent(data=data(10), mime_type="image/png")
    link = types.ResourceLink(name="log", uri="file:///log")
    file = types.EmbeddedResource(resource=types.TextResourceContents(uri="file:///a", text="inside"))
    assert outcome_of(answered(text("here"), picture, link, file)).content == (
        {"type": "image", "data": data(10), "mimeType": "image/png"},
        {"type": "resource_link", "name": "log", "uri": "file:///log"},
    )
    assert outcome_of(answered(text("here"))).content is msgspec.UNSET


def test_a_picture_beside_structured_content_is_not_dropped() -> None:
    picture = types.ImageContent(data=data(10), mime_type="image/png")
    value = value_of(answered(text("{}"), picture, structured_content={"a": 1}))
    assert value == {"structuredContent": {"a": 1}, "content": ["[image image/png, 10 bytes]"]}


def test_an_error_is_raised_with_its_text_and_is_not_transient() -> None:
    with pytest.raises(ToolError, match="no luck") as raised:
        value_of(answered(text("no luck"), is_error=True))
    assert not raised.value.transient


@pytest.mark.parametrize(
    ("code", "message", "lost"),
    [
        (types.CONNECTION_CLOSED, "Connection closed", True),
        (types.REQUEST_TIMEOUT, "timed out", True),
        (types.INTERNAL_ERROR, "Server returned an error response", True),
        (types.INTERNAL_ERROR, "boom", False),
        (types.INVALID_PARAMS, "Unknown tool", False),
    ],
)
def test_which_errors_say_that_the_server_is_gone(code: int, message: str, lost: bool) -> None:
    assert is_lost(MCPError(code=code, message=message)) is lost


def test_K5_secrets_of_a_server_are_in_no_error() -> None:
    told = failure(SERVER, MCPError(code=-32603, message=f"bad token Bearer abcdef at {SERVER.url}"))
    assert told.code == "mcp_error" and told.message.endswith("bad token *** at *** (-32603)")
    assert "abcdef" not in repr(SERVER) and "pass" not in repr(SERVER)
