"""The user's prompt in an editor, as content for a model: texts, images, attached or named files."""

import base64
import binascii
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from keephold.acp.agent.describing import clipped
from keephold.acp.rpc import invalid_params

if TYPE_CHECKING:
    from pydantic_ai.messages import UserContent

TITLE = 80
"""Characters of a session's title."""


def prompt_content(blocks: Any) -> "str | Sequence[UserContent]":
    """Return a prompt's content blocks for the model. Raises `RpcError` for one that cannot be used."""
    if not isinstance(blocks, list) or not blocks:
        raise invalid_params("`prompt` must be a list of content blocks with at least one")
    parts = [_content(block) for block in blocks]
    if all(isinstance(part, str) for part in parts):
        said = "\n\n".join(str(part) for part in parts)
        if not said.strip():
            raise invalid_params("the prompt is empty")
        return said
    return parts


def title_of(blocks: Sequence[Any]) -> str:
    texts = (block.get("text") for block in blocks if isinstance(block, dict) and block.get("type") == "text")
    said = next((text for text in texts if isinstance(text, str) and text.strip()), "")
    return clipped(said.strip().splitlines()[0], TITLE) if said.strip() else "A session"


def _content(block: Any) -> "UserContent":
    kind = block.get("type") if isinstance(block, dict) else None
    match kind:
        case "text":
            return _text(block, "text")
        case "image":
            return _binary(_text(block, "data"), _text(block, "mimeType"))
        case "resource_link":
            name = block.get("title") or block.get("name")
            return f"[{name}]({_text(block, 'uri')})" if name else _text(block, "uri")
        case "resource":
            return _resource(block.get("resource"))
        case "audio":
            raise invalid_params("audio is not taken (promptCapabilities.audio is false); send text or images")
    raise invalid_params(f"content of type {kind!r} is not known; there are text, image, resource_link and resource")


def _resource(resource: Any) -> "UserContent":
    if not isinstance(resource, dict):
        raise invalid_params("`resource` must be an object with `uri` and `text` or `blob`")
    uri = _text(resource, "uri")
    if "text" in resource:
        return f'<file uri="{uri}">\n{_text(resource, "text")}\n</file>'
    mime = resource.get("mimeType")
    return _binary(_text(resource, "blob"), mime if isinstance(mime, str) and mime else "application/octet-stream")


def _binary(data: str, mime: str) -> "UserContent":
    from pydantic_ai.messages import BinaryContent

    try:
        return BinaryContent(base64.b64decode(data, validate=True), media_type=mime)
    except (binascii.Error, ValueError):
        raise invalid_params("data must be base64") from None


def _text(block: dict[str, Any], key: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise invalid_params(f"`{key}` of a {block.get('type', 'resource')} block must be a string")
    return value
