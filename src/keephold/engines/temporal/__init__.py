"""Temporal as an engine: one workflow for each call, which is its journal; the tool's body runs in activities."""
