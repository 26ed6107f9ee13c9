"""Settings of a tool that are objects: output, questions, retries, spawned handles and their notifications."""

from keephold.tools.base import (
    NotificationPolicy,
    OutputPolicy,
    OutputView,
    QuestionPolicy,
    RetryPolicy,
    SpawnPolicy,
)

__all__ = ["NotificationPolicy", "OutputPolicy", "OutputView", "QuestionPolicy", "RetryPolicy", "SpawnPolicy"]
