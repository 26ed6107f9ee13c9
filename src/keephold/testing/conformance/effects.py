"""The conformance suite of durable effects, put together."""

from keephold.testing.conformance.lives import LifeChecks, ProcessEventChecks, TalkChecks
from keephold.testing.conformance.programs import ProgramChecks
from keephold.testing.conformance.steps import StepChecks
from keephold.testing.conformance.waiting import DeferredChecks, WaitChecks


class EffectsConformance(
    StepChecks, WaitChecks, DeferredChecks, ProcessEventChecks, TalkChecks, LifeChecks, ProgramChecks
):
    """Every check there is. Say how a site is made (`make`), then `run` each of `checks()`."""
