"""Attention maps, relevance of patches for texts, and measures of both against masks."""
