"""Clients of 2025 that end their session while a notification of theirs is on its way.

The SDK has answered such a notification before it passes it on, finds the session gone, logs that as an error and
answers once more. Nothing is lost and nobody has to act: no second answer is sent, and the log stays quiet.
"""

import logging

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class AnsweredOnce:
    """Drops whatever is sent after a response is complete."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        complete = False

        async def once(message: Message) -> None:
            nonlocal complete
            if not complete:
                complete = message["type"] == "http.response.body" and not message.get("more_body", False)
                await send(message)

        await self._app(scope, receive, once)


def quiet() -> None:
    """Keep sessions that are gone out of the log."""
    logging.getLogger("mcp.server.streamable_http").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], anyio.ClosedResourceError)
