"""Workflows (W10): steps that a model writes, checked as a whole, then run durably, with a journal entry for each."""

from keephold.tools.workflow.definition import Workflow
from keephold.tools.workflow.engine import run_workflow
from keephold.tools.workflow.frame import WorkflowFailed, WorkflowHost
from keephold.tools.workflow.reading import PARAMETERS, read_workflow

__all__ = ["PARAMETERS", "Workflow", "WorkflowFailed", "WorkflowHost", "read_workflow", "run_workflow"]
