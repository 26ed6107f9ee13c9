"""What keephold's own tests use, for people who test their tools and agents: start with `VirtualClock`.

`ScriptedModel` plays the assistant of a conversation, so that prompts, notifications and turn ends can be tested
without a provider.
"""

from keephold.testing.clock import VirtualClock, VirtualDeadlock
from keephold.testing.model import Says, ScriptedModel

__all__ = ["Says", "ScriptedModel", "VirtualClock", "VirtualDeadlock"]
