import gzip
import io
import os
import pickle
import sys
import tarfile

import pytest
from PIL import Image

from hvdtrain.config import TarData
from hvdtrain.data.batch import SkipSample
from hvdtrain.data.listing import has_listing, list_source
from hvdtrain.data.loader import PartitionLoader
from hvdtrain.data.partition import Partition
from hvdtrain.data.sources import build_source
from hvdtrain.data.tar import OpenFiles
from hvdtrain.data.tarindex import list_shards
from hvdtrain.data.validate import validate_source
from hvdtrain.errors import InputError
from hvdtrain.process import command, run

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


def picture(level):
    content = io.BytesIO()
    Image.new("L", (6, 6), level).save(content, "png")
    return content.getvalue()


def pack(path, members, form=tarfile.USTAR_FORMAT):
    """A tar of (name, content) members; content None makes a folder."""
    with tarfile.open(path, "w", format=form) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


def sample(number, label=None):
    label = number % 3 if label is None else label
    return [(f"{number:04d}.png", picture(number)), (f"{number:04d}.cls", str(label).encode())]


@pytest.fixture
def shards(tmp_path):
    """Three training shards of 4, 3 and 5 samples and one of 2 for validation; returns the options."""
    first = 0
    for shard, count in enumerate((4, 3, 5)):
        members = [member for number in range(first, first + count) for member in sample(number)]
        pack(tmp_path / f"t-{shard:02d}.tar", members)
        first += count
    pack(tmp_path / "v.tar", sample(100, 0) + sample(101, 2))
    return {"train": str(tmp_path / "t-{00..02}.tar"), "validation": str(tmp_path / "v.tar")}


def job(**options):
    return TarData(source="tar", **{"classes": 3, "image_size": 4, "channels": 1, **options})


def refused(**options):
    with pytest.raises(InputError) as caught:
        list_shards(job(**options))
    return str(caught.value)


def level(image):
    return round((image[0, 0, 0].item() + 1) / 2 * 255)


def test_samples_are_reached_in_any_order(shards):
    source = build_source(job(**shards))
    assert (len(source.train), len(source.validation), source.num_classes) == (12, 2, 3)
    assert source.sample_shape == (1, 4, 4)
    assert (source.notes, source.may_skip) == ((), False)
    for index in (11, 0, 4, 3, 7):
        image, label = source.train[index]
        assert (level(image), label) == (index, index % 3)
    assert source.train.targets.tolist() == [0, 1, 2] * 4
    assert source.validation.targets.tolist() == [0, 2]
    assert source.train.describe(5).startswith("0005.png in ")
    assert source.train.describe(5).endswith("t-01.tar")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shuffled_partition_reads_each_sample_once(shards, workers):
    source = build_source(job(**shards))
    found = []
    for rank in range(2):
        with PartitionLoader(source.train, Partition(12, 2, 2, seed=1), rank, workers=workers) as loader:
            for batch in loader.batches(0):
                found += [
                    (level(image), int(label))
                    for image, label in zip(batch.inputs, batch.targets, strict=True)
                ]
    assert sorted(found) == [(number, number % 3) for number in range(12)]


def test_a_listing_travels_to_other_ranks(shards):
    config = job(**shards)
    assert has_listing(config)
    listing = pickle.loads(pickle.dumps(list_source(config)))
    source = build_source(config, listing)
    assert level(pickle.loads(pickle.dumps(source.train))[9][0]) == 9


def test_listing_reads_no_image(shards, tmp_path):
    pack(tmp_path / "v.tar", [("a.jpg", b"no image"), ("a.cls", b"1")])
    assert len(list_shards(job(**shards)).validation) == 1


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_forms_of_tar_and_of_names(tmp_path, form):
    long = "d" * 90 + "/" + "e" * 90
    members = [
        ("train", None),
        ("train/a.b.png", b"ignored: not what is read"),
        ("train/x.PNG", picture(7)),
        ("train/x.json", b"{}"),
        ("train/x.cls", b" 2\n"),
        ("other/x.cls", b"1"),
        ("other/x.png", picture(8)),
        (".png", b""),
        (f"{long}.png", picture(9)),
        (f"{long}.cls", b"0"),
    ]
    path = str(pack(tmp_path / "x.tar", members, form))
    source = build_source(job(train=path, validation=path))
    assert [(level(image), label) for image, label in (source.train[i] for i in range(3))] == [
        (7, 2),
        (8, 1),
        (9, 0),
    ]
    assert source.notes == (
        f"shards are used for training and validation: {path}",
        f"8 other members are ignored, such as train in {path}",
    )


