"""The parts of a step, as ``profile.json`` names them, as people do, and the look of each in every figure."""

from __future__ import annotations

PARTS = (
    ("load_s", "waiting for data", "load"),
    ("forward_s", "forward", "forward"),
    ("backward_s", "backward", "backward"),
    ("exposed_s", "communication not hidden", "exposed"),
    ("optimizer_s", "optimizer", "optimizer"),
    ("wait_s", "waiting for slower ranks", "wait"),
    ("other_s", "other", "other"),
)

# causes of lost efficiency, as advice names them
CAUSES = {
    "data": ("waiting for data", "load"),
    "imbalance": ("unequal work", "optimizer"),
    "straggler": ("slowest rank", "wait"),
    "latency": ("latency", "backward"),
    "bandwidth": ("bandwidth", "exposed"),
}
