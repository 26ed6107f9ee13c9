"""The client library for ACP agents of any make (X3)."""
