"""Suites for people who write their own store or engine: what the protocols promise, check by check.

    from keephold.testing.conformance import StoreConformance

    class MyConformance(StoreConformance):
        def make(self):
            return MyStore(...)             # a new, empty store, not open yet
        def again(self, store):
            return MyStore(...)             # the same store, as a second process would open it

    @pytest.mark.parametrize("check", MyConformance.checks())
    async def test_store(check): await MyConformance().run(check)

`EffectsConformance` has the promises of calls with durable effects: its `make` returns a running `Site`. Nothing here
needs pytest. A check is a coroutine that raises `AssertionError`.
"""

from keephold.testing.conformance.commits import CommitChecks
from keephold.testing.conformance.deferred import DeferredChecks
from keephold.testing.conformance.effects import (
    DeferredCallChecks,
    LifeChecks,
    ProcessEventChecks,
    StepChecks,
    TalkChecks,
    WaitChecks,
)
from keephold.testing.conformance.events import EventChecks
from keephold.testing.conformance.fencing import FencingChecks
from keephold.testing.conformance.handles import HandleChecks, ParkedChecks
from keephold.testing.conformance.lasting import RestartChecks, RetentionChecks, SelectiveDeletionChecks, SharingChecks
from keephold.testing.conformance.listed import AnnotationChecks, ListChecks
from keephold.testing.conformance.notifications import DeliveryChecks, QueueChecks
from keephold.testing.conformance.paged import PageChecks
from keephold.testing.conformance.programs import ProgramChecks
from keephold.testing.conformance.site import Site
from keephold.testing.conformance.turns import InquiryChecks, OtherChecks, TranscriptChecks, TurnChecks


class StoreConformance(
    CommitChecks,
    HandleChecks,
    ListChecks,
    PageChecks,
    AnnotationChecks,
    FencingChecks,
    DeferredChecks,
    ParkedChecks,
    TurnChecks,
    InquiryChecks,
    TranscriptChecks,
    QueueChecks,
    DeliveryChecks,
    OtherChecks,
    RetentionChecks,
    SelectiveDeletionChecks,
    EventChecks,
    RestartChecks,
    SharingChecks,
):
    """Every check there is. Say how a store is made (`make`, `again`), then `run` each of `checks()`."""


class EffectsConformance(
    StepChecks, WaitChecks, DeferredCallChecks, ProcessEventChecks, TalkChecks, LifeChecks, ProgramChecks
):
    """Every check there is. Say how a site is made (`make`), then `run` each of `checks()`."""


__all__ = ["EffectsConformance", "Site", "StoreConformance"]
