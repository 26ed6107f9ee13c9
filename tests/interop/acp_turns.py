"""What holds of every turn of `keephold acp` (X2), looked for in the messages of a connection as its client saw them.

They are in order, and do not say which side has sent them.
"""

from typing import Any

Message = dict[str, Any]
SIGNAL = "_keephold/turn_complete"


def prompts(messages: list[Message]) -> list[Message]:
    """The prompts that were sent."""
    return [message for message in messages if message.get("method") == "session/prompt"]


def answer(messages: list[Message], prompt: Message) -> Message:
    """A prompt's answer. The agent numbers its own requests, so that a number alone does not say what is answered."""
    behind = messages[messages.index(prompt) + 1 :]
    return next(
        each
        for each in behind
        if "method" not in each and each["id"] == prompt["id"] and ("error" in each or "stopReason" in each["result"])
    )


def updates(messages: list[Message], prompt: Message) -> list[dict[str, Any]]:
    """The updates of its session between a prompt and its answer."""
    first, last = messages.index(prompt), messages.index(answer(messages, prompt))
    return _updates(messages[first:last], prompt["params"]["sessionId"])


def ended(messages: list[Message], prompt: Message) -> str:
    """The stop reason of a turn that was told to be complete as it must be: once, last, and right before its answer."""
    session, response = prompt["params"]["sessionId"], answer(messages, prompt)
    reason: str = response["result"]["stopReason"]
    told = {"sessionId": session, "promptRequestId": str(prompt["id"]), "stopReason": reason}
    signals = [each["params"] for each in messages if each.get("method") == SIGNAL]
    assert [each for each in signals if each["promptRequestId"] == str(prompt["id"])] == [told]
    end = messages.index(response)
    *_, before = (each for each in messages[:end] if "outcome" not in each.get("result", {}))  # that is the client's
    assert before == {"jsonrpc": "2.0", "method": SIGNAL, "params": told}
    assert all(_is_background(update) for update in _updates(_until_next(messages[end:], session), session))
    return reason


def statuses(updates: list[dict[str, Any]], label: str) -> list[str]:
    """How the tool call of that label went on."""
    return [each["status"] for each in updates if each.get("toolCallId", "").endswith(f".{label}") and "status" in each]


def text(updates: list[dict[str, Any]]) -> str:
    """What the assistant said."""
    return "".join(each["content"]["text"] for each in updates if each["sessionUpdate"] == "agent_message_chunk")


def _until_next(messages: list[Message], session: str) -> list[Message]:
    """Up to the session's next prompt, or to where it is shown again."""
    again = ("session/prompt", "session/load")
    for at, each in enumerate(messages):
        if each.get("method") in again and each["params"]["sessionId"] == session:
            return messages[:at]
    return messages


def _updates(messages: list[Message], session: str) -> list[dict[str, Any]]:
    told = [each["params"] for each in messages if each.get("method") == "session/update"]
    return [params["update"] for params in told if params["sessionId"] == session]


def _is_background(update: dict[str, Any]) -> bool:
    return bool(update.get("_meta", {}).get("keephold/background"))
