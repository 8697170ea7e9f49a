"""Data-parallel PyTorch training with Horovod on many GPUs and nodes.

Importing this package imports neither torch nor horovod: a login node answers without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hvdtrain.version import __version__

if TYPE_CHECKING:
    from hvdtrain.train.starting import start

__all__ = ["__version__", "start"]


def __getattr__(name: str) -> Any:
    if name != "start":
        raise AttributeError(f"module 'hvdtrain' has no attribute {name!r}")
    from hvdtrain.train.starting import start as start_run

    return start_run
