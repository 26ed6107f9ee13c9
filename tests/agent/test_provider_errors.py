"""Errors of providers and their clients, in sentences (G1)."""

from typing import Any

import pytest
from pydantic_ai.exceptions import (
    FallbackExceptionGroup,
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    UnexpectedModelBehavior,
    UserError,
)
from tests.agent.providers.base import Refusal
from tests.agent.providers.formats import FORMATS, WIRES

from keephold.agent.providers import sentence

BEGIN = "the provider of m answered 400 (Bad Request)"


def not_json() -> ModelAPIError:
    error = ModelAPIError("m", "Failed to decode response as JSON: Raw response: {'half")
    error.__cause__ = ValueError("raw")
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModelHTTPError(400, "m", {"message": "Too  many\ntools.", "code": None}), f"{BEGIN}: Too many tools."),
        (ModelHTTPError(400, "m", '{"detail": [{"loc": ["body"], "msg": "Required"}]}'), f"{BEGIN}: Required"),
        (ModelHTTPError(400, "m", {"error": '{"error": {"message": "Inside."}}'}), f"{BEGIN}: Inside."),
        (ModelHTTPError(400, "m", {"unknown": {"a": 1}}), BEGIN),
        (ModelHTTPError(400, "m", None), BEGIN),
        (ModelHTTPError(502, "m", "<html><body>nginx</body></html>"), "the provider of m answered 502 (Bad Gateway)"),
        (ModelHTTPError(529, "m", "Overloaded"), "the provider of m answered 529: Overloaded"),
        (ModelHTTPError(400, "m", "x" * 9000), f"{BEGIN}: {'x' * 500} …"),
        (ModelConnectionError("m", "ReadError"), "the connection to the provider of m failed"),
        (ModelConnectionError("m", "No route."), "the connection to the provider of m failed: No route."),
        (not_json(), "the response of m is not valid JSON"),
        (UnexpectedModelBehavior("It ended."), "It ended."),
        (UserError("No key."), "No key."),
        (KeyError("choices"), "the model's client failed with KeyError: 'choices'"),
        (
            FallbackExceptionGroup("all", [ModelHTTPError(429, "a", None), UserError("No key.")]),
            "every model failed: the provider of a answered 429 (Too Many Requests); No key.",
        ),
    ],
)  # fmt: skip
def test_G1_an_error_is_a_sentence(error: Exception, said: str) -> None:
    assert sentence(error) == said


@pytest.mark.parametrize("format", FORMATS)
def test_G1_the_words_of_each_provider_are_found(format: str) -> None:
    body: Any = WIRES[format]().error(Refusal(400, "You cannot have that."))
    assert sentence(ModelHTTPError(400, "m", body)) == f"{BEGIN}: You cannot have that."
