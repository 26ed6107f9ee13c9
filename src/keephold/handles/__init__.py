"""The one state machine: handles, their registry, waits and output."""
