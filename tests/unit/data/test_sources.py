import sys
from collections import Counter
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, TensorDataset

from hvdtrain.config import DigitsData, FactoryData, FolderData, SyntheticData
from hvdtrain.data.batch import SampleError
from hvdtrain.data.scan import scan_folder
from hvdtrain.data.sources import build_source
from hvdtrain.data.validate import validate_source
from hvdtrain.errors import InputError

# --- digits


@pytest.fixture(scope="module")
def digits():
    return build_source(DigitsData(source="digits"))


def test_digits_are_split_for_good(digits):
    assert (len(digits.train), len(digits.validation)) == (1438, 359)
    assert digits.num_classes == 10
    assert digits.sample_shape == (1, 8, 8)
    assert digits.sample.equal(digits.train[0][0])
    digits.sample.add_(1)
    assert not digits.sample.equal(digits.train[0][0])
    for part, low, high in ((digits.train, 139, 146), (digits.validation, 35, 37)):
        counts = Counter(part.tensors[1].tolist())
        assert sorted(counts) == list(range(10))
        assert low <= min(counts.values()) <= max(counts.values()) <= high
    # which images are held out is part of every published result: it never changes
    levels = ((digits.validation.tensors[0] * 0.3760 + 0.3053) * 16).round().to(torch.uint8)
    assert sha256(levels.numpy().tobytes()).hexdigest()[:16] == "43e81aaa3fbfedd2"


def test_digits_are_normalised(digits):
    pixels = torch.cat([digits.train.tensors[0], digits.validation.tensors[0]])
    assert pixels.dtype == torch.float32
    assert abs(pixels.mean().item()) < 1e-3
    assert abs(pixels.std().item() - 1) < 1e-3


def test_no_digit_is_lost_or_repeated(digits):
    from sklearn.datasets import load_digits

    def bag(images):
        return Counter(image.numpy().round(3).tobytes() for image in images)

    every = torch.from_numpy((load_digits().images / 16 - 0.3053) / 0.3760).float()
    assert bag(digits.train.tensors[0]) + bag(digits.validation.tensors[0]) == bag(every)


# --- synthetic


def synthetic(**options):
    return SyntheticData(source="synthetic", **{"shape": (3, 8, 12), "classes": 4, "samples": 40, **options})


def test_synthetic_samples_depend_on_their_index_alone():
    one, two = build_source(synthetic()), build_source(synthetic(samples=80))
    assert (len(one.train), len(one.validation)) == (40, 256)
    assert (one.num_classes, one.sample_shape) == (4, (3, 8, 12))
    assert one.sample.equal(one.train[0][0])
    for index in (39, 0, 17):
        image, label = one.train[index]
        assert (image.shape, image.dtype, label) == ((3, 8, 12), torch.float32, index % 4)
        assert image.equal(two.train[index][0])
        assert not image.equal(one.validation[index][0])
    with pytest.raises(IndexError):
        one.train[40]


def test_synthetic_classes_can_be_learned_from_other_samples():
    source = build_source(synthetic(classes=9, samples=180, shape=(1, 16, 16)))
    centres = torch.stack(
        [torch.stack([source.train[i][0] for i in range(c, 180, 9)]).mean(0).flatten() for c in range(9)]
    )
    images, labels = zip(*(source.validation[i] for i in range(90)), strict=True)
    found = torch.cdist(torch.stack(images).flatten(1), centres).argmin(1)
    assert found.tolist() == list(labels)


def test_synthetic_noise_differs_between_samples_of_a_class():
    source = build_source(synthetic())
    images = [source.train[index][0].numpy().tobytes() for index in range(0, 40, 4)]
    assert len(set(images)) == 10


# --- folder


@pytest.fixture
def folder(tmp_path):
    for name, level in (("dark", 10), ("light", 240)):
        (tmp_path / name).mkdir()
        for number in range(10):
            Image.new("L", (9, 7), level + number).save(tmp_path / name / f"{number}.png")
    return tmp_path


def test_folder(folder):
    config = FolderData(source="folder", path=folder, image_size=6, channels=1)
    source = build_source(config)
    assert (len(source.train), len(source.validation)) == (16, 4)
    assert (source.num_classes, source.sample_shape) == (2, (1, 6, 6))
    assert source.sample.equal(source.train[0][0])
    assert not source.may_skip
    assert (
        source.notes
        == validate_source(config)
        == (f"4 of 20 images in {folder} are held out, a fixed fifth of each class",)
    )
    for image, label in (source.train[i] for i in range(16)):
        assert image.shape == (1, 6, 6)
        assert (image.mean() > 0) == bool(label)


