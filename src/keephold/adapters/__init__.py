"""Adapters for existing agent loops: keephold's tools in the forms of pydantic-ai, OpenAI and Anthropic (G4)."""
