"""`hvdtrain build-horovod` as users call it. Those marked `build` share one real compilation."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from hvdtrain.tools.build_horovod.edits import apply_edits, edits_for
from hvdtrain.tools.build_horovod.sdist import unpack_sdist

CLI = [sys.executable, "-P", "-m", "hvdtrain.cli.main", "build-horovod"]
LIMIT_S = 3600


# What needs no compiler


def test_dry_run_prints_the_plan_and_changes_nothing(hvdtrain, tmp_path):
    ended = hvdtrain(
        "build-horovod", "--gpu", "none", "--dry-run", "--json", env={"HVDTRAIN_CACHE": str(tmp_path / "c")}
    )
    assert ended.code == 0, ended.err
    plan = ended.document
    assert (plan["schema"], plan["dry_run"], plan["cached"], plan["gpu"]["kind"]) == (1, True, False, "none")
    assert plan["edits"].keys() >= {f"c++{plan['torch']['cxx_standard']}", "rpath"}
    verbs = [command["argv"][3] for command in plan["commands"] if command["argv"][1:3] == ["-m", "pip"]]
    assert verbs == ["download", "wheel", "install", "install"]
    assert list(tmp_path.iterdir()) == []


def test_dry_run_for_a_person_names_the_edits_and_the_compiler(hvdtrain, tmp_path):
    ended = hvdtrain("build-horovod", "--dry-run", env={"HVDTRAIN_CACHE": str(tmp_path / "c")})
    assert ended.code == 0, ended.err
    for part in ("edit rpath: CMakeLists.txt", "-m pip wheel", "HOROVOD_WITH_GLOO=1", "not in the cache"):
        assert part in ended.out


def test_a_wheel_dir_installs_nothing(hvdtrain, tmp_path):
    env = {"HVDTRAIN_CACHE": str(tmp_path / "c")}
    plan = hvdtrain("build-horovod", "--wheel-dir", "w", "--dry-run", "--json", env=env).document
    installs = [command["argv"] for command in plan["commands"] if "install" in command["argv"]]
    assert len(installs) == 1
    assert "--target" in installs[0]


@pytest.mark.parametrize("words", [["build-horovod", "--dry-run"], ["build-horovod", "--help"], ["--help"]])
def test_torch_stays_out_of_it(words, run_program, tmp_path):
    script = (
        "import sys; from hvdtrain.cli.main import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'horovod', 'mpi4py', 'pydantic', 'rich', 'yaml'} & set(sys.modules); "
        "print(heavy, file=sys.stderr); sys.exit(1 if heavy else code)"
    )
    ended = run_program([sys.executable, "-c", script, *words], env={"HVDTRAIN_CACHE": str(tmp_path / "c")})
    assert ended.code == 0, ended.err


@pytest.mark.parametrize(
    ("env", "part"),
    [
        ({"PATH": "/nowhere"}, "no C++ compiler"),
        ({"CXX": "/nowhere/c++"}, "CXX=/nowhere/c++ does not exist"),
        ({"HVDTRAIN_CACHE": "/dev/null/cache"}, "the cache cannot be written"),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_what_is_missing_is_said_in_one_line_before_anything_starts(hvdtrain, tmp_path, env, part, dry_run):
    env = {"HVDTRAIN_CACHE": str(tmp_path / "c"), **env}
    ended = hvdtrain("build-horovod", *(["--dry-run"] if dry_run else []), env=env)
    assert ended.code == 2
    assert part in ended.error
    assert not (tmp_path / "c").exists()


def test_nccl_without_a_cuda_torch_is_refused(hvdtrain, tmp_path):
    plan = hvdtrain(
        "build-horovod", "--dry-run", "--json", env={"HVDTRAIN_CACHE": str(tmp_path / "c")}
    ).document
    if plan["torch"]["cuda"] is not None:
        pytest.skip("this torch is a CUDA build")
    ended = hvdtrain("build-horovod", "--gpu", "nccl")
    assert ended.code == 2
    assert "--gpu nccl: torch" in ended.error
    assert "is a CPU build" in ended.error


@pytest.mark.parametrize("words", [["--gpu", "rocm"], ["--jobs", "0"], ["--jobs", "many"]])
def test_options_are_checked(hvdtrain, words):
    assert hvdtrain("build-horovod", *words).code == 2


# What compiles


class Build:
    """A running `hvdtrain build-horovod --gpu none --wheel-dir ...`."""

    def __init__(self, folder: Path, *words: str, cache: Path | None = None) -> None:
        (folder / "tmp").mkdir(exist_ok=True)
        env = {
            **os.environ,
            "HVDTRAIN_CACHE": str(cache or folder / "my cache"),
            "TMPDIR": str(folder / "tmp"),
        }
        argv = [*CLI, "--gpu", "none", "--json", "--wheel-dir", str(folder / "wheels"), *words]
        self.process = subprocess.Popen(
            argv, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.said: list[str] = []

    def until(self, part: str) -> str:
        """Reads what it says up to a line with this part."""
        for line in self.process.stderr:
            self.said.append(line)
            if part in line:
                return line
        raise AssertionError(f"it never said {part!r}:\n{''.join(self.said)}")

    def document(self) -> dict:
        """Waits for its end and returns its document."""
        out, err = self.process.communicate(timeout=LIMIT_S)
        self.said.append(err)
        assert self.process.returncode == 0, "".join(self.said)
        return json.loads(out)

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Signals it and waits for it and for all that it started."""
        self.process.send_signal(number)
        self.process.communicate()
        return self.process.returncode


