"""Horovod's knobs in Horovod's units."""

from hvdtrain.config import TuningConfig
from hvdtrain.tuning import conflicts, horovod_environment, mpi_defaults


def test_nothing_given_sets_nothing():
    assert horovod_environment(TuningConfig()) == {}


def test_units_are_bytes_and_milliseconds():
    tuning = TuningConfig(
        fusion_mb=64, cycle_ms=0.5, cache=0, hierarchical=False, autotune=True, timeline="t.json"
    )
    assert horovod_environment(tuning) == {
        "HOROVOD_FUSION_THRESHOLD": str(64 * 1024 * 1024),
        "HOROVOD_CYCLE_TIME": "0.5",
        "HOROVOD_CACHE_CAPACITY": "0",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_TIMELINE": "t.json",
    }


def test_idle_yielding_only_where_ranks_and_computation_share_cores():
    assert mpi_defaults(2, 8, on_cpu=True, env={}) == {"OMPI_MCA_mpi_yield_when_idle": "1"}
    assert mpi_defaults(9, 8, on_cpu=False, env={}) == {"OMPI_MCA_mpi_yield_when_idle": "1"}
    assert mpi_defaults(8, 8, on_cpu=False, env={}) == {}
    assert mpi_defaults(2, 8, on_cpu=True, env={"OMPI_MCA_mpi_yield_when_idle": "0"}) == {}


def test_a_variable_that_the_job_overrules_is_named():
    settings = {"HOROVOD_CYCLE_TIME": "2.0", "HOROVOD_AUTOTUNE": "1"}
    told = conflicts(settings, {"HOROVOD_CYCLE_TIME": "5", "HOROVOD_AUTOTUNE": "1"})
    assert told == ["HOROVOD_CYCLE_TIME=5 of the environment is replaced by the job's 2.0"]