BAD = {
    "no label": ([*sample(1), ("b.png", b"")], "shard {}: sample 'b' has no label b.cls"),
    "no label, first": ([("b.png", b""), *sample(1)], "shard {}: sample 'b' has no label b.cls"),
    "no image": ([("b.cls", b"1")], "shard {}: sample 'b' has a label, but no image; legal: pairs of"),
    "label is text": ([("b.cls", b"cat")], "shard {}: b.cls holds 'cat'; legal: a class number"),
    "label is negative": ([("b.cls", b"-1")], "shard {}: b.cls holds '-1'"),
    "label is real": ([("b.cls", b"1.0")], "shard {}: b.cls holds '1.0'"),
    "label is empty": ([("b.cls", b"")], "shard {}: b.cls holds ''"),
    "label is long": ([("b.cls", b"1" * 5000)], "shard {}: b.cls holds '11111"),
    "label is too large": (sample(1, 3), "shard {}: 0001.cls holds class 3; legal: 0 to 2, since"),
    "two images": ([("b.png", b""), ("b.jpg", b"")], "sample 'b' has two images, b.png and b.jpg"),
    "two labels": ([("b.cls", b"1"), ("b.cls", b"1")], "sample 'b' has two labels"),
    "label is no text": ([("b.cls", b"\xff\x00")], "b.cls holds '\ufffd\\x00'"),
    "label far from its image": (
        [sample(1)[0], *sample(2), sample(1)[1]],
        "members of sample '0001' do not stand together; pack them in the order of their names",
    ),
    "image far from its label": ([sample(1)[1], *sample(2), sample(1)[0]], "'0001' do not stand together"),
    "apart": (sample(1) + sample(2) + sample(1), "members of sample '0001' do not stand together"),
    "nothing": ([], "{} holds no sample"),
    "other things": ([("readme.txt", b"")], "{} holds no sample"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_samples_are_named(shards, tmp_path, kind):
    members, said = BAD[kind]
    path = pack(tmp_path / "t-01.tar", members)
    message = refused(**shards)
    assert message.startswith("data.train: ")
    assert said.format(path) in message


def cut(path, size):
    os.truncate(path, size)


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "damaged or cut short: empty file"),
        (300, "damaged or cut short"),
        (512 + 20, "damaged or cut short"),  # in the first image
        (1024 + 20, "ends without an end-of-archive block at byte 1024"),  # in the second header
        (1024, "ends without an end-of-archive block"),  # between two members
        (4096, "ends without an end-of-archive block"),  # between two samples
    ],
)
def test_a_shard_that_is_cut_short(shards, tmp_path, size, said):
    cut(tmp_path / "t-02.tar", size)
    message = refused(**shards)
    assert f"shard {tmp_path / 't-02.tar'}: it " in message
    assert said in message


def test_a_broken_header_in_the_middle_is_not_taken_for_the_end(shards, tmp_path):
    with open(tmp_path / "t-02.tar", "r+b") as file:
        file.seek(2048)
        file.write(b"rubbish")
    assert "has a broken header at byte 2048" in refused(**shards)


def test_a_hole_in_the_middle_is_not_taken_for_the_end(shards, tmp_path):
    with open(tmp_path / "t-02.tar", "r+b") as file:
        file.seek(2048)
        file.write(bytes(512))  # the header of the second sample
    assert "it goes on at byte 2560, after an end-of-archive block at byte 2048: damaged" in refused(**shards)


def test_archives_that_were_put_together_byte_by_byte(shards, tmp_path):
    with open(tmp_path / "t-00.tar", "ab") as file:
        file.write((tmp_path / "t-01.tar").read_bytes())
    message = refused(**shards)
    assert "it goes on at byte 10240, after an end-of-archive block at byte 8192: " in message
    assert message.endswith("several archives in one file")


def test_padding_behind_the_end_may_be_long(shards, tmp_path):
    cut(tmp_path / "t-00.tar", 3 << 20)
    assert len(list_shards(job(**shards)).train) == 12


def test_no_tar_at_all(shards, tmp_path):
    (tmp_path / "v.tar").write_bytes(b"<html>not found</html>" * 100)
    assert refused(**shards).startswith(f"data.validation: shard {tmp_path / 'v.tar'}: it is damaged or cut")


