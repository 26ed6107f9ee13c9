"""The agent: a turn loop over pydantic-ai's model layer, and conversations that survive a crash (G)."""
