"""Checks a job's data on a login node: before any rank starts, without PyTorch."""

from __future__ import annotations

from importlib.util import find_spec

from hvdtrain.config import DataConfig, DigitsData, FactoryData, FolderData, TarData
from hvdtrain.data.factory import find_module
from hvdtrain.data.scan import scan_folder
from hvdtrain.data.tarindex import find_shards
from hvdtrain.errors import InputError


def validate_source(config: DataConfig) -> tuple[str, ...]:
    """Checks that the data a job names can be found, and returns notes for the user.

    A factory's module is looked for, not imported: it may import anything. Tar shards are looked for,
    not listed: that takes half a minute for a million samples.

    Raises:
        InputError: The data cannot be found or read.
    """
    if isinstance(config, FolderData):
        _need("PIL", "Pillow")
        return scan_folder(config).notes
    if isinstance(config, TarData):
        _need("PIL", "Pillow")
        find_shards(config)
    if isinstance(config, DigitsData):
        _need("sklearn", "scikit-learn")
    if isinstance(config, FactoryData):
        find_module(config.source.partition(":")[0], where="data.source")
    return ()


def _need(module: str, package: str) -> None:
    if find_spec(module) is None:
        raise InputError(f"{package} is not installed", where="data.source", do=f"pip install {package}")
