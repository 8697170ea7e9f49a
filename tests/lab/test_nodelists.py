"""Node lists as a real Slurm reads and writes them, held against ours."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from hvdtrain.topology.nodelist import expand_counts, expand_nodelist

pytestmark = pytest.mark.lab

CASES = runpy.run_path(str(Path(__file__).parents[1] / "unit" / "topology" / "test_nodelist.py"))
REPORT = """
import json, os, subprocess
def words_of(*argv):
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()
told = {name: os.environ[name] for name in ("SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE")}
told["shown"] = words_of("scontrol", "show", "hostnames")
told["task_hosts"] = words_of("srun", "printenv", "SLURMD_NODENAME")
print(json.dumps(told))
"""


@pytest.mark.parametrize("text", CASES["NODELISTS"])
def test_slurm_reads_it_the_same_way(slurm, text):
    done = slurm.exec("head", ["scontrol", "show", "hostnames", text], env=slurm.slurm_env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expand_nodelist(text)


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        (["-w", "h1", "-n3"], ["h1"]),
        (["-w", "h[1-2,4]", "-N3", "--ntasks-per-node=2"], ["h1", "h2", "h4"]),
        (["-w", "h[1-3]", "-N3", "-n5"], ["h1", "h2", "h3"]),
        (["-N4", "-n4"], ["h1", "h2", "h3", "h4"]),
    ],
)
def test_variables_of_a_real_job(slurm, tmp_path, words, hosts):
    report = tmp_path / "report.py"
    report.write_text(REPORT)
    words = ["salloc", *words, slurm.python, str(report)]
    done = slurm.exec("head", words, env=slurm.slurm_env)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    names = expand_nodelist(told["SLURM_JOB_NODELIST"])
    assert names == told["shown"] == hosts
    counts = expand_counts(told["SLURM_TASKS_PER_NODE"])
    assert counts == [told["task_hosts"].count(name) for name in names]
