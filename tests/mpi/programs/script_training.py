"""All checks of the script API that end well, in one launch: ``script_training.py BACKEND``."""

import sys

import script_feeds
import script_steps
from script_ranks import SIZE, run

with run:
    for module in (script_steps, script_feeds):
        for name, check in list(vars(module).items()):
            if name.startswith("check_"):
                check()
    sys.stdout.write(f"rank {run.rank} of {SIZE} ok\n")
    sys.exit(0)  # as many scripts end
