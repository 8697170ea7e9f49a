import random
from collections import Counter
from itertools import pairwise, permutations

import numpy as np
import pytest

from hvdtrain.data.permutation import MAX_SIZE, Identity, Permutation, mix64, mix_words


def whole(permutation):
    return permutation.take(np.arange(permutation.size, dtype=np.uint64)).tolist()


def chi_square_limit(freedom):
    """Four standard deviations above the mean of the chi-square distribution."""
    return freedom + 4 * (2 * freedom) ** 0.5


def chi_square(counts, expected):
    return sum((count - expected) ** 2 / expected for count in counts)


def test_mix64_is_splitmix64():
    # the first output of splitmix64 seeded with 0, as its authors' C code prints it
    assert mix64(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF


def test_mix_words_depends_on_each_word_and_on_their_order():
    seeds = {mix_words(*words) for words in ((1, 2), (2, 1), (1, 3), (0, 2), (1,), (1, 2, 0), (0, 0), (0,))}
    assert len(seeds) == 8


# The order of an epoch is part of the interface: these values never change.
@pytest.mark.parametrize(
    ("size", "seed", "epoch", "first"),
    [
        (1, 0, 0, [0]),
        (10, 0, 0, [2, 5, 0, 4, 3, 7]),
        (10, 0, 1, [0, 7, 9, 4, 8, 5]),
        (10, 1, 0, [9, 7, 4, 3, 8, 6]),
        (256, 7, 3, [185, 226, 128, 46, 34, 129]),
        (257, 0, 0, [125, 223, 77, 86, 13, 221]),
        (1000, 0, 0, [362, 211, 839, 827, 321, 429]),
        (1000, 0, 1, [550, 785, 147, 410, 85, 370]),
        (1000, 1, 0, [704, 781, 151, 613, 34, 939]),
        (50_000, 2**63, 12, [4092, 17784, 14955, 47186, 16099, 20654]),
        (10**8, 0, 0, [70555636, 5574488, 96848376, 51769071, 5169096, 35037860]),
        (10**12, 42, 5, [389285097318, 9773942739, 682039583934, 564325734704, 493001385540, 219434765169]),
        (2**62, 1, 1, [3933083508061338882, 969750798147580051, 2721629413316699836]),
    ],
)
def test_golden_order(size, seed, epoch, first):
    permutation = Permutation(size, seed, epoch)
    assert [permutation.at(position) for position in range(len(first))] == first
    assert permutation.take(np.arange(len(first), dtype=np.uint64)).tolist() == first


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_bijection_for_every_small_size(seed):
    for size in range(500):
        assert sorted(whole(Permutation(size, seed, size))) == list(range(size)), size


def test_bijection_for_larger_sizes():
    sizes = [65536, 65537, 99_856, 99_857, *random.Random(1).sample(range(1000, 120_000), 12)]
    for size in sizes:
        seen = np.zeros(size, dtype=bool)
        seen[Permutation(size, 3, 1).take(np.arange(size, dtype=np.uint64))] = True
        assert seen.all(), size


@pytest.mark.parametrize("size", [5, 256, 257, 1000, 10**6 + 3, 10**12, MAX_SIZE])
def test_single_elements_and_blocks_agree(size):
    permutation = Permutation(size, 11, 2)
    positions = [random.Random(size).randrange(size) for _ in range(500)]
    block = permutation.take(np.array(positions, dtype=np.uint64).reshape(5, 100))
    assert block.ravel().tolist() == [permutation.at(position) for position in positions]


def test_all_orders_of_four_are_equally_likely():
    orders = Counter(tuple(whole(Permutation(4, seed, 0))) for seed in range(4800))
    assert set(orders) == set(permutations(range(4)))
    assert chi_square(orders.values(), 200) < chi_square_limit(23)


@pytest.mark.parametrize("position", [0, 1, 288])
@pytest.mark.parametrize("vary", ["seed", "epoch"])
def test_every_element_is_equally_likely_at_a_position(position, vary):
    size, runs = 289, 289 * 20
    made = (Permutation(size, n, 5) if vary == "seed" else Permutation(size, 5, n) for n in range(runs))
    counts = Counter(permutation.at(position) for permutation in made)
    assert chi_square([counts[element] for element in range(size)], 20) < chi_square_limit(size - 1)


def test_pairs_of_neighbours_have_every_distance_equally_often():
    size = 300
    counts = Counter()
    for seed in range(60):
        counts.update(
            (second - first) % size for first, second in pairwise(whole(Permutation(size, seed, 0)))
        )
    assert counts[0] == 0
    expected = 60 * (size - 1) / (size - 1)
    assert chi_square([counts[distance] for distance in range(1, size)], expected) < chi_square_limit(
        size - 2
    )


@pytest.mark.parametrize("size", [300, 1024])  # 1024 fills the network's domain: no cycle walking
def test_odd_and_even_orders_are_equally_likely(size):
    odd = sum(is_odd(whole(Permutation(size, seed, 0))) for seed in range(200))
    assert 100 - 4 * 7.1 < odd < 100 + 4 * 7.1


def is_odd(order):
    seen, parity = [False] * len(order), len(order)
    for start in range(len(order)):
        if not seen[start]:
            parity -= 1
            while not seen[start]:
                seen[start] = True
                start = order[start]
    return parity % 2 == 1


@pytest.mark.parametrize("vary", ["seed", "epoch"])
def test_neighbouring_seeds_and_epochs_have_nothing_in_common(vary):
    size, runs = 2000, 200
    orders = [
        whole(Permutation(size, n, 0) if vary == "seed" else Permutation(size, 0, n)) for n in range(runs + 1)
    ]
    same = sum(sum(a == b for a, b in zip(one, two, strict=True)) for one, two in pairwise(orders))
    assert runs - 4 * runs**0.5 < same < runs + 4 * runs**0.5  # one per pair on average, Poisson
    correlations = [np.corrcoef(one, two)[0, 1] for one, two in pairwise(orders)]
    assert max(map(abs, correlations)) < 4.5 / size**0.5
    assert abs(np.mean(correlations)) < 4 / (size * runs) ** 0.5


@pytest.mark.parametrize("position", [-1, 10, 300])
def test_position_outside_is_an_index_error(position):
    with pytest.raises(IndexError, match=str(position)):
        Permutation(10, 0, 0).at(position)


@pytest.mark.parametrize(
    "arguments", [(-1, 0, 0), (MAX_SIZE + 1, 0, 0), (3, -1, 0), (3, 2**64, 0), (3, 0, -1)]
)
def test_arguments_out_of_range(arguments):
    with pytest.raises(ValueError, match="must be in"):
        Permutation(*arguments)


def test_identity():
    assert [Identity(3).at(position) for position in range(3)] == whole(Identity(3)) == [0, 1, 2]
