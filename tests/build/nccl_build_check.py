"""Proves a build in a fresh environment: NCCL against torch's CUDA build, or another with --torch and --gpu.

Makes a virtual environment in a temporary folder, installs torch, an MPI and this repository into it, builds
Horovod there, and checks what `horovodrun --check-build` lists, that it imports and that two CPU ranks train.
It needs no GPU. With torch's CUDA build it takes 10 GB of disk while it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ROOT_ENV = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
NEEDED_GB = {"nccl": 14, "none": 10}


def run(*argv: str | Path, cwd: Path, capture: bool = False) -> str:
    """Runs a program to its end; a failure ends the check."""
    print("+", *argv, file=sys.stderr, flush=True)
    environ = {**os.environ, **ROOT_ENV, "HVDTRAIN_CACHE": str(cwd / "cache")}
    out = subprocess.PIPE if capture else sys.stderr
    done = subprocess.run([str(word) for word in argv], cwd=cwd, env=environ, stdout=out, text=True)
    if done.returncode != 0:
        sys.exit(f"failed with {done.returncode}: {' '.join(map(str, argv))}\n{done.stdout or ''}")
    return done.stdout or ""


def make_environment(folder: Path, torch: str, also: list[str]) -> Path:
    """A virtual environment with torch, an MPI, the build's packages and this repository."""
    python = folder / "venv/bin/python"
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir")
    run(*pip, f"torch=={torch}", *also, cwd=folder)
    run(*pip, f"{REPOSITORY}[build,mpi]", *also, cwd=folder)
    return python


def check(folder: Path, torch: str, gpu: str, also: list[str]) -> dict[str, object]:
    """Builds and checks; returns the figures."""
    python = make_environment(folder, torch, also)
    programs = python.parent
    started = time.monotonic()
    built = json.loads(
        run(programs / "hvdtrain", "build-horovod", "--gpu", gpu, "--json", cwd=folder, capture=True)
    )
    seconds = round(time.monotonic() - started)
    assert built["gpu"]["kind"] == gpu, built
    assert built["proof"]["nccl_built"] is (gpu == "nccl"), built
    listed = run(programs / "horovodrun", "--check-build", cwd=folder, capture=True)
    print(listed, file=sys.stderr)
    for name, wanted in (("PyTorch", True), ("MPI", True), ("Gloo", True), ("NCCL", gpu == "nccl")):
        assert (f"[X] {name}" in listed) is wanted, f"{name}: {listed}"
    run(python, "-c", "import horovod.torch as hvd; hvd.init(); assert hvd.size() == 1", cwd=folder)
    words = (programs / "mpirun", "-np", "2", "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", python)
    told = run(*words, REPOSITORY / "tests/build/train_two_ranks.py", cwd=folder, capture=True)
    trained = json.loads(told.strip().splitlines()[-1])
    assert trained["alike"], trained
    assert abs(trained["weight"] - 3.0) < 0.05, trained
    assert abs(trained["bias"] - 0.5) < 0.05, trained
    again = json.loads(
        run(programs / "hvdtrain", "build-horovod", "--gpu", gpu, "--json", cwd=folder, capture=True)
    )
    assert again["up_to_date"], again
    wheel_mb = round(Path(built["wheel"]).stat().st_size / 1e6)
    return {"torch": built["torch"], "gpu": built["gpu"], "build_s": seconds, "wheel_mb": wheel_mb, **trained}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch", default="2.14.1", help="version to build against (default: %(default)s)")
    parser.add_argument("--gpu", choices=["nccl", "none"], default="nccl")
    parser.add_argument(
        "--with", dest="also", nargs="*", default=[], help="more requirements, such as 'numpy<2.3'"
    )
    parser.add_argument("--dir", type=Path, help="where the temporary folder is made")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hvdtrain-check-", dir=options.dir))
    try:
        free_gb = shutil.disk_usage(folder).free / 1e9
        if free_gb < NEEDED_GB[options.gpu]:
            sys.exit(
                f"{folder}: {free_gb:.0f} GB are free, {NEEDED_GB[options.gpu]} GB are needed; use --dir"
            )
        print(json.dumps(check(folder, options.torch, options.gpu, options.also)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
