import errno
import io
import socket

import numpy as np
import pytest
import torch
from PIL import Image

from hvdtrain.data.batch import SkipSample
from hvdtrain.data.folder import FolderDataset
from hvdtrain.data.images import decode
from hvdtrain.data.loader import PartitionLoader
from hvdtrain.data.partition import Partition
from hvdtrain.data.scan import Images
from hvdtrain.errors import InputError

MEAN = torch.tensor([0.485, 0.456, 0.406])
STD = torch.tensor([0.229, 0.224, 0.225])


def saved(path, image, **options):
    image.save(path, **options)
    return str(path)


def levels(path, channels=3, size=2):
    """The decoded image as levels from 0 to 255, shape (channels, size, size)."""
    values = decode(path, size, channels)
    assert values.shape == (channels, size, size)
    assert values.dtype == torch.float32
    mean, std = (MEAN, STD) if channels == 3 else (torch.tensor([0.5]), torch.tensor([0.5]))
    return ((values * std[:, None, None] + mean[:, None, None]) * 255).round().to(int)


def colour(path, channels=3):
    """The one level of each channel of an image in one colour."""
    found = levels(path, channels)
    assert (found == found[:, :1, :1]).all()
    return found[:, 0, 0].tolist()


def test_normalisation_is_imagenets(tmp_path):
    path = saved(tmp_path / "x.png", Image.new("RGB", (5, 3), (255, 0, 51)))
    expected = (torch.tensor([1.0, 0.0, 0.2]) - MEAN) / STD
    assert torch.allclose(decode(path, 4, 3)[:, 0, 0], expected)
    grey = saved(tmp_path / "g.png", Image.new("L", (5, 3), 255))
    assert decode(grey, 4, 1)[0, 0, 0].item() == 1.0


ONE_COLOUR = {
    "RGB": (Image.new("RGB", (4, 4), (10, 20, 30)), [10, 20, 30]),
    "L": (Image.new("L", (4, 4), 77), [77, 77, 77]),
    "1": (Image.new("1", (4, 4), 1), [255, 255, 255]),
    "RGBA opaque": (Image.new("RGBA", (4, 4), (10, 20, 30, 255)), [10, 20, 30]),
    "RGBA clear": (Image.new("RGBA", (4, 4), (10, 20, 30, 0)), [255, 255, 255]),
    "LA clear": (Image.new("LA", (4, 4), (10, 0)), [255, 255, 255]),
    "16 bit": (Image.fromarray(np.full((4, 4), 0x80FF, dtype=np.uint16)), [128, 128, 128]),
}


@pytest.mark.parametrize("name", ONE_COLOUR)
def test_pixel_formats(tmp_path, name):
    image, expected = ONE_COLOUR[name]
    path = saved(tmp_path / "x.png", image)
    assert colour(path) == expected
    if len(set(expected)) == 1:
        assert colour(path, channels=1) == expected[:1]


def test_palette_with_transparency(tmp_path):
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 200, 100, 50])
    assert colour(saved(tmp_path / "x.png", image)) == [200, 100, 50]
    assert colour(saved(tmp_path / "y.png", image, transparency=1)) == [255, 255, 255]


def test_cmyk_and_grey_weights(tmp_path):
    assert colour(saved(tmp_path / "x.tif", Image.new("CMYK", (4, 4), (0, 0, 0, 0)))) == [255, 255, 255]
    (grey,) = colour(saved(tmp_path / "y.png", Image.new("RGB", (4, 4), (255, 0, 0))), channels=1)
    assert grey == 76  # 0.299 of 255: ITU-R 601


@pytest.mark.parametrize("mode", ["F", "I"])
def test_formats_that_have_no_meaning_as_an_image(tmp_path, mode):
    path = saved(tmp_path / "x.tif", Image.new(mode, (4, 4), 70_000))
    with pytest.raises(ValueError, match="pixels are not supported"):
        decode(path, 4, 3)


def test_the_largest_centred_square_is_cut_out(tmp_path):
    pixels = np.zeros((4, 12, 3), dtype=np.uint8)
    pixels[:, 4:8] = 200  # the middle square of a wide image
    assert (levels(saved(tmp_path / "wide.png", Image.fromarray(pixels)), size=4) == 200).all()
    tall = saved(tmp_path / "tall.png", Image.fromarray(pixels.transpose(1, 0, 2).copy()))
    assert (levels(tall, size=4) == 200).all()


def test_rows_and_columns_keep_their_places(tmp_path):
    pixels = np.array([[[10] * 3, [20] * 3], [[30] * 3, [40] * 3]], dtype=np.uint8)
    assert levels(saved(tmp_path / "x.png", Image.fromarray(pixels)))[0].tolist() == [[10, 20], [30, 40]]


