"""Adapters for existing agent loops: keephold's tools in the forms of provider SDKs and agent frameworks (G4)."""
