"""What the journal machine draws from."""

import hypothesis.strategies as st
from tests.unit.sqlite_stores import NOON

from keephold.handles.state import EndedBy, Failure, Ok, Outcome
from keephold.store.base import CARRIERS, Carrier, EntryKind, Notice, Parking, Resolution, Shown
from keephold.store.rules import TIMED_OUT

CONVERSATIONS = ("main", "other")
DEADLINES = (None, NOON + 100, NOON + 200, NOON + 300)
ENDS: tuple[tuple[Outcome, EndedBy], ...] = (
    (Ok({"done": True}), "self"),
    (Failure("no"), "self"),
    (Failure("aborted by you", "aborted"), "abort"),
    (TIMED_OUT, "timeout"),
)

conversations = st.sampled_from(CONVERSATIONS)
parkings = st.builds(
    Parking,
    deadline=st.sampled_from(DEADLINES),
    on_cancel=st.sampled_from(("cancel_external_work", "cancel_external_work", "ignore")),
    hook=st.sampled_from((True, True, False)),
    hold=st.sampled_from((False, False, True)),
)
resolutions = st.sampled_from(
    (
        Resolution("ok", {"yes": 1}),
        Resolution("ok", None),
        Resolution("err", {"code": "mine", "message": "no"}),
        Resolution("timeout"),
        Resolution("cancelled"),
    )
)
kinds: st.SearchStrategy[EntryKind] = st.sampled_from(("step", "step", "step", "sleep", "event", "ask", "input"))
notices = st.builds(
    Notice,
    kind=st.sampled_from(("tool.content", "tool.content", "tool.waiting", "tool.stopped")),
    level=st.sampled_from(("info", "info", "warning", "error", "critical")),
    message=st.text("aü", max_size=3),
    carriers=st.sampled_from((CARRIERS, CARRIERS, ("turn",), ("response", "message"))),
)
shows: st.SearchStrategy[Shown] = st.sampled_from(("running", "waiting", "asked", "stopped"))
carries: st.SearchStrategy[tuple[Carrier, ...]] = st.sampled_from(((), ("response",), ("message", "turn")))
stale = st.sampled_from((0,) * 10 + (-1, 1))
"""What is added to the fencing number of a call: mostly nothing."""