def test_exif_orientation(tmp_path):
    pixels = np.array([[[10] * 3, [20] * 3], [[30] * 3, [40] * 3]], dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to view
    path = saved(tmp_path / "x.png", Image.fromarray(pixels), exif=exif)
    assert levels(path)[0].tolist() == [[30, 10], [40, 20]]


def test_large_jpeg_is_decoded_small(tmp_path):
    gradient = np.tile(np.linspace(0, 255, 800, dtype=np.uint8), (600, 1))
    path = saved(tmp_path / "x.jpg", Image.fromarray(gradient), quality=95)
    row = levels(path, size=16)[0, 8].tolist()
    # columns 100 to 700 of 800, in 16 steps
    expected = [round(255 * (100 + 600 * (step + 0.5) / 16) / 800) for step in range(16)]
    assert max(abs(a - b) for a, b in zip(row, expected, strict=True)) <= 3


# --- unreadable files


def broken(tmp_path):
    """Class 0: a good image, then files that are broken in different ways."""
    whole = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(whole, "PNG")
    (tmp_path / "good.png").write_bytes(whole.getvalue())
    (tmp_path / "cut.png").write_bytes(whole.getvalue()[:2000])
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "text.png").write_text("<html>404</html>")
    (tmp_path / "folder.png").mkdir()
    images = Images(str(tmp_path))
    for name in ("good.png", "cut.png", "empty.jpg", "text.png", "folder.png"):
        images.append(name, 3)
    return images


def test_refuse_names_the_file(tmp_path):
    dataset = FolderDataset(broken(tmp_path), 8, 3)
    assert dataset[0][1] == 3
    assert dataset.describe(1) == str(tmp_path / "cut.png")
    for index in range(1, 5):
        with pytest.raises(InputError) as caught:
            dataset[index]
        message = str(caught.value)
        assert message.startswith(f"data.path: image {dataset.describe(index)} cannot be read: ")
        assert message.count(str(tmp_path)) == 1
        assert message.endswith("; mend or remove it, or set data.unreadable=skip")


def test_skip_names_the_file(tmp_path):
    dataset = FolderDataset(broken(tmp_path), 8, 3, skip=True)
    with pytest.raises(SkipSample, match=r"cut\.png: .*truncated"):
        dataset[1]


@pytest.mark.parametrize("workers", [0, 1])
def test_skipping_through_the_loader(tmp_path, workers):
    dataset = FolderDataset(broken(tmp_path), 8, 3, skip=True)
    partition = Partition(5, 1, 3, shuffle=False)
    with PartitionLoader(dataset, partition, 0, workers=workers, may_skip=True) as loader:
        first, second = loader.batches(0)
    assert (first.count, first.inputs.shape, first.targets.tolist()) == (1, (1, 3, 8, 8), [3])
    assert (second.count, second.inputs, second.global_count) == (0, None, None)
    assert [name.split(":")[0] for name in first.skipped + second.skipped] == [
        str(tmp_path / name) for name in ("cut.png", "empty.jpg", "text.png", "folder.png")
    ]


def test_failing_storage_is_never_skipped(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError(errno.EIO, "Input/output error")

    dataset = FolderDataset(broken(tmp_path), 8, 3, skip=True)
    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(OSError, match="Input/output error"):
        dataset[0]


@pytest.mark.parametrize("skip", [False, True])
def test_a_listed_image_that_is_gone_is_never_skipped(tmp_path, skip):
    # as on a host without the file system
    images = Images(str(tmp_path))
    images.append("gone.png", 0)
    with pytest.raises(InputError) as caught:
        FolderDataset(images, 8, 3, skip=skip)[0]
    host = socket.gethostname()
    assert str(caught.value) == (
        f"data.path: image {tmp_path / 'gone.png'} is not there on host {host}; "
        f"is this file system mounted on {host}?"
    )


@pytest.mark.parametrize("skip", [False, True])
def test_lack_of_memory_is_not_the_images_fault(tmp_path, monkeypatch, skip):
    def fail(*args):
        raise MemoryError

    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(MemoryError):
        FolderDataset(broken(tmp_path), 8, 3, skip=skip)[0]


def test_a_decompression_bomb_is_unreadable(tmp_path, monkeypatch):
    path = saved(tmp_path / "x.png", Image.new("L", (64, 64)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    images = Images(str(tmp_path))
    images.append("x.png", 0)
    with pytest.raises(InputError, match="4096 pixels"):
        FolderDataset(images, 8, 3)[0]
    assert path
