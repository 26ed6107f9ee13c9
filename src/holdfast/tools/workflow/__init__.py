"""Workflows (W10): steps that a model writes down, checked as a whole, then run durably, a journal entry each."""

from holdfast.tools.workflow.definition import Workflow
from holdfast.tools.workflow.engine import run_workflow
from holdfast.tools.workflow.parameters import PARAMETERS
from holdfast.tools.workflow.reading import read_workflow
from holdfast.tools.workflow.surroundings import Surroundings, WorkflowFailed

__all__ = ["PARAMETERS", "Surroundings", "Workflow", "WorkflowFailed", "read_workflow", "run_workflow"]
