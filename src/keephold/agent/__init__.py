"""The agent: a turn loop of our own over pydantic-ai's model layer, and conversations that survive a crash (G)."""
