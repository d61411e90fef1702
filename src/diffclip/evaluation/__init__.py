"""Evaluation: one task a file, typed result records, statistics."""
