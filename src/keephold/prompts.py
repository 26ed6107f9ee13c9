"""Requests that keephold passes to your prompter, inquiry or agent function, and the decisions a prompter returns."""

from keephold.tools.waiting.agents import AgentRequest
from keephold.turn.inquiry import Inquiry
from keephold.turn.prompts import Answer, Approved, AskQuestion, DeliverResult, Denied, Dismissed, Edited, RunTool

__all__ = [
    "AgentRequest",
    "Answer",
    "Approved",
    "AskQuestion",
    "DeliverResult",
    "Denied",
    "Dismissed",
    "Edited",
    "Inquiry",
    "RunTool",
]
