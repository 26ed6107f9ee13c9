"""The conformance suite of the store seam, put together."""

from holdfast.testing.conformance.annotated import Annotations
from holdfast.testing.conformance.cleaned import Cleaned
from holdfast.testing.conformance.commits import Commits
from holdfast.testing.conformance.created import Created
from holdfast.testing.conformance.deferred import Deferred
from holdfast.testing.conformance.delivery import Delivering
from holdfast.testing.conformance.events import Events
from holdfast.testing.conformance.fencing import Fencing
from holdfast.testing.conformance.handles import Handles
from holdfast.testing.conformance.lasting import Lasting, Retention, Sharing
from holdfast.testing.conformance.listed import Listed
from holdfast.testing.conformance.news import Telling
from holdfast.testing.conformance.paged import Paged
from holdfast.testing.conformance.transcripts import Transcribed
from holdfast.testing.conformance.turns import Inquiries, Others, Turns


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
