"""Results that are not text: return an `Image`, an `Audio`, a `Link`, or a list of these and texts from a tool.

MCP clients get them as they are. Models and pages get a text that describes them, such as `[image image/png, 12 KiB]`.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

__all__ = ["Audio", "Image", "Link"]


class Image(msgspec.Struct, frozen=True):
    """An image: the bytes of its file."""

    data: bytes = b""
    mime_type: str = "image/png"

    def block(self) -> dict[str, Any]:
        return {"type": "image", "data": base64.b64encode(self.data).decode(), "mimeType": self.mime_type}


class Audio(msgspec.Struct, frozen=True):
    """A sound: the bytes of its file."""

    data: bytes = b""
    mime_type: str = "audio/wav"

    def block(self) -> dict[str, Any]:
        return {"type": "audio", "data": base64.b64encode(self.data).decode(), "mimeType": self.mime_type}


class Link(msgspec.Struct, frozen=True):
    """A resource that the client may read or show by itself."""

    uri: str
    name: str = ""
    mime_type: str | None = None
    description: str | None = None

    def block(self) -> dict[str, Any]:
        block = {"type": "resource_link", "uri": self.uri, "name": self.name or self.uri}
        more = {"mimeType": self.mime_type, "description": self.description}
        return block | {key: value for key, value in more.items() if value is not None}


def file_block(data: bytes, mime_type: str, name: str) -> dict[str, Any]:
    """Return a file as an image or audio by its MIME type, or as a resource."""
    if mime_type.startswith("image/"):
        return Image(data, mime_type).block()
    if mime_type.startswith("audio/"):
        return Audio(data, mime_type).block()
    blob = base64.b64encode(data).decode()
    return {"type": "resource", "resource": {"uri": f"keephold:///{name}", "mimeType": mime_type, "blob": blob}}


def returned(value: Any) -> tuple[str, tuple[dict[str, Any], ...]] | None:
    """Return the text and the blocks of a value that has any of these; None for every other value."""
    parts = list(value) if isinstance(value, list | tuple) else [value]
    if not any(isinstance(part, Image | Audio | Link) for part in parts):
        return None
    blocks: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, Image | Audio | Link):
            blocks.append(part.block())
        elif isinstance(part, str):
            blocks.append({"type": "text", "text": part})
        else:
            raise TypeError(f"beside images, audio and links a list may have texts, not a {type(part).__name__}")
    return "\n".join(map(described, blocks)), media(blocks)


def media(blocks: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return the blocks that are not text, and are not a file of text."""
    return tuple(dict(each) for each in blocks if each.get("type") != "text" and "text" not in each.get("resource", ()))


def described(block: Mapping[str, Any]) -> str:
    """Return a content block of MCP as text."""
    mime = block.get("mimeType")
    match block.get("type"):
        case "text":
            return str(block["text"])
        case "image" | "audio" as kind:
            return f"[{kind} {mime}, {_size(block['data'])}]"
        case "resource_link":
            about = f" ({mime})" if mime else ""
            return f"[resource {block.get('name')}{about}: {block['uri']}]"
        case "resource":
            inner = block["resource"]
            if "text" in inner:
                return f"[resource {inner['uri']}]\n{inner['text']}"
            return f"[resource {inner['uri']}, {inner.get('mimeType') or 'binary'}, {_size(inner['blob'])}]"
    return f"[{block.get('type')}]"


def _size(data: str) -> str:
    """Return the size of base64 data, for people."""
    count = len(data.rstrip("=")) * 3 // 4
    return f"{count} bytes" if count < 1024 else f"{-(-count // 1024)} KiB"
