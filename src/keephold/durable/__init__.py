"""What survives: keys, parked calls, journaled effects, recovery."""
