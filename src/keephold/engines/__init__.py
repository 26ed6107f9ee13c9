"""Calls that run on an engine: on workers on any machine, recorded by the engine and not by our own store."""
