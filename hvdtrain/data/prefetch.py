"""Worker processes that read ahead, and their end."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawValue
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from hvdtrain.data.reading import Failure
from hvdtrain.errors import TrainingError

# A job's scheduler and mpirun send these to every process of a step, loader workers included.
# If the workers died of them, the rank could not finish the step and write its checkpoint.
_LEFT_TO_THE_TRAINER = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

_CLOSE_GRACE_S = 2.0


Item = TypeVar("Item")


class Prefetcher(Generic[Item]):
    """Runs a data set through PyTorch's loader, in order: request i goes to worker i mod ``workers``.

    The processes are started as Python's ``multiprocessing`` is set to: by fork on Linux up to
    Python 3.13. A forked worker is safe beside Open MPI over TCP and shared memory as long as it
    makes no MPI call. Over InfiniBand with an rdma-core or kernel that is not fork-safe, call
    ``multiprocessing.set_start_method("forkserver")`` first, as Horovod's own examples do: then the
    data set must pickle, and the script's main part be guarded by ``if __name__ == "__main__"``.

    Args:
        reader: Gives items, such as ``Batch``, or ``Failure`` objects.
        requests: What ``reader`` is indexed with.
        workers: Processes that read; 0 reads in this process.
        pin_memory: Tensors in page-locked memory; without CUDA it has no effect.
        seed: For the loader's own generator.
    """

    def __init__(
        self,
        reader: Dataset[Any],
        requests: Sampler[Any],
        *,
        workers: int,
        pin_memory: bool,
        seed: int,
    ) -> None:
        self._processes: list[BaseProcess] = []
        self._iterator: Any = None
        self._newest = 0  # number of the newest call of items()
        self._owner = os.getpid()
        # Without a lock: a worker that is killed would keep it.
        self._announced = RawValue("Q", 0)
        self._requests = _Numbered(requests)
        self._loader: DataLoader[Any] | None = DataLoader(
            _Announcing(reader, self._announced),
            batch_size=None,
            sampler=self._requests,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=pin_memory and torch.cuda.is_available(),
            collate_fn=_unchanged,
            worker_init_fn=_ignore_signals,
            # PyTorch draws a seed for the workers in each epoch; from the global generator, that
            # would shift the model's random numbers.
            generator=torch.Generator().manual_seed(seed),
        )
        # Workers that ignore SIGTERM must be gone before multiprocessing waits for them at exit.
        reference = weakref.ref(self)
        self._at_exit = lambda: _close_at_exit(reference)
        atexit.register(self._at_exit)

    def __del__(self) -> None:
        if hasattr(self, "_at_exit"):  # the constructor came to its end
            self.close()

    def items(self, rank: int) -> Iterator[Item]:
        """Reads all items once more; ends what an earlier call left unread. Workers begin at once.

        Raises:
            InputError: The data set raised one.
            SampleError: The data set raised something else on ``rank``.
            TrainingError: A worker died.
        """
        self._newest += 1
        self._requests.call = self._newest
        return self._items(rank, self._newest, self._start())

    @property
    def has_first(self) -> bool:
        """Whether the first item of the newest call is to be had without waiting for a worker to read it.

        So it is where this process reads itself, and where a worker died, of which the item's place tells.
        """
        is_read = int(self._announced.value) == self._newest
        return is_read or not self._processes or any(one.exitcode is not None for one in self._processes)

    def close(self) -> None:
        """Ends the worker processes; those that do not stop within 2 s are killed."""
        self._close(_CLOSE_GRACE_S)

    def _close(self, grace_s: float) -> None:
        atexit.unregister(self._at_exit)
        if self._loader is not None and os.getpid() == self._owner:
            self._end_workers(grace_s)
        self._loader = None

    def _items(self, rank: int, number: int, items: Iterator[Item | Failure]) -> Iterator[Item]:
        while True:
            if number != self._newest or self._loader is None:
                raise RuntimeError(
                    "these batches have ended: newer ones were asked for, or the loader was closed"
                )
            self._check_workers(rank, None)
            try:
                with _watched_children():
                    item = next(items)
            except StopIteration:
                return
            except (RuntimeError, OSError, EOFError) as error:  # all seen when a worker is killed
                self._await_death()
                self._check_workers(rank, error)
                raise
            if isinstance(item, Failure):
                item.raise_in_rank()
            yield item

    def _start(self) -> Iterator[Item | Failure]:
        if self._loader is None:
            raise RuntimeError("the loader was closed")
        before = set(multiprocessing.active_children())
        with _watched_children(), _blocked_signals():
            iterator: Iterator[Item | Failure] = iter(self._loader)
        self._iterator = iterator
        self._processes += [child for child in multiprocessing.active_children() if child not in before]
        return iterator

    def _await_death(self) -> None:
        """Waits a second for a worker that is dying, since the error comes before its exit code."""
        dying = wait([process.sentinel for process in self._processes], timeout=1.0)
        for process in self._processes:
            if process.sentinel in dying:
                process.join()

    def _check_workers(self, rank: int, error: Exception | None) -> None:
        for process in self._processes:
            if process.exitcode:
                raise TrainingError(
                    f"a loader worker of rank {rank} (pid {process.pid}) ended with exit code "
                    f"{process.exitcode}; -9 often means that memory ran out: use fewer workers"
                ) from error

    def _end_workers(self, grace_s: float) -> None:
        # PyTorch would end them with the last reference, which a traceback may hold for long. It
        # does so in a thread: a worker that was killed may have left a lock taken that it waits for.
        shut_down = getattr(self._iterator, "_shutdown_workers", None)
        self._iterator = None
        thread = None
        if shut_down is not None and grace_s > 0:
            thread = threading.Thread(target=shut_down, daemon=True)
            thread.start()
            thread.join(grace_s)
        for process in self._processes:
            process.kill()
        if thread is not None:
            thread.join(grace_s)  # it waits for the same processes, and only one can reap each
        for process in self._processes:
            process.join()
        self._processes = []


class _Numbered(Sampler[tuple[int, Any]]):
    """Requests, the first of which bears the number of the call that it is for; the others 0."""

    def __init__(self, requests: Sampler[Any]) -> None:
        self._requests, self.call = requests, 0

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        call = self.call
        for request in self._requests:
            yield call, request
            call = 0


class _Announcing(Dataset[Any]):
    """Reads in a worker, and says when a call's first item is read."""

    def __init__(self, reader: Dataset[Any], announced: Any) -> None:
        self._reader, self._announced = reader, announced

    def __getitem__(self, numbered: tuple[int, Any]) -> Any:
        call, request = numbered
        item = self._reader[request]
        if call:
            self._announced.value = call
        return item


