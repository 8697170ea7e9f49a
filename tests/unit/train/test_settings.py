"""What a script's call of start leaves open, a variable says."""

import pytest

from hvdtrain.errors import InputError
from hvdtrain.train.settings import chosen_backend, chosen_stall_s


@pytest.mark.parametrize(
    ("given", "environ", "chosen"),
    [
        (None, {}, 300.0),
        (None, {"HVDTRAIN_STALL_S": ""}, 300.0),
        (None, {"HVDTRAIN_STALL_S": "12.5"}, 12.5),
        (60, {"HVDTRAIN_STALL_S": "12.5"}, 60.0),
        (float("inf"), {}, float("inf")),
    ],
)
def test_the_limit_of_a_wait(given, environ, chosen):
    assert chosen_stall_s(given, environ) == chosen


@pytest.mark.parametrize("given", [0, -1, float("nan"), True, "soon", [3]])
def test_a_limit_that_is_none(given):
    with pytest.raises(InputError, match=r"start got stall_s .*legal: a positive number of seconds"):
        chosen_stall_s(given, {})
    with pytest.raises(InputError, match="HVDTRAIN_STALL_S is '5m'"):
        chosen_stall_s(None, {"HVDTRAIN_STALL_S": "5m"})


def test_the_backend_of_a_launch():
    assert chosen_backend("auto", {}) == "auto"
    assert chosen_backend("auto", {"HVDTRAIN_BACKEND": "ddp"}) == "ddp"
    assert chosen_backend("horovod", {"HVDTRAIN_BACKEND": "ddp"}) == "horovod"
    with pytest.raises(InputError, match="HVDTRAIN_BACKEND is 'nccl'; legal: auto, horovod, ddp, single"):
        chosen_backend("auto", {"HVDTRAIN_BACKEND": "nccl"})
