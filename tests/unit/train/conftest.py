"""A world of several ranks in one process, for the arithmetic of reductions; tests/mpi has the engines."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace

import pytest
import torch

# Generous: the limit only ends a test whose ranks take different collectives.
LIMIT_S = 60


class Threads:
    """The collectives of ``Backend`` among threads; a rank that takes another one breaks the barrier."""

    def __init__(self, rank, size, meeting, table):
        self.rank, self.size, self._meeting, self._table = rank, size, meeting, table

    def _exchanged(self, kind, value):
        self._table[self.rank] = (kind, value)
        self._meeting.wait(LIMIT_S)
        table = list(self._table)
        self._meeting.wait(LIMIT_S)
        assert {kind for kind, _ in table} == {kind}
        return [value for _, value in table]

    def sum(self, values, name):
        return torch.stack(self._exchanged(("sum", name, values.dtype, values.shape), values.clone())).sum(0)

    def gather(self, value):
        return self._exchanged("gather", value)


@pytest.fixture
def on_ranks():
    """Calls ``work(backend)`` as each of ``size`` ranks; returns what each of them gave."""

    def run(size, work):
        meeting, table = Barrier(size), [None] * size

        def as_rank(rank):
            try:
                return work(Threads(rank, size, meeting, table))
            except BaseException:
                meeting.abort()
                raise

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(as_rank, range(size)))

    return run


@pytest.fixture
def alone():
    """One rank: what every other number of ranks is held against."""
    from hvdtrain.backends.single import SingleBackend

    return SingleBackend(SimpleNamespace(rank=0, size=1), torch.device("cpu"))
