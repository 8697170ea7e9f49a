"""What the files of a job hold, looked up once and sent to the other ranks; without PyTorch."""

from __future__ import annotations

from hvdtrain.config import DataConfig, FolderData, TarData
from hvdtrain.data.scan import Listing, scan_folder
from hvdtrain.data.tarindex import TarListing, list_shards


def has_listing(config: DataConfig) -> bool:
    """Whether the samples are files that one rank should look up for all."""
    return isinstance(config, FolderData | TarData)


def list_source(config: DataConfig) -> Listing | TarListing | None:
    """Looks up the files of a job; None where its samples are no files.

    Raises:
        InputError: They cannot be read, or do not hold what the job needs.
    """
    if isinstance(config, FolderData):
        return scan_folder(config)
    return list_shards(config) if isinstance(config, TarData) else None
