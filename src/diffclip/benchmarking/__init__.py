"""Measure the speed of the attention operators, which take turns."""
