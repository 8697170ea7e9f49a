"""The noise scale of what the ranks tell once, when all steps are done."""

import pytest

from hvdtrain.measure.noise_scale import NoiseRecord
from hvdtrain.measure.profile_gather import RankMeasures, noise_of


def noise_from(*norms):
    return noise_of([RankMeasures([], [], one) for one in norms], NoiseRecord(1, 2))


def test_the_norms_of_the_ranks_are_averaged_and_their_steps_counted_once():
    """By hand: means 4 and 3, so |G|^2 = 2 * 3 - 4 = 2 and S = (4 - 3)/(1 - 1/2) = 2."""
    noise = noise_from((7, 3.0, 3.0), (7, 5.0, 3.0))
    assert noise.simple == pytest.approx(1.0)
    assert noise.num_steps == 7


@pytest.mark.parametrize("counts", [(7, 6), (0, 0), (4, 4)])
def test_ranks_that_sampled_other_steps_or_too_few_tell_nothing(counts):
    assert noise_from(*((count, 4.0, 3.0) for count in counts)) is None
