"""What a tool looks like to a model, and the check of what the model sends."""
