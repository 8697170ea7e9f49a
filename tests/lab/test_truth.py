"""A step over a slow link, predicted from one rank and the benchmark of another link, and measured.

benchmarks/lab_truth.py does the same with many models, links and numbers of ranks, and tight limits.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(find_spec("horovod") is None, reason="needs Horovod: make build-horovod"),
]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"  # where the job's model is
JOB = """\
name: timed
model: {name: "timed_model:build", args: {layers: 4, layer_bytes: 300000, forward_ms: 5, backward_ms: 10}}
data: {source: synthetic, shape: [1, 1, 2], classes: 2, samples: 4096, validation_samples: 2}
batch: {per_rank: 1}
optimizer: {name: sgd, lr: 1.0e-9}
steps: 100000
"""
# Both directions at once: see benchmarks/lab_truth.py.
BOTH_WAYS = {"OMPI_MCA_btl_tcp_flags": "send"}
TIMEOUT_S = 120


def hvdtrain(lab, *words):
    argv = [lab.python, "-P", "-m", "hvdtrain.cli.main", *map(str, words)]
    done = lab.exec("h1", argv, env=BOTH_WAYS, cwd=BENCHMARKS, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def limit(lab, rate):
    for host in ("h1", "h2"):
        lab.rate(host, rate)


def test_a_step_over_a_slow_link_takes_what_was_predicted(lab, tmp_path, monkeypatch):
    """1.2 MB over 20 Mbit/s are half a second; the model's own work is 60 ms.

    Hosts that share a busy machine take some more: the tolerance is wide, and far narrower than the network's
    part of the step.
    """
    monkeypatch.setenv("LAB_BURST", "16kb")
    job, profile, network = tmp_path / "job.yaml", tmp_path / "profile.json", tmp_path / "network.json"
    job.write_text(JOB)
    words = ("profile", job, "--no-gpus", "--warmup", 2, "--json")
    hvdtrain(lab, *words, "-H", "h1:1", "--steps", 10, "--output", profile)
    try:
        limit(lab, "100mbit")
        bench = ("bench", "allreduce", "-H", "h1:1,h2:1", "--library", "horovod,mpi")
        hvdtrain(lab, *bench, "--sizes", "8..4M", "--repeat", 5, "--save", network, "--json")
        limit(lab, "20mbit")
        measured = hvdtrain(lab, *words, "-H", "h1:1,h2:1", "--steps", 5, "--output", tmp_path / "two.json")
    finally:
        limit(lab, "none")
    options = ("--gpus-per-node", 1, "--max-gpus", 2, "--json")
    advice = hvdtrain(lab, "advise", profile, "--network", f"{network}+20Mbit", *options)
    (two,) = [row for row in advice["predictions"] if row["gpus"] == 2]
    assert two["step_time_s"] == pytest.approx(measured["step_s"]["median"], rel=0.4)
    assert {host: lab.left_over(host) for host in ("h1", "h2")} == {"h1": [], "h2": []}
