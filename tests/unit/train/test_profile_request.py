"""The variables that carry a request to the ranks."""

from pathlib import Path

import pytest

from hvdtrain.errors import InputError
from hvdtrain.train.profile_request import ProfileRequest, asked_profile


def test_what_is_carried_is_asked(tmp_path):
    asked = ProfileRequest(30, 4, tmp_path / "profile.json", tmp_path / "trace.json")
    assert asked_profile(asked.environment()) == asked
    assert asked_profile({}) == ProfileRequest(50, 10, None, None)
    assert asked_profile({"HVDTRAIN_PROFILE": "p.json"}).file == Path("p.json")


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("HVDTRAIN_PROFILE_STEPS", "1", "at least 2"),
        ("HVDTRAIN_PROFILE_STEPS", "many", "at least 2"),
        ("HVDTRAIN_PROFILE_WARMUP", "0", "at least 1"),
        ("HVDTRAIN_PROFILE_WARMUP", "-3", "at least 1"),
    ],
)
def test_no_number_of_steps(name, value, legal):
    with pytest.raises(InputError, match=f"{name} is '{value}'; legal: a whole number of {legal}"):
        asked_profile({name: value})
