"""Killed again and again at random moments, a run always ends as if nothing had happened.

``HVDTRAIN_SOAK_KILLS`` says how often (``make soak``: 500). ``HVDTRAIN_SOAK_SEED`` repeats a series, as far
as the machine's own timing can be repeated.
"""

import contextlib
import itertools
import json
import os
import random
import shutil
import time

import psutil
import pytest

NUM_KILLS = int(os.environ.get("HVDTRAIN_SOAK_KILLS", "50"))
SEED = int(os.environ.get("HVDTRAIN_SOAK_SEED") or random.randrange(10**6))
# Wide enough that a save takes a while: many of the kills fall into one.
JOB = """
model: {name: digits_cnn, args: {width: 24}}
data: digits
batch: {global: 120, uneven: split}
epochs: 5
optimizer: {name: adam, lr: 0.002}
checkpoint: {every_steps: 4, keep_last: 2}
output: {tensorboard: false}
"""
WORDS = ("train", "job.yaml", "-np", 2, "--slots", 2, "--run-dir", "run", "--resume")
LAST = "step-60"


@pytest.fixture
def undisturbed(start, tmp_path):
    """The model and the metrics of the run that nobody kills."""
    (tmp_path / "job.yaml").write_text(JOB)
    running = start(*WORDS)
    assert running.wait() == 0, running.log
    return taken(tmp_path / "run")


def taken(run):
    """What a finished run left; its folder is free for another."""
    assert json.loads((run / "status.json").read_text())["state"] == "done"
    model = (run / "checkpoints" / LAST / "model.safetensors").read_bytes()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(run)
    return model, [{key: line[key] for key in line if not key.endswith("_s")} for line in lines]


class Killer:
    """Kills a random part of a run at a random moment."""

    def __init__(self, run, draw):
        self._run, self._draw = run, draw
        self._before = set()
        self.in_save = 0

    def wait(self, running):
        """Until the moment has come; False if the run ended before."""
        self._before = self._unfinished()
        if self._draw.random() < 0.4:
            is_time = self._is_saving
        else:
            moment = time.monotonic() + self._draw.random() * 6
            is_time = lambda: time.monotonic() >= moment  # noqa: E731
        while not is_time():
            if running.process.poll() is not None:
                return False
            time.sleep(0.001)
        return running.process.poll() is None

    def kill(self, running):
        """A rank, all of them, or the launcher and all that it started."""
        self.in_save += self._is_saving()
        ranks = running.ranks()
        victims = self._draw.choice([running.family(), ranks, ranks[:1], ranks[-1:]])
        for victim in victims or running.family():
            with contextlib.suppress(psutil.Error):
                victim.kill()

    def _is_saving(self):
        return bool(self._unfinished() - self._before)

    def _unfinished(self):
        return set((self._run / "checkpoints").glob(".step-*"))


def test_always_as_if_nothing_had_happened(start, tmp_path, undisturbed):
    draw = random.Random(SEED)
    killer = Killer(tmp_path / "run", draw)
    num_kills, num_finished = 0, 0
    for life in itertools.count():
        assert life < 4 * NUM_KILLS, "it ends before anybody can kill it"
        running = start(*WORDS)
        if num_kills < NUM_KILLS and killer.wait(running):
            killer.kill(running)
            num_kills += 1
            running.wait()
            continue
        assert running.wait() == 0, f"seed {SEED}, kill {num_kills}: {running.log}"
        assert taken(tmp_path / "run") == undisturbed, f"seed {SEED}, kill {num_kills}"
        num_finished += 1
        if num_kills == NUM_KILLS:
            break
    print(f"seed {SEED}: {num_kills} kills, {killer.in_save} inside a save; {num_finished} runs finished")
    assert killer.in_save >= NUM_KILLS // 10
