"""The waiting of torch's threads: passive, which has to be set before torch loads. `diffclip` imports this first."""

import os
import sys

SPIN = "torch" in sys.modules and "OMP_WAIT_POLICY" not in os.environ
"""True if torch was imported before, so that the setting comes too late for this process."""
# OpenMP reads this while torch loads: waiting threads sleep instead of spinning. Beside another busy program a training
# step then takes 10 to 60 % of the time, and alone at most 5 % more (docs/performance.md). Processes that are started
# from here inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
