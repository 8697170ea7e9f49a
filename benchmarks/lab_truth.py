"""Predicted against measured steps over slow links: ``sudo python benchmarks/lab_truth.py [--json]``.

Brings up the hosts of tests/lab. Profiles each model on one rank, measures ``hvdtrain bench allreduce`` on
two hosts over one link (``FIT``), predicts the step of 2, 3 and 4 ranks over other links as ``hvdtrain advise
PROFILE --network network.json+50Mbit@0.5ms --gpus-per-node 1`` does, and then measures it there with
``hvdtrain profile``. A row is a model, a number of ranks and a link; its error is predicted / measured - 1 of
the median step, its band the advice's. ``--save FILE`` keeps what was measured, ``--again FILE`` predicts it
anew without a lab. The exit code is 1 where a limit is missed.

The models' arithmetic is a timed wait (``timed_model.py``), because all hosts share this machine's cores; the
work of the engine and of the network on these cores is real and part of what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from hvdtrain.process import Command, end_group, run, spawn
from hvdtrain.scaling.advise import Request, advise
from hvdtrain.scaling.profile import read_profile

HERE = Path(__file__).resolve().parent
SCRIPT = HERE.parent / "tests" / "lab" / "lab"
LIMIT_MEDIAN, LIMIT_WORST = 0.05, 0.15
HOSTS = ("h1", "h2", "h3", "h4")
# A switch's port forwards frame by frame. The lab's own bucket lets 256 KB through at once, all of a small
# model's gradients; this one two thirds of a millisecond's.
BURST_BYTES_A_MBIT, LEAST_BURST_BYTES = 80, 4000
# The same on every machine; of the usual ones, Reno is what each network namespace may choose.
CONGESTION = "net.ipv4.tcp_congestion_control=reno"
ENV = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMP_NUM_THREADS": "1",
    # By default Open MPI's TCP lets the receiver ask for what is put into its memory, and sends one way
    # after the other: a request waits behind the data that its own rank is sending.
    "OMPI_MCA_btl_tcp_flags": "send",
}
JOB = """\
name: {name}
model: {{name: "timed_model:build", args: {args}}}
data: {{source: synthetic, shape: [1, 1, 2], classes: 2, samples: 65536, validation_samples: 2}}
batch: {{per_rank: 1}}
optimizer: {{name: sgd, lr: 1.0e-9}}
steps: 1000000
seed: 0
"""


@dataclass(frozen=True)
class Link:
    """What a host sends and receives with: Mbit/s, and milliseconds of delay on what it sends."""

    mbit: int
    delay_ms: float = 0.0

    @property
    def words(self) -> str:
        """As ``hvdtrain advise --network FILE+...`` takes it."""
        return f"{self.mbit}Mbit" + (f"@{self.delay_ms:g}ms" if self.delay_ms else "")


@dataclass(frozen=True)
class Case:
    """One row: a model's step on so many hosts, one rank each, over a link."""

    model: str
    ranks: int
    link: Link


FIT = Link(200)
MODELS = {
    "small": {"layers": 8, "layer_bytes": 40_000, "forward_ms": 8.0, "backward_ms": 16.0},
    "thin": {"layers": 60, "layer_bytes": 5_000, "forward_ms": 1.0, "backward_ms": 2.0},
    "large": {"layers": 4, "layer_bytes": 4_000_000, "forward_ms": 25.0, "backward_ms": 50.0},
    "deep": {"layers": 64, "layer_bytes": 250_000, "forward_ms": 1.5, "backward_ms": 3.0},
}
# Ranks, Mbit/s, milliseconds.
LINKS: dict[str, list[tuple[int, int, float]]] = {
    "small": [(2, 20, 0), (4, 20, 2), (3, 50, 0.5), (4, 100, 0), (2, 1000, 2)],
    "thin": [(4, 20, 0.5), (2, 50, 2), (3, 100, 0), (4, 1000, 0)],
    "large": [(2, 50, 2), (4, 100, 0), (3, 100, 0.5), (2, 1000, 0)],
    "deep": [(2, 50, 0), (4, 100, 2), (3, 100, 0)],
}
CASES = [
    Case(model, ranks, Link(mbit, delay)) for model, rows in LINKS.items() for ranks, mbit, delay in rows
]


