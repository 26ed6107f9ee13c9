"""Tools for testing your tools and agents, which keephold's own tests use: start with `VirtualClock`.

`ScriptedModel` plays the model of a conversation, so that you can test prompts, notifications and turn ends without a
provider.
"""

from keephold.testing.clock import VirtualClock, VirtualDeadlock
from keephold.testing.model import Says, ScriptedModel

__all__ = ["Says", "ScriptedModel", "VirtualClock", "VirtualDeadlock"]
