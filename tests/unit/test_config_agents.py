"""`[conversation.assistant]` and `[agents.<id>]`: what is read, and what is said of mistakes (G1, G2, L4)."""

from pathlib import Path

import pytest

from keephold.config import load_config
from keephold.config.model import AssistantSettings
from keephold.errors import ConfigError

AGENTS = """
[conversation.assistant]
model = "openai:gpt-5"
temperature = 0.5

[agents.one]
model = "anthropic:claude-haiku-4-5"

[agents.two]
assistant = { temperature = 0 }
"""


def problems(tmp_path: Path, text: str) -> list[str]:
    """What is wrong, each from the line number on."""
    file = tmp_path / "keephold.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    return [problem.split("keephold.toml:")[1] for problem in caught.value.problems]


def test_G2_an_agent_has_what_conversations_have_unless_it_says_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "keephold.toml"
    file.write_text(AGENTS)
    config = load_config(file)
    of_all = config.conversation.assistant
    one, two = (config.agents[id].assistant_over(of_all) for id in ("one", "two"))
    assert (one.model, one.temperature) == ("anthropic:claude-haiku-4-5", 0.5)
    assert (two.model, two.temperature) == ("openai:gpt-5", 0)


def test_L4_a_misspelt_key_of_a_model_is_named_wherever_it_is(tmp_path: Path) -> None:
    text = """
[conversation.assistant]
modle = "x"
[conversation.inquiry]
assistant = { tempreature = 1 }
[agents.a]
tols = ["x"]
"""
    assert problems(tmp_path, text) == [
        "3: conversation.assistant.modle: unknown key; did you mean `model`?",
        "5: conversation.inquiry.assistant.tempreature: unknown key; did you mean `temperature`?",
        "7: agents.a.tols: unknown key; did you mean `tools`?",
    ]


def test_G2_keys_of_models_and_of_programs_do_not_mix(tmp_path: Path) -> None:
    text = """
[agents.ours]
cwd = "/"
[agents.theirs]
command = ["some-agent", "--acp"]
tools = ["*"]
"""
    assert problems(tmp_path, text) == [
        "3: agents.ours.cwd: is for agents that are programs (`command`)",
        "6: agents.theirs.tools: is for agents of a model; this one is a program with a model of its own",
    ]


def test_G2_an_agent_is_a_tool_with_a_name_of_its_own(tmp_path: Path) -> None:
    text = """
[agents.a]
[agents."b c"]
[conversation.tools.a]
source = "local"
command = ["true"]
"""
    same, odd = problems(tmp_path, text)
    assert same == "2: agents.a: [conversation.tools.a] is a tool of the same name; give one of them another"
    assert odd.startswith('3: agents."b c": an agent is a tool: a tool\'s name has 1 to 64 characters')


def test_K5_an_address_and_a_key_go_to_no_other_provider() -> None:
    ours = AssistantSettings(model="anthropic:a", base_url="http://ours", api_key_env="OURS", temperature=0.5)
    same, other = ours.under({"model": "anthropic:b"}), ours.under({"model": "openai:c"})
    assert (same.base_url, same.api_key_env) == ("http://ours", "OURS")
    assert (other.base_url, other.api_key_env, other.temperature) == (None, None, 0.5)
    own = ours.under({"model": "openai:c", "base_url": "http://theirs"})
    assert (own.base_url, own.api_key_env) == ("http://theirs", None)
