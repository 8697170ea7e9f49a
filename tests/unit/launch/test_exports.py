"""Which variables look like secrets, and where they stay."""

import pytest

from hvdtrain.launch.describe import masked, masked_values
from hvdtrain.launch.exports import is_secret, submitted_names
from hvdtrain.launch.horovodrun import Horovodrun
from hvdtrain.launch.plan import LaunchPlan, MpiFacts
from hvdtrain.process import Command
from hvdtrain.topology.hosts import local_cluster, place


@pytest.mark.parametrize(
    "name",
    [
        *(
            "SLURM_JWT",
            "KEY_PASSPHRASE",
            "MYSQL_PWD",
            "CLIENT_CERT",
            "SESSION_COOKIE",
            "HF_TOKEN",
            "db_password",
        ),
        *("AWS_SECRET_ACCESS_KEY", "UCX_API_KEY", "OLD_PWD", "PWD_DB"),
    ],
)
def test_secrets(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["PWD", "OLDPWD", "PATH", "HOROVOD_CYCLE_TIME", "PYTHON_KEYRING_BACKEND", "SLURM_CONF", "NCCL_DEBUG"],
)
def test_names_that_are_none(name):
    assert not is_secret(name)


def test_secrets_stay_out_of_batch_jobs():
    environ = dict.fromkeys(("HVDTRAIN_JWT", "NCCL_DEBUG", "UCX_TLS_CERT", "SLURM_CONF", "HOROVOD_RANK"), "x")
    assert submitted_names(environ, ()) == ("NCCL_DEBUG", "SLURM_CONF")
    assert submitted_names(environ, ("HVDTRAIN_JWT",)) == ("HVDTRAIN_JWT", "NCCL_DEBUG", "SLURM_CONF")


def test_what_is_said_of_the_job_around_is_not_submitted():
    around = ("HVDTRAIN_END_TIME", "HVDTRAIN_RUN_DIR", "HVDTRAIN_RESTART")
    environ = dict.fromkeys((*around, "HVDTRAIN_X"), "1")
    assert submitted_names(environ, ()) == ("HVDTRAIN_X",)
    assert submitted_names(environ, ("HVDTRAIN_END_TIME",)) == ("HVDTRAIN_END_TIME", "HVDTRAIN_X")


def test_horovodrun_sees_no_secret_of_slurm():
    mpi = MpiFacts("/usr/bin/mpirun", "openmpi", (4, 1, 4), "/usr")
    environ = {"SLURM_JWT": "x", "SLURM_JOB_ID": "1", "PATH": "/bin"}
    plan = LaunchPlan(place(local_cluster(2)), ("x",), "/bin/python", environ, mpi=mpi, has_horovodrun=True)
    assert Horovodrun().command(plan).unset == ("SLURM_JWT",)


def test_values_of_secrets_are_shown_as_stars():
    command = Command(("prog",), {"HF_TOKEN": "hunter2", "A": "1"})
    assert masked_values(command.env) == {"HF_TOKEN": "***", "A": "1"}
    assert "hunter2" not in masked(command).display()
    assert command.env["HF_TOKEN"] == "hunter2"