_pytorchs_handler: Any = None


@contextmanager
def _watched_children() -> Iterator[None]:
    """Confines PyTorch's handler of SIGCHLD, which it sets when it first starts workers, to the body.

    It raises an exception wherever the main thread is when a worker dies. That is of use while the
    rank waits for a batch, and none between two collectives or in the middle of a checkpoint.
    """
    global _pytorchs_handler
    before = signal.getsignal(signal.SIGCHLD)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    if _pytorchs_handler is not None:
        signal.signal(signal.SIGCHLD, _pytorchs_handler)
    try:
        yield
    finally:
        now = signal.getsignal(signal.SIGCHLD)
        if now is not before:
            _pytorchs_handler = now
            signal.signal(signal.SIGCHLD, before)


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Holds the trainer's signals back until new workers ignore them; the rank gets them afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _LEFT_TO_THE_TRAINER)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _unchanged(item: Any) -> Any:
    return item


def _ignore_signals(worker: int) -> None:  # noqa: ARG001 - PyTorch passes the worker's number
    for number in _LEFT_TO_THE_TRAINER:
        signal.signal(number, signal.SIG_IGN)  # also throws away what came since the fork
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _LEFT_TO_THE_TRAINER)


def _close_at_exit(reference: weakref.ref[Prefetcher[Any]]) -> None:
    if prefetcher := reference():
        prefetcher._close(grace_s=0.0)  # no thread can be started any more
