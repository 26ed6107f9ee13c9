"""What Anthropic refuses: schemas of tools and of structured output, and histories in which calls and results differ.

No live call was made. Found in public reports: the words for a union at the root, for calls without results, and for
ids of calls. The others are written from memory; that some models cannot be forced is known from pydantic-ai, in what
words is not.
"""

import base64
import hashlib
import re
from typing import Any

from tests.agent.providers.base import Refusal

Schema = dict[str, Any]
Block = dict[str, Any]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
_ID = re.compile(r"[a-zA-Z0-9_-]+\Z")
_ROOT = ("oneOf", "allOf", "anyOf")
_BOUNDS = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "minItems",
    "maxItems", "uniqueItems", "minProperties", "maxProperties", "oneOf",
)  # fmt: skip


def invalid(message: str) -> Refusal:
    return Refusal(400, message)


def signature(thinking: str) -> str:
    """What shows that a thought is ours."""
    return base64.b64encode(hashlib.sha256(thinking.encode()).digest()).decode()


# Tools


def check_tools(tools: list[dict[str, Any]]) -> None:
    for at, tool in enumerate(tools):
        where = f"tools.{at}.custom"
        if not _NAME.match(tool["name"]):
            raise invalid(f"{where}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
        schema = tool.get("input_schema")
        if schema is None:
            raise invalid(f"{where}.input_schema: Field required")
        if any(word in schema for word in _ROOT):
            raise invalid(
                f"{where}.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level"
            )
        if "type" not in schema:
            raise invalid(f"{where}.input_schema.type: Field required")
        if schema["type"] != "object":
            raise invalid(f"{where}.input_schema.type: Input should be 'object'")
        if tool.get("strict"):
            check_strict(schema, where)
    names = [tool["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise invalid("tools: Tool names must be unique.")


def check_strict(schema: Any, where: str) -> None:
    """Raise the refusal of a schema that the model is bound to."""
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        raise invalid(f"{where}: For 'object' type, 'additionalProperties' must be explicitly set to false")
    if unknown := [word for word in _BOUNDS if word in schema]:
        raise invalid(f"{where}: For '{schema.get('type')}' type, properties {', '.join(unknown)} are not supported")
    inside = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", [])]
    for own in [*inside, schema.get("items")]:
        check_strict(own, where)


# The conversation


def check_messages(messages: list[dict[str, Any]]) -> None:
    if not messages:
        raise invalid("messages: at least one message is required")
    for at, message in enumerate(messages):
        _check_role(message["role"], at)
        _check_content(message, at, last=at == len(messages) - 1)
    _check_pairs(_turns(messages))


def _check_role(role: str, at: int) -> None:
    if role == "system":
        raise invalid(
            'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, not "system" '
            "as an input message role."
        )
    if role not in ("user", "assistant"):
        raise invalid(f'messages: Unexpected role "{role}". Allowed roles are "user" or "assistant".')
    if at == 0 and role != "user":
        raise invalid('messages: first message must use the "user" role')


def _check_content(message: dict[str, Any], at: int, *, last: bool) -> None:
    content = message["content"]
    if not content and not (last and message["role"] == "assistant"):
        raise invalid(
            f"messages.{at}: all messages must have non-empty content except for the optional final assistant message"
        )
    for number, block in enumerate(blocks(content)):
        where = f"messages.{at}.content.{number}"
        match block["type"]:
            case "text" if not block["text"]:
                raise invalid("messages: text content blocks must be non-empty")
            case "text" if not block["text"].strip():
                raise invalid("messages: text content blocks must contain non-whitespace text")
            case "tool_use" if not _ID.match(block["id"]):
                raise invalid(f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
            case "tool_use" if not _NAME.match(block["name"]):
                raise invalid(f"{where}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
            case "tool_result":
                if any(each["type"] == "text" and not each["text"].strip() for each in blocks(block.get("content"))):
                    raise invalid("messages: text content blocks must contain non-whitespace text")
            case "tool_use" if not isinstance(block["input"], dict):
                raise invalid(f"{where}.tool_use.input: Input should be a valid dictionary")
            case "thinking" if block["signature"] != signature(block["thinking"]):
                raise invalid(f"{where}: Invalid `signature` in `thinking` block")
    if last and message["role"] == "assistant" and texts_of(content) != texts_of(content).rstrip():
        raise invalid("messages: final assistant content cannot end with trailing whitespace")


def blocks(content: Any) -> list[Block]:
    """Content as blocks, also where it is text."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])


def texts_of(content: Any) -> str:
    return "".join(block["text"] for block in blocks(content) if block["type"] == "text")


def _turns(messages: list[dict[str, Any]]) -> list[tuple[str, int, list[Block]]]:
    """Messages of one role that follow each other are one turn: role, number of its first message, content."""
    turns: list[tuple[str, int, list[Block]]] = []
    for at, message in enumerate(messages):
        if turns and turns[-1][0] == message["role"]:
            turns[-1][2].extend(blocks(message["content"]))
        else:
            turns.append((message["role"], at, blocks(message["content"])))
    return turns


def _check_pairs(turns: list[tuple[str, int, list[Block]]]) -> None:
    used: set[str] = set()
    for number, (_, at, content) in enumerate(turns):
        called = [block["id"] for block in content if block["type"] == "tool_use"]
        if len(set(called)) < len(called) or used & set(called):
            raise invalid(f"messages.{at}: `tool_use` ids must be unique")
        used.update(called)
        before = turns[number - 1][2] if number else []
        _check_results(at, content, {block["id"] for block in before if block["type"] == "tool_use"})
        following = turns[number + 1][2] if number + 1 < len(turns) else []
        _check_answered(at, called, following)


def _check_results(at: int, content: list[Block], asked: set[str]) -> None:
    seen: set[str] = set()
    for place, block in enumerate(content):
        if block["type"] != "tool_result":
            continue
        id, where = block["tool_use_id"], f"messages.{at}.content.{place}"
        if id not in asked:
            raise invalid(
                f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block must "
                "have a corresponding `tool_use` block in the previous message."
            )
        if id in seen:
            raise invalid(
                f"{where}: each tool_use must have a single result. Found multiple `tool_result` blocks with id: {id}"
            )
        seen.add(id)


def _check_answered(at: int, called: list[str], following: list[Block]) -> None:
    """Results come first in what follows; one behind a text does not count."""
    first: set[str] = set()
    for block in following:
        if block["type"] != "tool_result":
            break
        first.add(block["tool_use_id"])
    if missing := [id for id in called if id not in first]:
        raise invalid(
            f"messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the next "
            "message."
        )
