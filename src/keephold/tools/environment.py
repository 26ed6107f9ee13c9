"""The environment that children inherit: ours, without secrets (K10).

Every process that keephold starts gets its variables from `inherited`: commands, terminals, the guard, agents, workers.
Withheld are the API keys of known providers, keephold's own token and store, and the secrets of every configuration
that a runtime of this process uses. All runtimes of the process share one environment, so they withhold the same. A
tool gets a withheld variable only if its `pass_env` names it.

A child of the same user can also read `/proc/<our pid>/environ`, which shows the variables that we were started with,
even if `os.environ` has others by now. `conceal` overwrites the values there.
"""

import os
import re
from collections.abc import Iterable

from keephold.platforms import machine
from keephold.tools import marks

KNOWN = frozenset(
    """AI_GATEWAY_API_KEY ALIBABA_API_KEY ANTHROPIC_API_KEY ANTHROPIC_AUTH_TOKEN AWS_BEARER_TOKEN_BEDROCK
    AZURE_API_KEY AZURE_OPENAI_AD_TOKEN AZURE_OPENAI_API_KEY AZURE_VOICELIVE_API_KEY CEREBRAS_API_KEY
    CLAUDE_CODE_OAUTH_TOKEN COHERE_API_KEY COPILOT_GITHUB_TOKEN CO_API_KEY CRUSOE_API_KEY DASHSCOPE_API_KEY
    DATABRICKS_TOKEN DEEPSEEK_API_KEY ELEVENLABS_API_KEY FIREWORKS_API_KEY GEMINI_API_KEY GITHUB_API_KEY
    GITHUB_COPILOT_API_KEY GITHUB_COPILOT_API_TOKEN GOOGLE_API_KEY GROK_API_KEY GROQ_API_KEY HEROKU_INFERENCE_KEY
    HF_TOKEN HUGGINGFACE_API_KEY HUGGING_FACE_HUB_TOKEN LITELLM_API_KEY META_API_KEY MINIMAX_API_KEY MISTRAL_API_KEY
    MOONSHOTAI_API_KEY MOONSHOT_API_KEY NEBIUS_API_KEY NVIDIA_API_KEY OLLAMA_API_KEY OPENAI_ADMIN_KEY OPENAI_API_KEY
    OPENROUTER_API_KEY OVHCLOUD_API_KEY PAIG_API_KEY PERPLEXITY_API_KEY PYDANTIC_AI_GATEWAY_API_KEY
    REPLICATE_API_TOKEN SAMBANOVA_API_KEY SNOWFLAKE_TOKEN TOGETHER_API_KEY TYPESAFE_API_KEY VERCEL_AI_GATEWAY_API_KEY
    VERCEL_OIDC_TOKEN VLLM_API_KEY VOYAGE_API_KEY XAI_API_KEY ZAI_API_KEY""".split()  # noqa: SIM905 - a column is harder to read
) | {"KEEPHOLD_TOKEN", "KEEPHOLD_STORE"}
"""The variables from which clients of model providers read their keys, and our own."""

_names: set[str] = set(KNOWN)
_values: set[str] = set()
_concealed = False
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def withhold(names: Iterable[str], values: Iterable[str] = ()) -> None:
    """Let no child inherit the variables of these names, or with one of these values, from now on."""
    _names.update(names)
    _values.update(values)
    if _concealed:
        conceal()


def inherited(pass_env: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that a child gets from our environment. `pass_env` names withheld ones that it gets, too.

    The mark that this process gave itself is left out, but not those that it inherited: a child that gets no other mark
    outlives this process, and ends with the runtimes around us.
    """
    named = frozenset(pass_env)
    found = {
        name: value for name, value in os.environ.items() if name in named or not (name in _names or value in _values)
    }
    found.pop(marks.NAME, None)
    return found | ({marks.NAME: outer} if (outer := marks.outer()) else {})


def passed(pass_env: Iterable[str]) -> dict[str, str]:
    """Return only the named variables, for a child that inherits no others."""
    return {name: os.environ[name] for name in pass_env if name in os.environ}


def take(name: str) -> str | None:
    """Return a variable that only keephold needs, and remove it from `os.environ`, which Python tools can read."""
    return os.environ.pop(name, None)


def wrong_names(pass_env: object) -> str | None:
    """Say why a value of `pass_env` is invalid, or return None."""
    names = pass_env if isinstance(pass_env, list | tuple | set | frozenset) else [None]
    if all(isinstance(name, str) and _NAME.fullmatch(name) for name in names):
        return None
    return 'must be a list of names of environment variables, such as ["GITHUB_TOKEN"]'


def conceal() -> None:
    """Overwrite the values of withheld variables in `/proc/self/environ`. `os.environ` and `getenv` keep them."""
    import ctypes  # slow to import

    global _concealed
    _concealed = True
    area = machine.environment_area()
    if area is None:
        return
    start, end = area
    if not start < end:
        return
    at = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        name, equals, value = entry.partition(b"=")
        known = os.fsdecode(name)
        if equals and value and (known in _names or os.fsdecode(value) in _values):
            if known in os.environ:
                os.putenv(known, os.environ[known])  # C code finds a copy, not the bytes that are overwritten
            ctypes.memset(at + len(name) + 1, ord("*"), len(value))
        at += len(entry) + 1