def test_missing_shards(shards, tmp_path, monkeypatch):
    pattern = str(tmp_path / "t-{00..09}.tar")
    with pytest.raises(InputError, match=r"^data.train: 7 of 10 shards are missing: .*t-03.tar.* and 4 more"):
        validate_source(job(**{**shards, "train": pattern}))
    monkeypatch.chdir(tmp_path)
    assert f"missing: w.tar; seen from {tmp_path}" in refused(**{**shards, "validation": "w.tar"})


def test_a_shard_that_is_named_twice(shards, tmp_path):
    assert "names shards twice: " in refused(**{**shards, "validation": str(tmp_path / "{v,v}.tar")})


def test_compressed_shards_are_refused_whatever_they_are_called(shards, tmp_path):
    path = tmp_path / "t-01.tar"
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(InputError, match=r"t-01.tar is compressed \(gzip\).*without compression.*gzip -d"):
        validate_source(job(**shards))


def test_a_good_job_passes_validation(shards):
    assert validate_source(job(**shards)) == ()


def test_unreadable_images(shards, tmp_path):
    path = pack(tmp_path / "t-01.tar", [("b.png", picture(9)[:40]), ("b.cls", b"1"), *sample(5)])
    source = build_source(job(**shards))
    with pytest.raises(InputError) as caught:
        source.train[4]
    assert str(caught.value).startswith(f"data.train: image b.png in {path} cannot be read: ")
    assert "0x" not in str(caught.value)  # no address of an object
    source = build_source(job(**shards, unreadable="skip"))
    assert source.may_skip
    with pytest.raises(SkipSample, match=r"^b.png in "):
        source.train[4]


def test_all_images_of_the_first_shards_are_unreadable(shards, tmp_path):
    for name in ("t-00", "t-01", "t-02"):
        pack(tmp_path / f"{name}.tar", [("b.png", b"x"), ("b.cls", b"1")])
    with pytest.raises(InputError, match=r"^data.train: none of the 3 training images can be read"):
        build_source(job(**shards, unreadable="skip"))


def test_a_shard_that_went_away_or_shrank_is_an_error_also_where_images_are_skipped(shards, tmp_path):
    source = build_source(job(**shards, unreadable="skip"))
    cut(tmp_path / "t-01.tar", 700)
    with pytest.raises(InputError, match=r"t-01.tar is shorter than when it was listed"):
        source.train[5]
    os.remove(tmp_path / "t-02.tar")
    with pytest.raises(InputError, match=r"t-02.tar is not there on host"):
        source.train[8]


def test_few_files_stay_open(tmp_path):
    def num_open():
        return len(os.listdir("/proc/self/fd"))

    for number in range(200):
        (tmp_path / str(number)).write_bytes(b"%03d" % number)
    files, before = OpenFiles(), num_open()
    for number in [*range(200), 0, 199, 77]:
        assert files.read(str(tmp_path / str(number)), 1, 5) == (b"%03d" % number)[1:]
    assert num_open() - before == 64
    # another process would read whatever the numbers mean there
    assert pickle.loads(pickle.dumps(files))._descriptors == {}
    files.close()
    assert num_open() == before


def test_a_login_node_needs_neither_torch_nor_pillow(shards):
    program = (
        "import sys; from hvdtrain.config import TarData; from hvdtrain.data.validate import validate_source;"
        "from hvdtrain.data.listing import list_source;"
        f"job = TarData(source='tar', classes=3, **{shards!r}); validate_source(job); list_source(job);"
        "print(sorted({'torch', 'numpy', 'horovod', 'mpi4py', 'PIL'} & set(sys.modules)))"
    )
    done = run(command(sys.executable, "-c", program), timeout_s=60)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_what_webdataset_writes_is_read(tmp_path):
    wds = pytest.importorskip("webdataset")
    with wds.TarWriter(str(tmp_path / "w.tar")) as tar:
        for number in range(3):
            tar.write({"__key__": f"a/{number}", "png": picture(number), "cls": number})
    path = str(tmp_path / "w.tar")
    source = build_source(job(train=path, validation=path))
    assert [(level(image), label) for image, label in (source.train[i] for i in range(3))] == [
        (0, 0),
        (1, 1),
        (2, 2),
    ]
