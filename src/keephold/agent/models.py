"""Open the model of `assistant` settings through pydantic-ai (G1, G3).

`model` is `provider:name`, as in pydantic-ai, or `python:module:attribute` for a `Model` object or a function that
makes one. The dialect of tool schemas follows the model's profile.
"""

import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keephold.errors import KeepholdError
from keephold.extras import need
from keephold.schema.dialects import Dialect

if TYPE_CHECKING:
    from pydantic_ai.models import Model
    from pydantic_ai.settings import ModelSettings

    from keephold.config.model import AssistantSettings

_DIALECTS: tuple[tuple[str, Dialect], ...] = (
    ("OpenAI", "openai"),
    ("Anthropic", "anthropic"),
    ("Google", "gemini"),
    ("Bedrock", "bedrock"),
    ("Mistral", "mistral"),
)
"""Dialects by the start of the profile's schema class name."""
_SYSTEMS: dict[str, Dialect] = {
    "openai": "openai", "anthropic": "anthropic", "google": "gemini", "google-gla": "gemini", "bedrock": "bedrock",
    "mistral": "mistral", "mistral_ai": "mistral",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Assistant:
    """A model with its settings."""

    model: "Model[Any]"
    settings: "ModelSettings"
    dialect: Dialect
    strict: bool = False

    @property
    def name(self) -> str:
        return self.model.model_name


def open_assistant(settings: "AssistantSettings", root: Path, model: "Model[Any] | str | None" = None) -> Assistant:
    """Return the model of these settings, or the given one; modules are also searched in `root`.

    Raises `KeepholdError` if the model cannot be opened.
    """
    need_pydantic_ai()
    if isinstance(model, str):
        settings = settings.under({"model": model})
    chosen = model if model is not None else settings.model
    if chosen is None:
        raise KeepholdError(
            'no model is configured; set `model = "provider:name"` in [conversation.assistant], or name one by '
            "--model, $KEEPHOLD_MODEL or `model=`",
            code="no_model",
        )
    found = _named(chosen, settings, root) if isinstance(chosen, str) else chosen
    dialect = dialect_of(found)
    strict = settings.strict and dialect == "openai"
    return Assistant(found, _settings(settings), "openai-strict" if strict else dialect, strict)


def need_pydantic_ai() -> None:
    """Raise an error that names the missing extra if pydantic-ai is not installed."""
    need("agent", "a model", "pydantic_ai")


def laid_over(settings: "AssistantSettings", written: Mapping[str, Any]) -> "AssistantSettings":
    """Return the settings overridden by a table. Raises `KeepholdError`."""
    from pydantic import ValidationError

    try:
        return settings.under(written)
    except ValidationError as error:
        raise KeepholdError(f"settings of a model that cannot be taken: {error}", code="no_model") from None


def dialect_of(model: "Model[Any]") -> Dialect:
    """Return the schema dialect of the model's provider, by its profile (G3)."""
    several = getattr(model, "models", None)  # a FallbackModel has no profile of its own
    if several:
        return dialect_of(several[0])
    transformer = model.profile.get("json_schema_transformer")
    name = "" if transformer is None else transformer.__name__
    known = next((dialect for start, dialect in _DIALECTS if name.startswith(start)), None)
    return known or _SYSTEMS.get(model.system, "generic")


def _named(name: str, settings: "AssistantSettings", root: Path) -> "Model[Any]":
    if name.startswith("python:"):
        return _imported(name, root)
    return _inferred(name, settings.base_url, settings.api_key_env)


def _inferred(name: str, base_url: str | None, api_key_env: str | None) -> "Model[Any]":
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model
    from pydantic_ai.providers import infer_provider, infer_provider_class

    def provider(kind: str) -> Any:
        given: dict[str, Any] = {} if base_url is None else {"base_url": base_url}
        if api_key_env is not None:
            key = os.environ.get(api_key_env)
            if not key:
                raise UserError(f"the environment has no {api_key_env}, which `api_key_env` names")
            given["api_key"] = key
        return infer_provider_class(kind)(**given) if given else infer_provider(kind)

    try:
        return infer_model(name, provider)
    except (UserError, ImportError, TypeError, ValueError) as error:
        raise KeepholdError(f"model `{name}` cannot be used: {error}", code="no_model") from None


def _imported(name: str, root: Path) -> "Model[Any]":
    from pydantic_ai.models import Model

    if str(root) not in sys.path:
        sys.path.append(str(root))  # last, as for tools of the configuration
    _, _, place = name.partition(":")
    module, colon, attribute = place.partition(":")
    if not (module and colon and attribute):
        raise KeepholdError(f"model `{name}` must be `python:module:attribute`", code="no_model")
    try:
        found = getattr(importlib.import_module(module), attribute)
        made = found() if not isinstance(found, Model) and callable(found) else found
    except Exception as error:
        raise KeepholdError(f"model `{name}` cannot be imported: {error}", code="no_model") from error
    if not isinstance(made, Model):
        raise KeepholdError(f"`{name}` is a {type(made).__name__}, not a model of pydantic-ai", code="no_model")
    return made


def _settings(settings: "AssistantSettings") -> "ModelSettings":
    given: dict[str, Any] = {
        key: getattr(settings, key)
        for key in ("temperature", "top_p", "max_tokens")
        if getattr(settings, key) is not None
    }
    # The loop retries requests and reports that; a client that retries, too, would multiply the waiting. Each
    # request of a turn repeats the same beginning, so ask providers to cache it.
    return {"timeout": settings.timeout_secs, "max_retries": 0, "cache": True, **settings.settings, **given}  # type: ignore[typeddict-item]
