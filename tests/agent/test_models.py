"""Which model is asked, and how (G1, G3): names, keys, addresses, dialects."""

import asyncio
import sys
import types
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import pytest
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from tests.agent.scripted import Script
from tests.agent.talk import written

from keephold import KeepholdError, Runtime
from keephold.agent.models import Assistant, dialect_of, laid_over, open_assistant
from keephold.config.model import AssistantSettings
from keephold.testing import VirtualClock

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY", "MISTRAL_API_KEY", "OWN_KEY")


def opened(**settings: Any) -> Assistant:
    return open_assistant(AssistantSettings(**settings), Path(__file__).parent)


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("name", "dialect"),
    [
        ("openai:gpt-4o", "openai"),
        ("openai-chat:gpt-4o", "openai"),
        ("openai-responses:gpt-5", "openai"),
        ("anthropic:claude-sonnet-4-5", "anthropic"),
        ("google:gemini-2.5-flash", "gemini"),
    ],
)
def test_G3_dialect_by_the_models_profile(name: str, dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_KEY", "k")
    assistant = opened(model=name, api_key_env="OWN_KEY")
    assert (assistant.dialect, assistant.strict) == (dialect, False)
    assert assistant.name == name.partition(":")[2]


@pytest.mark.parametrize("kind", ["Bedrock", "Mistral", "Google", "OpenAI", "Anthropic"])
def test_G3_dialect_of_models_that_are_not_installed_here(kind: str) -> None:
    """By the class that a profile uses for schemas."""
    transformer = types.new_class(f"{kind}JsonSchemaTransformer")
    profile: Any = {"json_schema_transformer": transformer}
    wanted = "gemini" if kind == "Google" else kind.lower()
    assert dialect_of(FunctionModel(lambda *_: None, profile=profile)) == wanted  # type: ignore[arg-type]


def test_G3_dialect_of_a_model_that_says_nothing() -> None:
    assert dialect_of(TestModel()) == "generic"


def test_G3_strict_is_for_those_who_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_KEY", "k")
    by_openai = opened(model="openai:gpt-4o", api_key_env="OWN_KEY", strict=True)
    assert (by_openai.dialect, by_openai.strict) == ("openai-strict", True)
    other = opened(model="anthropic:claude-sonnet-4-5", api_key_env="OWN_KEY", strict=True)
    assert (other.dialect, other.strict) == ("anthropic", False)


@pytest.mark.parametrize("name", ["openai:gpt-4o", "anthropic:claude-sonnet-4-5", "google:gemini-2.5-flash"])
def test_G1_a_key_that_is_missing(name: str) -> None:
    with pytest.raises(KeepholdError, match="API_KEY") as caught:
        opened(model=name)
    assert caught.value.code == "no_model"
    with pytest.raises(KeepholdError, match="OWN_KEY") as caught:
        opened(model=name, api_key_env="OWN_KEY")
    assert caught.value.code == "no_model"


@pytest.mark.parametrize(
    "name", ["nobody:nothing", "gpt-4o-no-provider", "", ":", "openai:", "python:", "python:json", "python::x"]
)
def test_G1_a_model_that_nobody_knows(name: str) -> None:
    with pytest.raises(KeepholdError) as caught:
        opened(model=name)
    assert caught.value.code == "no_model"


def test_G1_no_model_at_all() -> None:
    with pytest.raises(KeepholdError, match=r"\[conversation.assistant\]") as caught:
        opened()
    assert caught.value.code == "no_model"


async def test_G1_the_error_comes_before_any_turn(tmp_path: Path) -> None:
    async with Runtime() as rt:
        with pytest.raises(KeepholdError) as caught:
            rt.conversation("main")
        assert caught.value.code == "no_model"
        with pytest.raises(KeepholdError):
            rt.conversation("main", model="nobody:nothing")
        rt.conversation("main", model=TestModel())


def test_G1_base_url_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_KEY", "secret")
    assistant = opened(model="openai-chat:local", base_url="http://127.0.0.1:9/v1", api_key_env="OWN_KEY", max_tokens=7)
    client: Any = assistant.model.client  # type: ignore[attr-defined]
    assert str(client.base_url).rstrip("/") == "http://127.0.0.1:9/v1"
    assert client.api_key == "secret"
    assert assistant.settings.get("max_tokens") == 7
    assert assistant.settings.get("timeout") == 600
    assert assistant.settings.get("max_retries") == 0


def test_G1_python_models(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("own_models")
    model = TestModel()
    module.__dict__.update(ready=model, made=lambda: model, wrong=3, failing=lambda: 1 / 0)
    monkeypatch.setitem(sys.modules, "own_models", module)
    assert opened(model="python:own_models:ready").model is model
    assert opened(model="python:own_models:made").model is model
    for name in ("wrong", "failing", "missing"):
        with pytest.raises(KeepholdError, match=f"python:own_models:{name}"):
            opened(model=f"python:own_models:{name}")
    with pytest.raises(KeepholdError, match="no_such_module"):
        opened(model="python:no_such_module:x")


def test_Q2_settings_that_come_as_a_table() -> None:
    assert laid_over(AssistantSettings(), {"model": "x:y", "temperature": 1}).temperature == 1
    with pytest.raises(KeepholdError, match="temprature") as caught:
        laid_over(AssistantSettings(), {"temprature": 1})
    assert caught.value.code == "no_model"


async def test_G1_what_is_the_same_model_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connections are shared, however it is asked."""
    module = types.ModuleType("own_models")
    module.__dict__.update(made=lambda: Script("One.").model)
    monkeypatch.setitem(sys.modules, "own_models", module)
    file = written(tmp_path, '[conversation.assistant]\nmodel = "python:own_models:made"')
    async with Runtime(config=file) as rt:
        one, two = rt.conversation(), rt.conversation()
        assert one.id != two.id
        assert one.assistant.model is two.assistant.model
        asked = rt.agents.assistant(AssistantSettings(model="python:own_models:made", temperature=0.5))
        assert asked.model is one.assistant.model and asked.settings.get("temperature") == 0.5
        other = rt.agents.assistant(AssistantSettings(model="python:own_models:made", base_url="http://127.0.0.1:9"))
        assert other.model is not one.assistant.model


async def test_G1_who_comes_second_waits_until_a_model_is_open(clock: VirtualClock) -> None:
    """And one that could not be opened is opened by the next who needs it."""
    did: list[str] = []

    class Slow(FunctionModel):
        async def __aenter__(self) -> Self:
            did.append("opening")
            await asyncio.sleep(1)
            if did.count("opening") == 1:
                raise OSError("no way there")
            did.append("open")
            return await super().__aenter__()

    async def say(*_: Any) -> AsyncIterator[str]:
        did.append("asked")
        yield "Hello."

    model = Slow(stream_function=say)
    async with Runtime(clock=clock) as rt:
        with pytest.raises(OSError, match="no way there"):
            await rt.conversation("first", model=model).prompt("Hi")
        both = [rt.conversation(name, model=model).prompt("Hi") for name in ("second", "third")]
        assert [answer.text for answer in await asyncio.gather(*both)] == ["Hello.", "Hello."]
    assert did == ["opening", "opening", "open", "asked", "asked"]
