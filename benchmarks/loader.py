"""Images per second of a folder and of tar shards: ``python benchmarks/loader.py [--json]``.

The same JPEG files (256x256 pixels, made by this script) three times: ``bare`` is PyTorch's DataLoader
over a data set that opens a file and calls our decoder, shuffled; ``folder`` and ``tar`` are our loaders
over a shuffled partition of one rank. Decoding is the same everywhere, so the ratios are about all the
rest. All three live in one process, each with its workers, and read an epoch in turn; the ratio of a
round is one's images/s over bare's of the same round, and the figure is the median over the rounds.
Without workers there is also the ratio of images per CPU second, which other programs disturb less.
The files are in the page cache: a slow or distant file system is not measured here, where shards gain most.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from hvdtrain.config import FolderData, TarData
from hvdtrain.data.images import decode
from hvdtrain.data.loader import PartitionLoader
from hvdtrain.data.partition import Partition
from hvdtrain.data.sources import build_source
from hvdtrain.data.tarindex import list_shards

CLASSES, SHARDS, SIDE, SIZE, BATCH = 4, 4, 256, 224, 32
VARIANTS = ("bare", "folder", "tar")
# What docs/performance.md holds both ratios to, with each number of workers.
LIMIT = 0.95


def make_images(root: Path, num_images: int) -> None:
    """Writes the images as a folder of class folders and as tar shards."""
    draw = np.random.default_rng(0)
    with ExitStack() as stack:
        names = [root / f"photos-{number:03d}.tar" for number in range(SHARDS)]
        shards = [stack.enter_context(tarfile.open(name, "w")) for name in names]
        for number in range(num_images):
            content, label = make_image(draw), number % CLASSES
            path = root / "folder" / "train" / f"class{label}" / f"{number:06d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            for suffix, data in (("jpg", content), ("cls", str(label).encode())):
                member = tarfile.TarInfo(f"{number:06d}.{suffix}")
                member.size = len(data)
                shards[number * SHARDS // num_images].addfile(member, BytesIO(data))


def make_image(draw: np.random.Generator) -> bytes:
    """A smooth JPEG of about 14 kB."""
    rough = Image.fromarray(draw.integers(0, 256, (16, 16, 3), dtype=np.uint8))
    content = BytesIO()
    rough.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(content, "jpeg", quality=90)
    return content.getvalue()


class Files(Dataset[tuple[torch.Tensor, int]]):
    """What a user writes: a list of paths, a decoder."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self._paths[index]
        return decode(path, SIZE, 3), int(path.split("/class")[1][0])


def bare_loader(root: Path, workers: int) -> DataLoader[Any]:
    """PyTorch's loader over the files that our folder source trains with."""
    images = build_source(folder_job(root)).train
    paths = [images.describe(index) for index in range(len(images))]  # type: ignore[attr-defined, arg-type]
    return DataLoader(
        Files(paths), batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )


def folder_job(root: Path) -> FolderData:
    """The folder as a job's data; all images are used for training, as of the shards."""
    return FolderData(source="folder", path=root / "folder", validation="train", image_size=SIZE)


def our_loader(root: Path, variant: str, workers: int) -> PartitionLoader:
    """Our loader over the folder, or over the shards."""
    shards = root / f"photos-{{000..{SHARDS - 1:03d}}}.tar"
    tar = TarData(source="tar", train=shards, validation=shards, classes=CLASSES, image_size=SIZE)
    dataset = build_source(tar if variant == "tar" else folder_job(root)).train
    partition = Partition(len(dataset), 1, BATCH)  # type: ignore[arg-type]  # both kinds have a length
    return PartitionLoader(dataset, partition, 0, workers=workers)


def rates(batches: Iterator[Any]) -> tuple[float, float]:
    """Images of an epoch per second, from before its first batch is asked for, and per CPU second."""
    begin, begin_cpu, images = time.perf_counter(), time.process_time(), 0
    for batch in batches:
        images += len(batch.inputs if hasattr(batch, "inputs") else batch[0])
    return images / (time.perf_counter() - begin), images / (time.process_time() - begin_cpu)


def measure(root: Path, workers: int, rounds: int) -> dict[str, Any]:
    """The medians over the rounds, each variant once per round, after one round that does not count."""
    with ExitStack() as stack:
        ours = {name: stack.enter_context(our_loader(root, name, workers)) for name in VARIANTS[1:]}
        bare = bare_loader(root, workers)
        read: dict[str, Callable[[int], Iterator[Any]]] = {"bare": lambda _: iter(bare)}
        read |= {name: loader.batches for name, loader in ours.items()}
        rows = []
        for number in range(rounds + 1):
            turn = VARIANTS[number % 3 :] + VARIANTS[: number % 3]
            rows.append({name: rates(read[name](number)) for name in turn})
    del rows[0]
    row: dict[str, Any] = {"workers": workers}
    row |= {f"{name}_per_s": median(one[name][0] for one in rows) for name in VARIANTS}
    row |= {f"{name}/bare": median(one[name][0] / one["bare"][0] for one in rows) for name in ours}
    if workers == 0:
        row |= {f"{name}/bare_cpu": median(one[name][1] / one["bare"][1] for one in rows) for name in ours}
    return row


def list_rate(root: Path) -> float:
    """Samples per second that the listing of the shards takes once per run."""
    shards = root / f"photos-{{000..{SHARDS - 1:03d}}}.tar"
    job = TarData(source="tar", train=shards, validation=shards, classes=CLASSES)
    begin = time.perf_counter()
    listing = list_shards(job)
    return 2 * len(listing.train) / (time.perf_counter() - begin)


def main() -> int:
    """Measures with and without workers and prints; 1 if a ratio is below the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        make_images(Path(folder), options.images)
        rows = [measure(Path(folder), workers, options.rounds) for workers in (0, 1, 2)]
        listed = list_rate(Path(folder))
    ok = all(row[f"{name}/bare"] >= LIMIT for row in rows for name in VARIANTS[1:])
    if options.json:
        print(
            json.dumps({"schema": 1, "cpus": os.cpu_count(), "rows": rows, "listed_per_s": listed, "ok": ok})
        )
    else:
        print(f"{'workers':>7}  " + "  ".join(f"{name:>15}" for name in VARIANTS) + "  folder/bare  tar/bare")
        for row in rows:
            found = "  ".join(f"{row[f'{name}_per_s']:>6.0f} images/s" for name in VARIANTS)
            print(f"{row['workers']:>7}  {found}  {row['folder/bare']:>11.3f}  {row['tar/bare']:>8.3f}")
        by_cpu = ", ".join(f"{name}/bare {rows[0][f'{name}/bare_cpu']:.3f}" for name in VARIANTS[1:])
        print(f"by CPU time, without workers: {by_cpu}")
        print(f"listing the shards: {listed:.0f} samples/s, once per run")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