class Lab:
    """The hosts, with links that can be set."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "env").symlink_to(sys.prefix)
        for host in HOSTS:
            self.do("exec", host, "sysctl", "-qw", CONGESTION)
        self._path = os.pathsep.join([str(folder / "env" / "bin"), os.environ["PATH"]])

    def do(self, *words: str, burst: int = LEAST_BURST_BYTES) -> None:
        """A command of ``lab``."""
        cmd = Command((str(SCRIPT), *words), {"LAB": str(self.folder), "LAB_BURST": str(burst)})
        done = run(cmd, timeout_s=60)
        if done.returncode:
            raise SystemExit(f"lab {' '.join(words)}: {done.stderr.strip()}")

    def hvdtrain(self, *words: str, timeout_s: float = 600) -> None:
        """Runs ``hvdtrain`` on the first host; its folder is this one, so that ranks find the model."""
        python = str(self.folder / "env" / "bin" / "python")
        argv = (str(SCRIPT), "exec", HOSTS[0], python, "-P", "-m", "hvdtrain.cli.main", *words)
        env = {**ENV, "LAB": str(self.folder), "PATH": self._path}
        done = run(Command(argv, env, cwd=HERE), timeout_s=timeout_s)
        if done.returncode:
            raise SystemExit(f"hvdtrain {' '.join(words)}: {done.stdout}{done.stderr}")

    def link(self, link: Link, hosts: Sequence[str] = HOSTS) -> None:
        """Gives the hosts a link."""
        burst = max(LEAST_BURST_BYTES, BURST_BYTES_A_MBIT * link.mbit)
        for host in hosts:
            self.do("delay", host, str(round(1000 * link.delay_ms)) if link.delay_ms else "none")
            self.do("rate", host, f"{link.mbit}mbit", burst=burst)


@contextmanager
def lab_up() -> Iterator[Lab]:
    """Hosts that end with this process, however that ends."""
    folder = Path(tempfile.mkdtemp(prefix="hvdtrain-truth-", dir="/tmp"))  # sockets below it: a short path
    guard = spawn(Command((str(SCRIPT), "guard", str(os.getpid())), {"LAB": str(folder)}), is_piped=False)
    lab = None
    try:
        done = run(Command((str(SCRIPT), "up"), {"LAB": str(folder)}), timeout_s=120)
        if done.returncode:
            raise SystemExit(done.stderr.strip())
        lab = Lab(folder)
        yield lab
    finally:
        run(Command((str(SCRIPT), "down"), {"LAB": str(folder)}), timeout_s=60)
        end_group(guard.pid)
        guard.wait()
        shutil.rmtree(folder)


def measure(lab: Lab, work: Path, cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
    """Network, profiles and steps as documents, each with its key."""
    lab.link(FIT)
    saved = work / "network.json"
    words = ("--library", "horovod,mpi", "--limit", "25", "--save", str(saved))
    lab.hvdtrain("bench", "allreduce", "-H", _places(2), *words)
    yield {"key": "network", "document": json.loads(saved.read_text())}
    for model in dict.fromkeys(case.model for case in cases):
        job = work / f"{model}.yaml"
        job.write_text(JOB.format(name=model, args=json.dumps(MODELS[model])))
        yield {"key": model, "document": _profile(lab, job, 1, 30)}
    now = FIT
    for case in sorted(cases, key=lambda one: (one.link.delay_ms, one.link.mbit)):
        if case.link != now:
            lab.link(case.link)
            now = case.link
        document = _profile(lab, work / f"{case.model}.yaml", case.ranks, _steps_for(case))
        yield {"key": "row", "case": asdict(case), "load": os.getloadavg()[0], "document": document}


def _steps_for(case: Case) -> int:
    """As many as fit into some seconds, by the bytes on the wire."""
    shape = MODELS[case.model]
    wire_s = 2 * shape["layers"] * shape["layer_bytes"] * 8 / (1e6 * case.link.mbit)
    return max(4, min(24, int(8 / (wire_s + 0.25))))


def _profile(lab: Lab, job: Path, ranks: int, steps: int) -> dict[str, Any]:
    output = job.with_suffix(".json")
    words = ("--steps", str(steps), "--warmup", "2", "--output", str(output), "--no-gpus")
    lab.hvdtrain("profile", str(job), "-H", _places(ranks), *words)
    document: dict[str, Any] = json.loads(output.read_text())
    return document


def _places(ranks: int) -> str:
    return ",".join(f"{host}:1" for host in HOSTS[:ranks])


@dataclass(frozen=True)
class Row:
    """A predicted and measured step, in seconds; ``error`` is predicted / measured - 1."""

    model: str
    ranks: int
    link: str
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    error: float
    load: float


def predict(records: Sequence[dict[str, Any]], work: Path) -> list[Row]:
    """The rows of what was measured."""
    for record in records:
        if record["key"] != "row":
            (work / f"{record['key']}.json").write_text(json.dumps(record["document"]))
    rows = []
    for record in records:
        if record["key"] == "row":
            case = record["case"]
            link = Link(**case["link"]).words
            rows.append(_row(work, case["model"], case["ranks"], link, record))
    return rows


def _row(work: Path, model: str, ranks: int, link: str, record: dict[str, Any]) -> Row:
    network = f"{work / 'network.json'}+{link}"
    request = Request(network=network, max_gpus=ranks, gpus_per_node=1)
    step = advise(read_profile(work / f"{model}.json"), request).forecast.at(ranks).step_s
    measured_s = record["document"]["step_s"]["median"]
    error = step.value / measured_s - 1
    return Row(model, ranks, link, step.value, step.low, step.high, measured_s, error, record["load"])


def show(rows: Sequence[Row]) -> None:
    """The table."""
    print("model  ranks  link             predicted  (band)                 measured     error   load")
    for row in rows:
        band = f"({1e3 * row.low_s:,.1f} to {1e3 * row.high_s:,.1f})"
        print(
            f"{row.model:<6} {row.ranks:>5}  {row.link:<15} {1e3 * row.predicted_s:>8,.1f} ms  {band:<20} "
            f"{1e3 * row.measured_s:>9,.1f} ms {100 * row.error:>+6.1f} %  {row.load:>5.1f}"
        )


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """Median and worst error, and the share of rows inside their band."""
    errors = [abs(row.error) for row in rows]
    inside = sum(row.low_s <= row.measured_s <= row.high_s for row in rows)
    return {"median_error": median(errors), "worst_error": max(errors), "inside": inside / len(rows)}


def main() -> int:
    """Measures, predicts and prints; 1 where a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(MODELS), help="models; all if not given")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep what was measured, a record a line")
    parser.add_argument(
        "--again", type=Path, metavar="FILE", help="predict what --save kept; measure nothing"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if options.again:
            records = [json.loads(line) for line in options.again.read_text().splitlines()]
        else:
            records = _measured(work, options.only, options.save)
        rows = predict(records, work)
    found = summary(rows)
    if options.json:
        print(json.dumps({"schema": 1, "rows": [asdict(row) for row in rows], **found}))
    else:
        show(rows)
        print(
            f"median error {100 * found['median_error']:.1f} %, worst {100 * found['worst_error']:.1f} %, "
            f"{100 * found['inside']:.0f} % of {len(rows)} rows inside their band"
        )
    return int(found["median_error"] > LIMIT_MEDIAN or found["worst_error"] > LIMIT_WORST)


def _measured(work: Path, only: Sequence[str] | None, save: Path | None) -> list[dict[str, Any]]:
    if os.geteuid():
        raise SystemExit("needs root, as tests/lab does: sudo python benchmarks/lab_truth.py")
    if save and save.exists():
        raise SystemExit(f"{save} exists; the rows of two runs would be predicted from one network")
    cases = [case for case in CASES if not only or case.model in only]
    records = []
    with lab_up() as lab:
        for record in measure(lab, work, cases):
            records.append(record)
            print(f"{time.strftime('%H:%M:%S')} {record['key']} {record.get('case', '')}", file=sys.stderr)
            if save:
                with save.open("a") as file:
                    file.write(json.dumps(record) + "\n")
    return records


if __name__ == "__main__":
    sys.exit(main())
