"""Evaluation: one task per file, typed result records, statistics."""
