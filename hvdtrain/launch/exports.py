"""Which variables the ranks get: what the launch sets, and what goes along to other hosts.

On this host a rank inherits the caller's environment, as any command does. To other hosts variables go by
name: what Horovod, NCCL, UCX, Open MPI and Python read, and what the user names. Nothing that looks like a
secret goes unless it is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hvdtrain.errors import InputError
from hvdtrain.launch.plan import LaunchPlan
from hvdtrain.topology.launchers import RANKS_PER_HOST
from hvdtrain.topology.nodelist import fold_counts

_FORWARDED = re.compile(
    r"(HOROVOD_|HVDTRAIN_|NCCL_|UCX_|OMPI_MCA_|PYTHON|OMP_|MKL_|I_MPI_|FI_)\w*|PATH|LD_LIBRARY_PATH"
)
_SECRET = re.compile(
    r"TOKEN|JWT|SECRET|PASSW|PASSPHRASE|PWD|CREDENTIAL|CERT|COOKIE|PRIVATE|AUTH|(^|_)(API|ACCESS)?_?KEY(S|_|$)"
)
# By these a process takes itself for a rank of the launch around the caller.
_RANK_MARKS = re.compile(
    r"(OMPI_COMM_WORLD_|PMI_|PMIX_|MV2_|HOROVOD_LOCAL_|HOROVOD_CROSS_)\w*|HOROVOD_(RANK|SIZE)"
    r"|TORCHELASTIC_RUN_ID"
)
# What is said of the job around the caller: its end, its run, its restarts.
_OF_ONE_JOB = frozenset({"HVDTRAIN_END_TIME", "HVDTRAIN_RUN_DIR", "HVDTRAIN_RESTART"})
_LOCAL_MARKS = ("HVDTRAIN_LOCAL_LAUNCH", "TORCHELASTIC_RUN_ID")
# What a login gives a process: ssh does, a launcher that starts from a bare environment does not.
_LOGIN = re.compile(r"HOME|USER|LOGNAME|SHELL|LANG|LC_\w+|TZ|TMPDIR|TERM")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def rank_environment(plan: LaunchPlan) -> dict[str, str]:
    """Variables that every launcher sets for the ranks, the caller's own settings first.

    ``OMP_NUM_THREADS`` divides the cores among the ranks of a host: PyTorch's default, all cores for each
    rank, lets them fight. ``PYTHONUNBUFFERED`` makes output appear when it is printed: a rank's
    stdout is a pipe, which Python would fill up to 8 KB first.
    """
    chosen = {"OMP_NUM_THREADS": str(num_threads(plan)), "PYTHONUNBUFFERED": "1", **_network(plan)}
    kept = {name: value for name, value in chosen.items() if not plan.environ.get(name)}
    if not plan.is_local:
        kept[RANKS_PER_HOST] = fold_counts([host.slots for host in plan.placement.hosts])
    return {**kept, **plan.env}


def num_threads(plan: LaunchPlan) -> int:
    """Threads for each rank when the user named no number."""
    given = plan.cores_per_rank or (plan.slurm.cpus_per_task if plan.slurm else None)
    return given or max(1, plan.cores // plan.max_local_size)


def thread_note(plan: LaunchPlan) -> tuple[str, ...]:
    """Says the number of threads where the plan chose it."""
    if plan.environ.get("OMP_NUM_THREADS") or "OMP_NUM_THREADS" in plan.env:
        return ()
    threads, ranks = num_threads(plan), plan.max_local_size
    is_share = threads == max(1, plan.cores // ranks)
    why = f"{plan.cores} cores, {ranks} ranks on a host" if is_share else "the cores of each rank"
    return (f"OMP_NUM_THREADS={threads}: {why}",)


def forwarded_names(plan: LaunchPlan) -> tuple[str, ...]:
    """Names of the variables that ranks on other hosts are given, sorted; none that looks like a secret.

    CUDA_VISIBLE_DEVICES goes along only where the plan sets it: the caller's is about this host's GPUs.
    """
    names = _forwarded(plan.environ) | set(rank_environment(plan))
    kept = {name for name in names if not is_secret(name)}
    return tuple(sorted(kept | set(plan.exported) | set(plan.env)))


def submitted_names(environ: Mapping[str, str], named: Sequence[str]) -> tuple[str, ...]:
    """Names of the variables that a batch job is given, sorted.

    Args:
        environ: The caller's environment.
        named: What the user named.
    """
    names = {name for name in _forwarded(environ) if not is_secret(name)} - _OF_ONE_JOB
    names |= {"SLURM_CONF"} & set(environ)  # where Slurm's own commands find their configuration
    return tuple(sorted({*names, *login_names(environ), *named}))


def login_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the caller's variables that a login sets, sorted."""
    return tuple(sorted(name for name in environ if _LOGIN.fullmatch(name)))


def is_secret(name: str) -> bool:
    """Whether a variable's name looks as if its value were a secret."""
    return name not in ("PWD", "OLDPWD") and _SECRET.search(name.upper()) is not None


def rank_marks(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the caller's variables that make a process a rank of an MPI launch around it, sorted."""
    return tuple(sorted(name for name in environ if _RANK_MARKS.fullmatch(name)))


def local_marks(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the caller's variables that make a process a rank of a launch without MPI, sorted."""
    return tuple(name for name in _LOCAL_MARKS if name in environ)


def parse_exports(
    settings: Sequence[str], environ: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Reads ``--env NAME`` and ``--env NAME=VALUE``.

    Returns:
        The values that are set, and the names of the caller's variables that go along.

    Raises:
        InputError: No legal name, or a name that the caller's environment has not.
    """
    values: dict[str, str] = {}
    names: list[str] = []
    for setting in settings:
        name, sign, value = setting.partition("=")
        if not _NAME.fullmatch(name):
            raise InputError(f"{setting!r}", where="--env", legal="NAME or NAME=VALUE")
        if sign:
            values[name] = value
        elif name in environ:
            names.append(name)
        else:
            raise InputError(f"{name} is not set here", where="--env", do=f"write --env {name}=VALUE")
    return values, tuple(names)


def _forwarded(environ: Mapping[str, str]) -> set[str]:
    names = {name for name in environ if _FORWARDED.fullmatch(name)}
    return names - {*rank_marks(environ), *local_marks(environ)}


def _network(plan: LaunchPlan) -> dict[str, str]:
    """The variables by which NCCL and Gloo take the network between the hosts."""
    if plan.network is None:
        return {}
    names = plan.network.interfaces
    chosen = {"NCCL_SOCKET_IFNAME": "=" + ",".join(names)}  # "=": exactly these, not all that begin so
    if len(names) == 1:  # these two take one name, the same on all hosts
        chosen |= {"GLOO_SOCKET_IFNAME": names[0], "HOROVOD_GLOO_IFACE": names[0]}
    return chosen
