"""The client library (X3): agents of any make, in turns that end when they say so."""