def test_folder_from_a_listing_of_another_rank(folder):
    config = FolderData(source="folder", path=folder)
    listing = scan_folder(config)
    (folder / "dark" / "new.png").touch()
    assert len(build_source(config, listing).train) == 16


def test_folder_that_may_skip(folder):
    config = FolderData(source="folder", path=folder, unreadable="skip", image_size=6)
    listing = scan_folder(config)
    for index in range(2):
        Path(listing.train.path(index)).write_text("no image")
    source = build_source(config, listing)
    assert source.may_skip
    assert source.sample.equal(source.train[2][0])
    for index in range(len(listing.train)):
        Path(listing.train.path(index)).write_text("no image")
    with pytest.raises(InputError, match=r"data\.path: none of the 16 training images can be read"):
        build_source(config, listing)


# --- factory


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


class Unreadable:
    def __len__(self):
        return 3

    def __getitem__(self, index):
        raise OSError("tape is not mounted")


class Counting:
    """Token numbers of different length, which it pads itself; counts what is read."""

    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 3

    def __getitem__(self, index):
        self.reads += 1
        return {"tokens": list(range(index + 1)), "label": index}

    def collate(self, samples):
        longest = max(len(sample["tokens"]) for sample in samples)
        rows = [sample["tokens"] + [0] * (longest - len(sample["tokens"])) for sample in samples]
        return torch.tensor(rows), torch.tensor([sample["label"] for sample in samples])


class Objects(Counting):
    """Its batches hold an object that is no tensor."""

    def collate(self, samples):
        return samples, torch.tensor([sample["label"] for sample in samples])


class Ragged(Counting):
    """Its batches are no pairs."""

    def collate(self, samples):
        return samples


def tensors(count, classes=None):
    dataset = TensorDataset(torch.zeros(count, 5), torch.arange(count) % 2)
    if classes:
        dataset.classes = classes
    return dataset


class Bundle:
    def __init__(self, **parts):
        self.__dict__.update(parts)


def factory(made):
    """What the job file's factory returns."""
    return MADE[made]


MADE = {
    "pair": (tensors(6), tensors(2)),
    "list": [tensors(6, ["a", "b", "c"]), tensors(2)],
    "bundle": Bundle(train=tensors(6), validation=tensors(2), num_classes=7),
    "plain": ([(1.5, 0), (2.5, 1)], [(1.5, 0)]),
    "tokens": ([(torch.tensor([4, 2]), 1)], tensors(2)),
    "half": ([(torch.ones(3, dtype=torch.float16), np.int64(1))], tensors(2)),
    "array": ([[np.ones((2, 3), dtype=np.float32), np.array(1)]], tensors(2)),
    "collates": (Counting(), tensors(2)),
    "own inputs": (Objects(), tensors(2)),
    "none": None,
    "three": (1, 2, 3),
    "stream": (Stream(), tensors(2)),
    "number": (tensors(6), 5),
    "dict": ({"a": 1}, tensors(2)),
    "empty": (tensors(6), tensors(0)),
    "unreadable": (Unreadable(), tensors(2)),
    "bare": ([torch.zeros(3)], tensors(2)),
    "nothing": ([None], tensors(2)),
    "triple": ([(torch.zeros(3), 1, 2)], tensors(2)),
    "mapping": ([{"x": 1, "y": 2}], tensors(2)),
    "image": ([(Image.new("L", (2, 2)), 1)], tensors(2)),
    "words": ([("a text", 1)], tensors(2)),
    "array of words": ([(np.array(["a text"]), 1)], tensors(2)),
    "no target": ([(torch.zeros(3), None)], tensors(2)),
    "ragged": (Ragged(), tensors(2)),
}


def from_factory(monkeypatch, **args):
    monkeypatch.setitem(sys.modules, "users_factory", sys.modules[__name__])
    return build_source(FactoryData(source="users_factory:factory", args=args))


@pytest.mark.parametrize(
    ("made", "lengths", "num_classes", "shape"),
    [
        ("pair", (6, 2), None, (5,)),
        ("list", (6, 2), 3, (5,)),
        ("bundle", (6, 2), 7, (5,)),
        ("plain", (2, 1), None, ()),
    ],
)
def test_factory(monkeypatch, made, lengths, num_classes, shape):
    source = from_factory(monkeypatch, made=made)
    assert (len(source.train), len(source.validation)) == lengths
    assert (source.num_classes, source.sample_shape) == (num_classes, shape)