def compilers_in(folder: Path) -> list[str]:
    """Command lines of processes that work below a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if str(folder) in words and "cc1plus" in words:
            found.append(words)
    return found


@dataclass(frozen=True)
class Built:
    folder: Path
    first: dict
    second: dict
    second_said: str
    after_kill: dict
    left_after_kill: list[str]

    @property
    def entry(self) -> Path:
        return self.folder / "my cache/horovod" / self.first["key"]


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """One build killed half-way, then two at once in the same cache: the second waits for the first."""
    folder = tmp_path_factory.mktemp("build")
    builds = [Build(folder)]
    try:
        builds[0].until("compiling:")
        builds[0].end()
        while compilers_in(folder):  # their output has nowhere to go: they end with their present file
            time.sleep(0.2)
        left = [path.name for path in (folder / "tmp").iterdir()]
        builds.append(Build(folder, "--dry-run"))
        after_kill = builds[-1].document()
        first = Build(folder)
        builds.append(first)
        first.until("compiling:")
        second = Build(folder)
        builds.append(second)
        second.until("waiting:")
        yield Built(folder, first.document(), second.document(), "".join(second.said), after_kill, left)
    finally:
        for build in builds:
            if build.process.poll() is None:
                build.end(signal.SIGTERM)


@pytest.mark.build
def test_the_wheel_proves_itself_on_two_ranks(built):
    proof = built.first["proof"]
    assert (proof["size"], proof["sum"], proof["horovod"]) == (2, 3.0, "0.28.1")
    assert (proof["mpi_built"], proof["gloo_built"], proof["nccl_built"]) == (True, True, False)
    assert (built.first["cached"], built.first["installed"]) == (False, False)


@pytest.mark.build
def test_a_build_killed_half_way_is_no_hit_and_the_next_one_sweeps_up(built):
    assert any(name.startswith("hvdtrain-horovod-") for name in built.left_after_kill)
    assert built.after_kill["cached"] is False
    assert list((built.folder / "tmp").glob("hvdtrain-horovod-*")) == []


@pytest.mark.build
def test_the_second_of_two_waits_and_takes_the_firsts_wheel(built):
    assert built.second["cached"] is True
    assert built.second["wheel"] == built.first["wheel"]
    assert built.second_said.count("waiting: process ") == 1
    assert "compiling" not in built.second_said


@pytest.mark.build
def test_the_cache_holds_the_wheel_its_key_and_its_log(built):
    names = {path.name for path in built.entry.iterdir()}
    assert names == {"key.json", "build.log", Path(built.first["wheel"]).name}
    key = json.loads((built.entry / "key.json").read_text())
    assert key["facts"]["torch"]["version"] == built.first["torch"]["version"]
    assert key["edits"].keys() == built.first["edits"].keys()
    assert Path(built.first["wheel"]).read_bytes() == (built.entry / key["wheel"]["name"]).read_bytes()


@pytest.mark.build
def test_the_library_finds_torch_and_mpi_by_no_path_of_the_build(built, tmp_path):
    with zipfile.ZipFile(built.first["wheel"]) as wheel:
        (name,) = [name for name in wheel.namelist() if "/mpi_lib_v2" in name]
        library = wheel.extract(name, tmp_path)
    told = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    (runpath,) = [line for line in told.splitlines() if "RUNPATH" in line or "RPATH" in line]
    assert "$ORIGIN/../../torch/lib" in runpath
    assert str(built.folder) not in runpath


@pytest.mark.build
def test_another_call_takes_the_wheel(built):
    again = Build(built.folder)
    assert again.document()["cached"] is True
    assert "compiling" not in "".join(again.said)


@pytest.fixture
def copied(built, tmp_path):
    """A copy of the cache, to damage."""
    return shutil.copytree(built.folder / "my cache", tmp_path / "cache")


@pytest.mark.build
def test_a_damaged_wheel_is_built_again_and_said_once(built, copied, tmp_path):
    (wheel,) = copied.glob("horovod/*/horovod-*.whl")
    with wheel.open("r+b") as file:
        file.seek(1000)
        file.write(b"damage")
    build = Build(tmp_path, cache=copied)
    try:
        build.until("compiling:")
    finally:
        build.end(signal.SIGTERM)
    assert sum("is not the file that was built" in line for line in build.said) == 1


@pytest.mark.build
def test_force_builds_and_sigterm_ends_the_compilers_and_keeps_the_old_wheel(built, copied, tmp_path):
    build = Build(tmp_path, "--force", cache=copied)
    try:
        build.until("compiling:")
        while not compilers_in(tmp_path):  # between two files there may be none
            assert build.process.poll() is None
            time.sleep(0.05)
    finally:
        code = build.end(signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    assert compilers_in(tmp_path) == []
    assert list((tmp_path / "tmp").iterdir()) == []
    assert Build(tmp_path, cache=copied).document()["cached"] is True


@pytest.mark.build
def test_a_source_distribution_with_another_hash_is_fetched_again(built, copied, tmp_path):
    (sdist,) = copied.glob("horovod/sdist/*.tar.gz")
    whole = sdist.read_bytes()
    sdist.write_bytes(whole[:-1] + b"x")
    build = Build(tmp_path, "--force", cache=copied)
    try:
        build.until("building Horovod")
        assert sdist.read_bytes() == whole
    finally:
        build.end(signal.SIGTERM)
    assert sum("has another hash" in line for line in build.said) == 1


@pytest.mark.build
def test_a_failure_shows_the_lines_that_matter_the_log_and_what_to_do(built, copied, tmp_path):
    env = {
        **os.environ,
        "HVDTRAIN_CACHE": str(copied),
        "TMPDIR": str(tmp_path),
        "CXXFLAGS": "-include /no-such-header",
    }
    done = subprocess.run([*CLI, "--gpu", "none"], env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("hvdtrain: error: Horovod did not build")
    log = next(word.rstrip(";") for word in last.split() if word.endswith(".log;"))
    assert "/no-such-header" in Path(log).read_text()
    assert "/no-such-header: No such file" in done.stderr
    assert list(tmp_path.glob("hvdtrain-horovod-*")) == []


@pytest.mark.build
@pytest.mark.parametrize("with_cuda", [False, True])
@pytest.mark.parametrize("standard", [17, 20])
def test_every_edit_fits_the_real_sources(built, tmp_path, standard, with_cuda):
    (sdist,) = (built.folder / "my cache").glob("horovod/sdist/*.tar.gz")
    unpack_sdist(sdist, tmp_path)
    (source,) = tmp_path.iterdir()
    edits = edits_for(standard, with_cuda=with_cuda)
    apply_edits(edits, source)
    for edit in edits:
        assert edit.new in (source / edit.path).read_text()
