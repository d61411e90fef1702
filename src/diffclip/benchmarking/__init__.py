"""Speed of attention: operators that take turns, beside the floor that the arithmetic sets."""