@pytest.mark.parametrize(
    ("made", "sample"),
    [
        ("tokens", torch.tensor([4, 2])),
        ("half", torch.ones(3, dtype=torch.float16)),
        ("array", torch.ones(2, 3)),
        ("plain", torch.tensor(1.5, dtype=torch.float64)),
        ("collates", torch.tensor([0])),
    ],
)
def test_the_sample_is_the_first_input_as_a_loader_gives_it(monkeypatch, made, sample):
    found = from_factory(monkeypatch, made=made).sample
    assert found.dtype == sample.dtype
    assert found.equal(sample)


def test_an_input_that_is_no_tensor_gives_no_sample(monkeypatch):
    source = from_factory(monkeypatch, made="own inputs")
    assert (source.sample, source.sample_shape) == (None, None)


def test_the_first_sample_is_read_once(monkeypatch):
    MADE["collates"][0].reads = 0
    from_factory(monkeypatch, made="collates")
    assert MADE["collates"][0].reads == 1


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("bare", "is an object of type Tensor"),
        ("nothing", "is None"),
        ("triple", "is a tuple of 3"),
        ("mapping", "is an object of type dict"),
        ("image", "has an object of type Image as its input"),
        ("words", "has an object of type str as its input"),
        ("array of words", "has an object of type ndarray as its input"),
        ("no target", "has None as its target"),
    ],
)
def test_samples_that_are_no_pairs_are_refused(monkeypatch, made, found):
    with pytest.raises(InputError) as caught:
        from_factory(monkeypatch, made=made)
    name = "users_factory:factory: sample 0 of the train data set"
    legal = "an (input, target) pair of tensors, arrays or numbers"
    assert str(caught.value) == f"data.source: {name} {found}; legal: {legal}"


def test_batches_that_are_no_pairs_are_refused(monkeypatch):
    with pytest.raises(
        InputError, match=r"collate of the train data set returned a list of 1; legal: an \(inp"
    ):
        from_factory(monkeypatch, made="ragged")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("none", "users_factory:factory returned None; legal: a pair (train, validation)"),
        ("three", "users_factory:factory returned a tuple of 3"),
        ("stream", "users_factory:factory: the train data set is an IterableDataset"),
        ("number", "users_factory:factory: the validation data set is an object of type int"),
        ("dict", "users_factory:factory: the train data set is an object of type dict"),
        ("empty", "users_factory:factory: the validation data set is empty"),
    ],
)
def test_factory_that_returns_something_else(monkeypatch, made, said):
    with pytest.raises(InputError) as caught:
        from_factory(monkeypatch, made=made)
    assert str(caught.value).startswith(f"data.source: {said}")


def test_factory_with_wrong_arguments(monkeypatch):
    with pytest.raises(InputError, match=r"data\.args: users_factory:factory .*'mode'"):
        from_factory(monkeypatch, made="pair", mode="fast")


def test_factory_whose_first_sample_fails(monkeypatch):
    with pytest.raises(
        SampleError, match=r"^sample 0 could not be read on rank 0: OSError: tape is not mounted"
    ):
        from_factory(monkeypatch, made="unreadable")


# --- checks on a login node


def test_validate_finds_what_is_wrong_before_any_rank_starts(tmp_path):
    assert validate_source(DigitsData(source="digits")) == ()
    assert validate_source(synthetic()) == ()
    assert validate_source(FactoryData(source="os.path:join")) == ()
    with pytest.raises(InputError, match="no module 'no_such_module'"):
        validate_source(FactoryData(source="no_such_module:make"))
    with pytest.raises(InputError, match="cannot be read"):
        validate_source(FolderData(source="folder", path=tmp_path / "no"))


@pytest.mark.parametrize(
    ("config", "package"),
    [(DigitsData(source="digits"), "scikit-learn"), (FolderData(source="folder", path="."), "Pillow")],
)
def test_validate_names_a_package_that_is_missing(monkeypatch, config, package):
    monkeypatch.setattr("hvdtrain.data.validate.find_spec", lambda name: None)
    with pytest.raises(InputError, match=rf"{package} is not installed; pip install {package}"):
        validate_source(config)


def test_no_hidden_use_of_global_random_numbers(folder):
    np.random.seed(1)
    torch.manual_seed(1)
    expected = np.random.rand(), torch.rand(()).item()
    np.random.seed(1)
    torch.manual_seed(1)
    for config in (DigitsData(source="digits"), synthetic(), FolderData(source="folder", path=folder)):
        build_source(config).train[0]
    assert (np.random.rand(), torch.rand(()).item()) == expected
