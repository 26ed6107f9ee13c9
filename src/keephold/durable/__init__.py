"""Durable execution: keys, parked calls, journaled effects, recovery."""
