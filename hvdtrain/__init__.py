"""Data-parallel PyTorch training with Horovod on many GPUs and nodes.

Importing this package imports neither torch nor horovod: a login node answers without them.
"""

from hvdtrain.version import __version__

__all__ = ["__version__"]
