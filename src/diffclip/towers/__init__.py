"""The two towers."""
