"""Defaults of a site: ``~/.config/hvdtrain/site.yaml``, which the command line's options override.

partition: gpu
account: project-7
modules: [gcc/12, cuda/12.4]
nic: ib0
mpi: pmix
prefix: apptainer exec --nv /images/torch.sif
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hvdtrain.errors import InputError


@dataclass(frozen=True)
class Site:
    """What holds for all launches on a site.

    Attributes:
        partition: Slurm partition.
        account: Slurm account.
        qos: Slurm quality of service.
        constraint: Slurm node features.
        modules: Environment modules that a batch script loads.
        setup: Lines of shell that a batch script runs before the ranks start.
        nic: Network cards between the hosts.
        mpi: Type for ``srun --mpi``.
        launcher: Launcher, in place of ``auto``.
        prefix: Container or wrapper before the program.
        sbatch: Any other options of sbatch.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    modules: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    nic: str | None = None
    mpi: str | None = None
    launcher: str | None = None
    prefix: str | None = None
    sbatch: Mapping[str, str] = field(default_factory=dict)


def site_path(environ: Mapping[str, str]) -> Path:
    """Where the file is: $XDG_CONFIG_HOME or ~/.config."""
    root = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/"), ".config")
    return Path(root, "hvdtrain", "site.yaml")


def read_site(path: Path) -> Site:
    """Reads the file; without one nothing is preset.

    Raises:
        InputError: It cannot be read, is no YAML, or has an unknown or wrong key.
    """
    # Path.is_file would raise below a home that this user may not search, which holds no defaults of theirs.
    if not os.path.isfile(path):  # saves most launches the import of yaml
        return Site()
    import yaml

    try:
        told = yaml.safe_load(path.read_text("utf-8")) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from None
    except yaml.YAMLError as error:
        raise InputError(f"no YAML: {error}", where=str(path)) from None
    if not isinstance(told, dict):
        raise InputError("is not a list of keys and values", where=str(path), legal="partition: gpu")
    return Site(**{str(key): _value(str(key), value, path) for key, value in told.items()})


def _value(key: str, value: Any, path: Path) -> Any:
    known = [one.name for one in fields(Site)]
    if key not in known:
        close = get_close_matches(key, known, n=1)
        do = f"did you mean {close[0]}?" if close else ""
        raise InputError(f"no key {key!r}", where=str(path), legal=", ".join(known), do=do)
    if key == "sbatch":
        if not isinstance(value, dict):
            raise InputError(f"sbatch: {value!r}", where=str(path), legal="sbatch: {mail-type: END}")
        return {str(name): str(text) for name, text in value.items()}
    if key in ("modules", "setup"):
        return tuple(str(one) for one in value) if isinstance(value, list) else (str(value),)
    if isinstance(value, (list, dict)):
        raise InputError(f"{key}: {value!r}", where=str(path), legal=f"{key}: one value")
    return None if value is None else str(value)
