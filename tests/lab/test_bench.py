"""bench on two hosts: the network between them and the links inside of one, by every library."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(find_spec("horovod") is None, reason="needs Horovod: make build-horovod"),
]

TIMEOUT_S = 150
TINY = ["--repeat", "5", "--json"]


def bench(lab, *words, sizes="8,4K,64K"):
    argv = [
        lab.python,
        "-P",
        "-m",
        "hvdtrain.cli.main",
        "bench",
        "allreduce",
        *words,
        "--sizes",
        sizes,
        *TINY,
    ]
    done = lab.exec("h1", argv, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_two_hosts_have_two_levels(lab):
    document = bench(lab, "-H", "h1:1,h2:2")
    assert document["hosts"] == [{"name": "h1", "ranks": 1}, {"name": "h2", "ranks": 2}]
    libraries = ("horovod", "mpi", "torch")
    levels = [("between", 3), ("inside", 2)]
    told = [(fit["library"], fit["level"], fit["ranks"]) for fit in document["fits"]]
    assert told == [(library, *level) for library in libraries for level in levels]
    rows = [(row["library"], row["level"], row["ranks"], row["bytes"]) for row in document["rows"]]
    sizes = (8, 4096, 65536)
    assert rows == [(library, *level, size) for library in libraries for level in levels for size in sizes]
    assert all(row["time_s"] > 0 for row in document["rows"])
    assert {host: lab.left_over(host) for host in ("h1", "h2")} == {"h1": [], "h2": []}


def test_a_slow_link_shows_between_the_hosts_only(lab):
    """100 Mbit/s is 80 ns a byte: far above what shared memory takes, also where hosts share their cores."""
    for host in ("h1", "h2"):
        lab.rate(host, "100mbit")
    try:
        document = bench(lab, "-H", "h1:1,h2:2", "--library", "mpi", sizes="64K..1M")
    finally:
        for host in ("h1", "h2"):
            lab.rate(host)
    beta = {fit["level"]: fit["beta_s_per_byte"] for fit in document["fits"]}
    assert beta["between"] > 40e-9
    assert beta["inside"] < beta["between"] / 4
