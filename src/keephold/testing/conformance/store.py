"""The conformance suite of the store seam, put together."""

from keephold.testing.conformance.commits import Commits
from keephold.testing.conformance.deferred import Deferred
from keephold.testing.conformance.events import Events
from keephold.testing.conformance.fencing import Fencing
from keephold.testing.conformance.handles import Created, Handles
from keephold.testing.conformance.lasting import Cleaned, Lasting, Retention, Sharing
from keephold.testing.conformance.listed import Annotations, Listed
from keephold.testing.conformance.notifications import Delivering, Telling
from keephold.testing.conformance.paged import Paged
from keephold.testing.conformance.transcripts import Transcribed
from keephold.testing.conformance.turns import Inquiries, Others, Turns


class StoreConformance(
    Commits,
    Handles,
    Listed,
    Paged,
    Annotations,
    Fencing,
    Deferred,
    Created,
    Turns,
    Inquiries,
    Transcribed,
    Telling,
    Delivering,
    Others,
    Retention,
    Cleaned,
    Events,
    Lasting,
    Sharing,
):
    """Every check there is. Say how a store is made (`make`, `again`), then `run` each of `checks()`."""
