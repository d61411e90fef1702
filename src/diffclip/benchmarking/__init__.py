"""How the speed of attention is measured: operators that take turns, beside the floor that the arithmetic sets."""
