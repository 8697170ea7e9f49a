import os
import pickle

import pytest

from hvdtrain.config import FolderData
from hvdtrain.data.scan import Images, scan_folder
from hvdtrain.errors import InputError


def make(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def scan(root, **options):
    return scan_folder(FolderData(source="folder", path=root, **options))


def pairs(images):
    return [(os.path.relpath(images.path(i), images.root), images.label(i)) for i in range(len(images))]


def refused(root, **options):
    with pytest.raises(InputError) as caught:
        scan(root, **options)
    assert caught.value.where == "data.path"
    assert "\n" not in str(caught.value)
    return str(caught.value)


GOOD = ("train/cat/1.png", "train/dog/1.png", "validation/cat/2.png", "validation/dog/2.png")


def test_train_and_validation_folders(tmp_path):
    make(
        tmp_path,
        *GOOD,
        "train/cat/0.JPEG",
        "train/dog/deep/er/3.tif",
        "train/ant/x.webp",
        "validation/ant/y.gif",
    )
    listing = scan(tmp_path)
    assert listing.classes == ("ant", "cat", "dog")
    assert pairs(listing.train) == [
        ("ant/x.webp", 0),
        ("cat/0.JPEG", 1),
        ("cat/1.png", 1),
        ("dog/1.png", 2),
        ("dog/deep/er/3.tif", 2),
    ]
    assert pairs(listing.validation) == [("ant/y.gif", 0), ("cat/2.png", 1), ("dog/2.png", 2)]
    assert listing.notes == ()


def test_hidden_and_other_files_are_ignored_and_counted(tmp_path):
    make(tmp_path, *GOOD, "train/.git/a.png", "train/cat/.thumb.png", "train/cat/notes.txt", "train/cat/png")
    make(tmp_path, "validation/labels.csv")
    listing = scan(tmp_path)
    assert (len(listing.train), len(listing.validation)) == (2, 2)
    (note,) = listing.notes
    assert note.startswith(f"3 other files are ignored, such as {tmp_path}")


def test_every_suffix_in_any_case(tmp_path):
    names = ["a.jpg", "b.jpeg", "c.png", "d.bmp", "e.webp", "f.tif", "g.tiff", "h.gif", "i.ppm"]
    make(
        tmp_path,
        *GOOD,
        *(f"train/cat/{name}" for name in names),
        *(f"train/dog/{name.upper()}" for name in names),
    )
    assert len(scan(tmp_path).train) == 2 * len(names) + 2


def test_folder_names_of_the_job(tmp_path):
    make(tmp_path, "a/cat/1.png", "a/dog/1.png", "b/cat/1.png", "b/dog/1.png")
    assert len(scan(tmp_path, train="a", validation="b").train) == 2


def test_val_is_taken_for_validation_with_a_note(tmp_path):
    make(tmp_path, *(name.replace("validation", "val") for name in GOOD))
    assert scan(tmp_path).notes == (f"validation images are read from {tmp_path / 'val'}",)


def test_val_is_not_taken_where_validation_is_asked_for(tmp_path):
    make(tmp_path, *(name.replace("validation", "val") for name in GOOD))
    message = refused(tmp_path, validation="validation")
    assert "has no folder 'validation', but train, val" in message.replace("val, train", "train, val")


# --- a fixed fifth held out


def test_a_fifth_of_each_class_is_held_out(tmp_path):
    make(
        tmp_path,
        *(f"cat/{i}.png" for i in range(50)),
        *(f"dog/{i}.png" for i in range(23)),
        "emu/1.png",
        "emu/2.png",
    )
    listing = scan(tmp_path)
    counts = [sum(label == c for _, label in pairs(listing.validation)) for c in range(3)]
    assert counts == [10, 4, 1]
    train, validation = set(pairs(listing.train)), set(pairs(listing.validation))
    assert len(train | validation) == 75
    assert not train & validation
    assert listing.notes == (f"15 of 75 images in {tmp_path} are held out, a fixed fifth of each class",)


def test_what_is_held_out_depends_on_names_alone(tmp_path):
    names = [f"{c}/{i}.png" for c in ("cat", "dog") for i in range(30)]
    one, two = make(tmp_path / "one", *names), make(tmp_path / "two", *reversed(names))
    first, second = scan(one), scan(two)
    assert pairs(first.train) == pairs(second.train)
    assert pairs(first.validation) == pairs(second.validation)
    # not simply the first, the last or every fifth in the order of names
    places = [sorted(names[:30]).index(name) for name, label in pairs(first.validation) if label == 0]
    assert places not in ([0, 1, 2, 3, 4, 5], list(range(24, 30)), list(range(4, 30, 5)))


def test_one_more_image_moves_few_others(tmp_path):
    make(tmp_path, *(f"{c}/{i}.png" for c in ("cat", "dog") for i in range(40)))
    before = set(pairs(scan(tmp_path).validation))
    make(tmp_path, "cat/new.png")
    assert len(before ^ set(pairs(scan(tmp_path).validation))) <= 2


def test_a_class_of_one_image_trains(tmp_path):
    make(tmp_path, *(f"cat/{i}.png" for i in range(5)), "dog/1.png")
    listing = scan(tmp_path)
    assert ("dog/1.png", 1) in pairs(listing.train)
    assert listing.notes[1] == "classes with a single image, which is used for training: dog"


def test_nothing_to_hold_out(tmp_path):
    assert "none can be held out" in refused(make(tmp_path, "cat/1.png", "dog/1.png"))


# --- what is refused, in one line that names it


def test_missing_folder(tmp_path):
    assert f"folder {tmp_path / 'no'} cannot be read: No such file or directory" in refused(tmp_path / "no")


def test_missing_relative_folder_tells_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert f"folder images (seen from {tmp_path})" in refused("images")


def test_a_file(tmp_path):
    assert "is not a folder" in refused(make(tmp_path, "x.zip") / "x.zip")


@pytest.mark.parametrize("hidden", [(), (".DS_Store",)])
def test_empty_folder(tmp_path, hidden):
    assert f"{tmp_path} is empty; legal: a folder of class folders" in refused(make(tmp_path, *hidden))


def test_folder_of_images_without_classes(tmp_path):
    assert "has no class folders" in refused(make(tmp_path, "1.png", "2.png"))


def test_one_class(tmp_path):
    assert f"{tmp_path} has one class only, 'cat'" in refused(make(tmp_path, "cat/1.png"))
    assert f"{tmp_path / 'train'} has one class only" in refused(
        make(tmp_path, "train/cat/1.png", "validation/x")
    )


def test_class_folders_without_images(tmp_path):
    make(tmp_path, *GOOD, "train/emu/readme.txt", "validation/emu/1.png")
    (tmp_path / "train" / "fox").mkdir()
    message = refused(tmp_path)
    assert "class folders without an image: emu, fox; legal: files that end in .bmp" in message


def test_classes_that_differ(tmp_path):
    make(tmp_path, *GOOD, "train/emu/1.png", "validation/fox/1.png")
    message = refused(tmp_path)
    assert "it lacks emu and has fox, which training has not" in message


def test_no_validation_folder(tmp_path):
    make(tmp_path, "train/cat/1.png", "train/dog/1.png", "test/cat/1.png")
    message = refused(tmp_path)
    assert "has no folder 'validation', but " in message
    assert f"or data.path={tmp_path / 'train'} to hold a fifth of it out" in message


def test_validation_without_training_is_not_taken_for_a_class(tmp_path):
    make(tmp_path, "training/cat/1.png", "validation/cat/1.png")
    assert "has no folder 'train', but " in refused(tmp_path)


def test_a_training_folder_that_the_job_names_must_exist(tmp_path):
    make(tmp_path, "cat/1.png", "dog/1.png")
    assert "has no folder 'imgs', but " in refused(tmp_path, train="imgs")


@pytest.mark.parametrize("at", ["train/cat/9.png", "train/emu", "train/cat/deep/9.png"])
def test_broken_link(tmp_path, at):
    make(tmp_path, *GOOD, "train/cat/deep/1.png")
    (tmp_path / at).symlink_to("/no/such/file")
    assert f"link {tmp_path / at} leads to /no/such/file, which does not exist" in refused(tmp_path)


def test_good_links_are_followed(tmp_path):
    make(tmp_path, *GOOD, "store/5.png")
    (tmp_path / "train/cat/5.png").symlink_to(tmp_path / "store/5.png")
    (tmp_path / "train/dog/more").symlink_to(tmp_path / "store")
    assert ("cat/5.png", 0) in pairs(scan(tmp_path).train)
    assert ("dog/more/5.png", 1) in pairs(scan(tmp_path).train)


def test_a_link_in_a_circle(tmp_path):
    make(tmp_path, *GOOD)
    (tmp_path / "train/cat/again").symlink_to(tmp_path / "train/cat")
    assert f"link {tmp_path / 'train/cat/again'} leads back" in refused(tmp_path)


@pytest.fixture
def nobody():
    """Root reads everything: give the rights up for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o111])
@pytest.mark.parametrize("at", ["", "train", "train/cat"])
def test_unreadable_folders(tmp_path, request, at, mode):
    make(tmp_path, *GOOD, "train/cat/deep/1.png")
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    (tmp_path / at).chmod(mode)
    request.getfixturevalue("nobody")
    message = refused(tmp_path)
    assert f"{tmp_path / at}" in message
    assert "cannot be read: Permission denied" in message


# --- the table of names


def test_names_of_any_bytes(tmp_path):
    names = ["a b.png", "ü/ñ.png", os.fsdecode(b"\xff\xfe.png")]
    images = Images(str(tmp_path))
    for label, name in enumerate(names):
        images.append(name, label)
    assert pairs(images) == [(name, label) for label, name in enumerate(names)]
    assert pairs(pickle.loads(pickle.dumps(images))) == pairs(images)
