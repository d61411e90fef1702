"""The command line. Python imports this file first, so settings that torch reads while it loads are made here."""

import os

# Waiting threads sleep instead of spinning. Beside another busy program a training step then takes 10 to 60 % of the
# time, and alone at most 5 % more (docs/performance.md). Processes that are started from here inherit this setting.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
