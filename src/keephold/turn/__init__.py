"""From a batch of calls to its responses, and to the end of the turn."""
