"""What is refused before any rank starts."""

from contextlib import nullcontext

import pytest

from hvdtrain.data.partition import Partition
from hvdtrain.data.passes import Passes
from hvdtrain.errors import InputError
from hvdtrain.train.preflight import check_batchnorm, check_timeline


@pytest.mark.parametrize(
    ("samples", "ranks", "batch", "tail", "steps", "accumulate", "told"),
    [
        (100, 2, 2, "weight", 50, 1, "step 1 of each epoch has 2 samples on 2 ranks.*larger batch"),
        (100, 2, 3, "weight", 50, 1, "step 1 .* 3 samples on 2 ranks"),  # shares of 2 and 1
        (100, 2, 4, "weight", 25, 1, None),
        (101, 2, 4, "weight", 26, 1, "step 26 .* has 1 sample on 2 ranks.*batch.tail=drop"),
        (103, 2, 4, "weight", 26, 1, "step 26 .* 3 samples"),  # shares of 2 and 1
        (101, 2, 4, "weight", 25, 1, None),  # the short step is not reached
        (101, 2, 4, "drop", 25, 1, None),
        (101, 2, 4, "pad", 26, 1, "step 26 .* has 2 samples"),  # a copy fills up to one each
        (103, 2, 4, "pad", 26, 1, None),
        (3, 2, 64, "weight", 1, 1, "step 1 .* has 3 samples"),
        (100, 2, 8, "weight", 12, 4, "step 1"),  # 4 samples in 4 passes
        (96, 2, 12, "weight", 8, 2, None),  # 6 samples in passes of 3
        (100, 2, 10, "weight", 10, 3, "step 1"),  # 5 samples in passes of 2, 2 and 1
    ],
)
def test_a_pass_of_one_sample(samples, ranks, batch, tail, steps, accumulate, told):
    partition = Partition(samples, ranks, global_batch=batch, tail=tail)
    with pytest.raises(InputError, match=told) if told else nullcontext():
        check_batchnorm(partition, ["bn1"], num_steps=steps, accumulate=accumulate)
    check_batchnorm(partition, [], num_steps=steps, accumulate=accumulate)


@pytest.mark.parametrize(
    ("samples", "ranks", "batch", "tail", "accumulate", "told"),
    [
        (5, 1, 1, "weight", 1, "has 1 sample on 1 rank: batch norm 'bn' .* channel; take a larger batch$"),
        (5, 1, 1, "drop", 1, "; take a larger batch$"),
        (5, 1, 4, "weight", 1, "step 2 .* channel; set batch.tail=drop or take another batch$"),
        (
            5,
            2,
            4,
            "pad",
            1,
            "; set batch.tail=drop, take another batch, take fewer ranks or set sync_batchnorm=true$",
        ),
        (5, 2, 4, "weight", 1, "1 sample on 2 ranks: .*; set batch.tail=drop or take another batch$"),
        (1, 1, 4, "weight", 1, "; take more training data$"),
        (
            8,
            1,
            4,
            "weight",
            4,
            "4 samples on 1 rank, a single one in some of 4 passes: .* larger batch or lower batch.accum",
        ),
        (8, 2, 2, "weight", 1, "a larger batch, take fewer ranks or set sync_batchnorm=true$"),
    ],
)
def test_only_what_helps_is_advised(samples, ranks, batch, tail, accumulate, told):
    partition = Partition(samples, ranks, global_batch=batch, tail=tail)
    with pytest.raises(InputError, match=told):
        check_batchnorm(partition, ["bn"], num_steps=partition.num_steps(), accumulate=accumulate)


@pytest.mark.parametrize("tail", ["weight", "pad", "drop"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_check_agrees_with_the_passes_that_are_taken(tail, ranks):
    for samples in range(7, 20):
        for batch in range(ranks, 7):
            for accumulate in (1, 2, 3):
                partition = Partition(samples, ranks, global_batch=batch, tail=tail)
                taken = [
                    len(one.indices)
                    for rank in range(ranks)
                    for one in Passes(partition, rank, accumulate).of_epoch(0)
                ]
                steps = partition.num_steps()
                with pytest.raises(InputError) if 1 in taken else nullcontext():
                    check_batchnorm(partition, ["bn"], num_steps=steps, accumulate=accumulate)


def test_a_timeline_that_cannot_be_written(tmp_path):
    check_timeline(None)
    check_timeline(tmp_path / "t.json")
    assert list(tmp_path.iterdir()) == []
    for older in ("[\n{", ""):
        (tmp_path / "kept.json").write_text(older)
        check_timeline(tmp_path / "kept.json")
        assert (tmp_path / "kept.json").read_text() == older
    (tmp_path / "notes").write_text("mine")
    for path, told in [
        (tmp_path / "none" / "t.json", f"there is no folder {tmp_path / 'none'}; make the folder"),
        (tmp_path, "is a folder"),
        (tmp_path / "kept.json" / "t.json", "there is no folder"),
        (tmp_path / ("x" * 300), "cannot be written: File name too long"),
        (tmp_path / "notes", "is there already, and no timeline; legal: a new file, or an older timeline"),
    ]:
        with pytest.raises(InputError, match=f"^tuning.timeline: {tmp_path}.*{told}"):
            check_timeline(path)
