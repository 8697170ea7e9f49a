"""A seeded bijection of ``range(size)``, computed element by element.

The order of an epoch must be the same on every rank, under every number of ranks, after a
resume and in ten years, and must cost no memory: a table of 10^12 indices is 8 TB. So the order
is computed, not stored: a generalised Feistel network (Luby, Rackoff 1988) over pairs
``(left, right)`` in ``Z_a x Z_b`` with ``a * b >= size``, closed on ``range(size)`` by cycle
walking (Black, Rogaway 2002, "Ciphers with arbitrary finite domains"), ten rounds as in NIST
SP 800-38G. Up to 256 elements are shuffled outright (Fisher, Yates): so small a network would
need many rounds before all orders are equally likely.

The order is part of the interface: the same size, seed and epoch give the same order in every
release and on every platform. It is no cipher; nothing secret may rest on it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: the increment of splitmix64
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_ROUNDS = 10
_SHUFFLED_OUTRIGHT = 256
MAX_SIZE = 1 << 62  # both sides of the network stay below 2^32


def mix64(word: int) -> int:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words."""
    word = ((word ^ (word >> _SHIFTS[0])) * _MULTIPLIERS[0]) & _MASK
    word = ((word ^ (word >> _SHIFTS[1])) * _MULTIPLIERS[1]) & _MASK
    return word ^ (word >> _SHIFTS[2])


def mix_words(*words: int) -> int:
    """A 64-bit seed from several numbers in ``[0, 2^64)``; their order counts."""
    state = 0
    for word in words:
        state = mix64(((state ^ word) + _GOLDEN) & _MASK)
    return state


class Permutation:
    """The order of one epoch.

    Args:
        size: Number of elements, at most ``MAX_SIZE``.
        seed: In ``[0, 2^64)``.
        epoch: In ``[0, 2^64)``; each epoch has an order of its own.
    """

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        if not 0 <= size <= MAX_SIZE:
            raise ValueError(f"size must be in [0, 2^62], got {size}")
        if not (0 <= seed <= _MASK and 0 <= epoch <= _MASK):
            raise ValueError(f"seed and epoch must be in [0, 2^64), got {seed} and {epoch}")
        self.size = size
        state = mix_words(seed, epoch)
        self._table = _shuffled(size, state) if size <= _SHUFFLED_OUTRIGHT else None
        self._keys = [_key(state, round_) for round_ in range(_ROUNDS)]
        # An even side makes odd and even permutations equally likely; a * b exceeds size by less
        # than a + b, so that cycle walking takes a second turn about once in sqrt(size) elements.
        root = math.isqrt(max(size - 1, 0)) + 1
        self._a = root + root % 2
        self._b = max(1, -(-size // self._a))

    def at(self, position: int) -> int:
        """The element at ``position``, without NumPy: for single elements."""
        if not 0 <= position < self.size:
            raise IndexError(f"position {position} is outside of range({self.size})")
        if self._table is not None:
            return self._table[position]
        element = self._encrypt(position)
        while element >= self.size:
            element = self._encrypt(element)
        return element

    def take(self, positions: Array) -> Array:
        """The elements at many positions, the same as ``at`` gives, with NumPy.

        Args:
            positions: uint64, any shape, each below ``size`` (not checked).
        """
        import numpy as np

        if self._table is not None:
            return np.array(self._table, dtype=np.uint64)[positions]
        elements = self._encrypt_many(positions)
        # A position's walk ends inside range(size) because it started there.
        while (outside := elements >= self.size).any():
            elements[outside] = self._encrypt_many(elements[outside])
        return elements

    def _encrypt(self, element: int) -> int:
        left, right = divmod(element, self._b)
        for even, odd in zip(self._keys[::2], self._keys[1::2], strict=True):
            left = (left + _below(mix64((right + even) & _MASK), self._a)) % self._a
            right = (right + _below(mix64((left + odd) & _MASK), self._b)) % self._b
        return left * self._b + right

    def _encrypt_many(self, elements: Array) -> Array:
        import numpy as np

        a, b = np.uint64(self._a), np.uint64(self._b)
        left = elements // b
        right = elements - left * b
        for even, odd in zip(self._keys[::2], self._keys[1::2], strict=True):
            _add_round(left, right, even, a)
            _add_round(right, left, odd, b)
        return left * b + right


class Identity:
    """The order of a data set that is not shuffled, with the interface of ``Permutation``."""

    def __init__(self, size: int) -> None:
        self.size = size

    def at(self, position: int) -> int:
        """The element at ``position``: the position."""
        return position

    def take(self, positions: Array) -> Array:
        """The elements at ``positions``: the positions."""
        return positions


def _key(state: int, number: int) -> int:
    """Word ``number`` of the splitmix64 stream that starts at ``state``."""
    return mix64((state + (number + 1) * _GOLDEN) & _MASK)


def _shuffled(size: int, state: int) -> list[int]:
    """Fisher and Yates' shuffle; the bias of 64-bit draws below 257 is under 2^-55."""
    table = list(range(size))
    for last in range(size - 1, 0, -1):
        drawn = (_key(state, last) * (last + 1)) >> 64
        table[last], table[drawn] = table[drawn], table[last]
    return table


def _below(word: int, bound: int) -> int:
    """Maps a random word to ``range(bound)``: multiply and shift (Lemire 2019), no division."""
    return ((word >> 32) * bound) >> 32


def _add_round(target: Array, source: Array, key: int, bound: np.uint64) -> None:
    """``target = (target + F(source)) mod bound`` in place: one round, as in ``_encrypt``."""
    import numpy as np

    word = source + np.uint64(key)
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        word ^= word >> np.uint64(shift)
        word *= np.uint64(multiplier)
    word ^= word >> np.uint64(_SHIFTS[2])
    word >>= np.uint64(32)
    word *= bound
    word >>= np.uint64(32)
    target += word
    # target < 2 * bound; below bound the subtraction wraps to a huge number
    np.minimum(target, target - bound, out=target)
