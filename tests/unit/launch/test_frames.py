"""Frames: whatever a rank prints arrives whole, also when a launcher joins the ranks by blocks."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.launch.frames import FRAME_SIZE, FrameReader, Message, encode

TEXTS = st.text(max_size=3000) | st.builds(
    lambda unit, n: unit * n, st.text(max_size=3), st.integers(0, 2000)
)


@given(st.integers(0, 99999), TEXTS, st.integers(1, 5000))
def test_round_trip_in_pieces_of_any_size(rank, text, piece):
    data = b"".join(encode(rank, {"stdout": text}))
    reader = FrameReader()
    got = [item for i in range(0, len(data), piece) for item in reader.feed(data[i : i + piece])]
    assert got == [Message(rank, {"stdout": text})]
    assert list(reader.close()) == []


@given(TEXTS)
def test_frames_have_one_size_and_fit_into_one_write(text):
    for block in encode(7, {"stderr": text}):
        assert len(block) % FRAME_SIZE == 0
        assert len(block) <= 4096


@pytest.mark.parametrize("block_size", [512, 1024, 4096])
def test_ranks_joined_by_blocks(block_size):
    """As Open MPI 4 does it: blocks of several ranks in any order, cut wherever they are full."""
    texts = {rank: [f"{rank}" * n for n in (0, 100, 450, 5000, 20000)] for rank in range(5)}
    streams = {
        rank: b"".join(b"".join(encode(rank, {"stdout": t})) for t in lines) for rank, lines in texts.items()
    }
    shuffle, joined = random.Random(0), b""
    while streams:
        rank = shuffle.choice(list(streams))
        joined += streams[rank][:block_size]
        streams[rank] = streams[rank][block_size:]
        if not streams[rank]:
            del streams[rank]
    got = list(FrameReader().feed(joined))
    assert all(isinstance(item, Message) for item in got)
    for rank, lines in texts.items():
        assert [item.content["stdout"] for item in got if item.rank == rank] == lines


def test_foreign_lines_are_kept_apart():
    frame = b"".join(encode(1, {"stdout": "x"}))
    reader = FrameReader()
    data = b"mpirun says\r\n" + frame + b"no newline" + frame + b"\x1enonsense\nthe end"
    assert list(reader.feed(data)) == [
        "mpirun says",
        Message(1, {"stdout": "x"}),
        "no newline",
        Message(1, {"stdout": "x"}),
        "nonsense",
    ]
    assert list(reader.close()) == ["the end"]


def test_broken_json_is_shown_not_lost():
    assert list(FrameReader().feed(b"\x1e3.{not json\n")) == ["{not json"]
