"""For people who have an agent loop already (G4): keephold's tools in the forms of pydantic-ai, OpenAI, Anthropic."""
