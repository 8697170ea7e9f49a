"""Sizes as users write them, and what is refused before anything is started."""

import pytest

from hvdtrain.errors import InputError
from hvdtrain.measure.allreduce_request import (
    AllreduceRequest,
    check_request,
    parse_size,
    parse_sizes,
    show_size,
    size_range,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8", 8),
        ("8B", 8),
        ("1K", 1024),
        ("1k", 1024),
        ("1KB", 1024),
        ("1KiB", 1024),
        (" 2 MB ", 2 << 20),
        ("1250M", 1_310_720_000),  # M is 2^20 in a size
        ("1250000000", 1_250_000_000),
        ("1.5M", 3 << 19),
        ("4G", 4 << 30),
    ],
)
def test_units_are_powers_of_1024(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "M", "-8", "0", "8 X", "1e6", "8BB", "0.3", "1.0001K", "5G", "nan", "9" * 30, "8..16..32"]
)
def test_no_size(text):
    with pytest.raises(InputError, match=r"is no size of a buffer.*legal: bytes such as 8"):
        parse_sizes(text)


def test_a_megabyte_is_shown_so_that_it_cannot_be_mistaken():
    shown = [show_size(size) for size in (8, 1023, 1024, 1_310_720_000, 1_250_000_000, 256 << 20, 3 << 30)]
    assert shown == ["8 B", "1023 B", "1 KiB", "1.221 GiB", "1.164 GiB", "256 MiB", "3 GiB"]


def test_ranges_end_where_they_are_said_to():
    assert parse_sizes("8..128", 4) == (8, 32, 128)
    assert parse_sizes("8..64", 4) == (8, 32, 64)
    assert parse_sizes("8B..64B", 2) == (8, 16, 32, 64)
    assert parse_sizes("1K,8..32,8", 4) == (8, 32, 1024)
    assert parse_sizes("8..8") == (8,)
    with pytest.raises(InputError, match=r"'64..8' ends before it begins"):
        parse_sizes("64..8")


def test_the_usual_range_is_8_bytes_to_256_mebibytes_on_gpus():
    request = AllreduceRequest(factor=2)
    assert request.sizes_on(has_gpu=True) == tuple(8 << i for i in range(26))
    assert request.sizes_on(has_gpu=False)[-1] == 32 << 20
    assert AllreduceRequest(sizes=(16,)).sizes_on(has_gpu=True) == (16,)
    assert size_range(8, 256 << 20, 4)[-2:] == (128 << 20, 256 << 20)


def test_a_request_arrives_as_it_was():
    request = AllreduceRequest((8, 16), 2, ("float32", "float16"), ("mpi",), 7, 2.5, True)
    assert AllreduceRequest.from_json(request.to_json()) == request


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtypes": ("bfloat16",)}, "--dtype: 'bfloat16'; legal: float32, float16"),
        ({"libraries": ("nccl",)}, "--library: 'nccl'; legal: horovod, mpi, torch"),
        ({"libraries": ("mpi", "mpi")}, "--library: mpi stands twice"),
        ({"sizes": (10,)}, "10 bytes are no whole number of float32 elements; legal: multiples of 4"),
        ({"sizes": (7,), "dtypes": ("float16",)}, "legal: multiples of 2"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes, message):
    with pytest.raises(InputError) as caught:
        check_request(AllreduceRequest(**changes))
    assert message in str(caught.value)
