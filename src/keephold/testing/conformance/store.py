"""The conformance suite of a store, put together."""

from keephold.testing.conformance.commits import CommitChecks
from keephold.testing.conformance.deferred import DeferredChecks
from keephold.testing.conformance.events import EventChecks
from keephold.testing.conformance.fencing import FencingChecks
from keephold.testing.conformance.handles import HandleChecks, ParkedChecks
from keephold.testing.conformance.lasting import RestartChecks, RetentionChecks, SelectiveDeletionChecks, SharingChecks
from keephold.testing.conformance.listed import AnnotationChecks, ListChecks
from keephold.testing.conformance.notifications import DeliveryChecks, QueueChecks
from keephold.testing.conformance.paged import PageChecks
from keephold.testing.conformance.transcripts import TranscriptChecks
from keephold.testing.conformance.turns import InquiryChecks, OtherChecks, TurnChecks


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
