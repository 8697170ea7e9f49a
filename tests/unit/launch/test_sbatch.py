"""Batch scripts, and that nothing in them runs but what was meant to."""

import shlex
import subprocess
from pathlib import Path

import pytest

from hvdtrain.errors import InputError
from hvdtrain.launch.sbatch import (
    BatchJob,
    parse_job_id,
    parse_sbatch_options,
    render,
    sbatch_command,
    setup_names,
)

ROOT = Path(__file__).parents[3]
PYTHON = "/my venv/bin/python"


def script_of(job):
    return render(job, PYTHON).splitlines()


def test_whole_script():
    job = BatchJob(
        name="digits",
        launch=("--launcher=mpirun", "--prefix=apptainer exec x.sif"),
        program=("python", "my train.py"),
        options={"nodes": "2", "gpus-per-node": "a100:4", "time": "1-00:00:00", "exclusive": ""},
        signal="USR1@120",
        modules=("cuda/12.4", "a b"),
        setup=('source "$HOME/env.sh"',),
        exported=("HOME", "PATH"),
    )
    assert (
        render(job, PYTHON)
        == """\
#!/bin/bash -l
#SBATCH --job-name=digits
#SBATCH --nodes=2
#SBATCH --gpus-per-node=a100:4
#SBATCH --time=1-00:00:00
#SBATCH --exclusive
#SBATCH --signal=B:USR1@120
#SBATCH --export=HOME,PATH

module load cuda/12.4 || exit 2
module load 'a b' || exit 2

source "$HOME/env.sh"
# for those lines only: below, commands may fail
set +e +u

# of an array the element: the array's id may be that of an element too
job=$SLURM_JOB_ID
if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then
  job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
fi

# When the job's time is over, for a training to save before: Slurm tells it itself since 23.02.
if [[ -z ${SLURM_JOB_END_TIME:-} ]]; then
  end=$(SLURM_TIME_FORMAT=standard squeue --noheader --jobs="$job" --format=%e 2> /dev/null)
  if [[ $end == [0-9]* ]]; then
    HVDTRAIN_END_TIME=$(date --date="$end" +%s)
    export HVDTRAIN_END_TIME
  fi
fi

# in place of this shell, so that Slurm's signals reach the launcher
exec '/my venv/bin/python' -P -m hvdtrain.cli.main run --launcher=mpirun '--prefix=apptainer exec x.sif' \\
  -- python 'my train.py'
"""
    )
    assert sbatch_command(job, Path("/tmp/x.sh"), {}).argv == ("sbatch", "--parsable", "/tmp/x.sh")


@pytest.mark.parametrize(
    ("value", "directive"),
    [
        ("plain-1.2:a/b", "--job-name=plain-1.2:a/b"),
        ("a b", '--job-name="a b"'),
        ("$HOME;`id`", '--job-name="$HOME;`id`"'),
        ('q"u\\o', '--job-name="q\\"u\\\\o"'),
        ("#x", '--job-name="#x"'),
        ("中", '--job-name="中"'),
    ],
)
def test_directives(value, directive):
    assert f"#SBATCH {directive}" in script_of(BatchJob(value, (), ("true",)))


@pytest.mark.parametrize("value", ["a\ntouch pwned", "a\rb", "\x1b[0m"])
def test_what_a_line_cannot_hold_goes_to_sbatch_itself(value):
    job = BatchJob(value, (), ("true",))
    assert not [line for line in script_of(job) if line.startswith(("#SBATCH", "touch"))]
    assert sbatch_command(job, Path("x"), {}).argv == ("sbatch", "--parsable", f"--job-name={value}", "x")


def test_the_shell_takes_the_command_apart_as_it_was(tmp_path):
    words = ("prog", "a b", "$HOME", "new\nline", "it's", '"', "", "\\", "; touch pwned", "*", "中")
    text = render(BatchJob("x", (), words), "/bin/python")
    program = text[text.index("exec ") :].replace("exec ", "printf '%s\\0' ", 1)
    out = subprocess.run(["bash", "-c", program], capture_output=True, cwd=tmp_path, check=True).stdout
    assert tuple(out.decode().split("\0")[6:-1]) == words
    assert not list(tmp_path.iterdir())
    assert shlex.split(text[text.index("exec ") :])[-len(words) :] == list(words)


@pytest.mark.parametrize(
    ("asked", "is_step", "told"),
    [
        ("USR1@120", False, "B:USR1@120"),
        ("USR1@120", True, "USR1@120"),
        ("B:TERM@60", True, "B:TERM@60"),
        ("SIGUSR2", False, "B:SIGUSR2"),
        ("10@5", False, "B:10@5"),
    ],
)
def test_signal_before_the_end(asked, is_step, told):
    job = BatchJob("x", (), ("true",), signal=asked, is_step_signalled=is_step)
    assert f"#SBATCH --signal={told}" in script_of(job)


@pytest.mark.parametrize("asked", ["USR1@", "@60", "usr1@60", "USR1@60\n", "USR1 @60"])
def test_signal_that_is_none(asked):
    with pytest.raises(InputError, match="--signal"):
        render(BatchJob("x", (), ("true",), signal=asked), PYTHON)


TIMED = """\
#SBATCH --requeue
#SBATCH --open-mode=append

# of an array the element: the array's id may be that of an element too
job=$SLURM_JOB_ID
if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then
  job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
fi

# When the job's time is over, for a training to save before: Slurm tells it itself since 23.02.
if [[ -z ${SLURM_JOB_END_TIME:-} ]]; then
  end=$(SLURM_TIME_FORMAT=standard squeue --noheader --jobs="$job" --format=%e 2> /dev/null)
  if [[ $end == [0-9]* ]]; then
    HVDTRAIN_END_TIME=$(date --date="$end" +%s)
    export HVDTRAIN_END_TIME
  fi
fi

# the same each time that this job runs
export HVDTRAIN_RUN_DIR='my runs/digits'-$job

# Slurm signals this shell, which hands the signal on; the ranks then write a checkpoint.
asked=
for name in TERM USR1 USR2; do
  trap "asked=$((128 + $(kill -l "$name"))); kill -$name \\$! 2> /dev/null" "$name"
done
/bin/python -P -m hvdtrain.cli.main run \\
  -- train &
launcher=$!
while kill -0 "$launcher" 2> /dev/null; do
  wait "$launcher"
done
wait "$launcher"
code=$?
# 75: preempted after a checkpoint, run again to go on. A signal may also come before the ranks can hear it.
if ((code == 75)) || [[ $code == "$asked" ]]; then
  # A job that Slurm itself ends is not running any more: it was cancelled, or Slurm will run it again.
  if [[ $(squeue --noheader --jobs="$job" --format=%T) == RUNNING ]]; then
    if ((${SLURM_RESTART_COUNT:-0} < 7)); then
      scontrol requeue "$job"
    else
      echo "hvdtrain: preempted again; --max-requeues 7 allows no further requeue" >&2
    fi
  fi
fi
exit "$code"
"""


def test_whole_script_that_requeues():
    job = BatchJob("digits", (), ("train",), max_requeues=7, run_dir="my runs/digits")
    assert render(job, "/bin/python") == "#!/bin/bash\n#SBATCH --job-name=digits\n" + TIMED


def run_script(job, tmp_path, python, **slurm):
    """Runs a script as Slurm does, with a scontrol that only tells what it was asked, and such a squeue."""
    state = slurm.pop("state", "RUNNING")
    end = "echo $* >> asked_of_squeue; echo 2026-11-30T12:00:00"
    for name, text in (
        ("scontrol", 'echo "$@" >> asked'),
        ("squeue", f"case $* in *%e) {end};; *%T) echo {state};; esac"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    path = tmp_path / "job.sh"
    path.write_text(render(job, python))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "12", "TZ": "UTC", **slurm}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(["bash", str(path)], cwd=tmp_path, env=env, text=True, **pipes)


def stand_in(tmp_path, text):
    """A program in the place of Python."""
    (tmp_path / "python").write_text(f"#!/bin/bash\n{text}\n")
    (tmp_path / "python").chmod(0o755)
    return str(tmp_path / "python")


def asked_of_scontrol(tmp_path):
    return (tmp_path / "asked").read_text() if (tmp_path / "asked").exists() else ""


ARRAY = {"SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "3"}


@pytest.mark.parametrize(
    ("code", "slurm", "asked"),
    [
        (0, {}, ""),
        (7, {}, ""),
        (138, {}, ""),  # a signal that did not come from Slurm
        (75, {}, "requeue 12\n"),
        (75, ARRAY, "requeue 10_3\n"),
        (75, {"SLURM_RESTART_COUNT": "1"}, "requeue 12\n"),
        (75, {"SLURM_RESTART_COUNT": "2"}, ""),
        (75, {"state": "COMPLETING"}, ""),  # cancelled, or requeued from outside
    ],
)
def test_requeue_after_a_checkpoint_only(tmp_path, code, slurm, asked):
    python = stand_in(tmp_path, f"exit {code}")
    process = run_script(BatchJob("x", (), ("true",), max_requeues=2), tmp_path, python, **slurm)
    _, said = process.communicate(timeout=30)
    assert process.returncode == code
    assert asked_of_scontrol(tmp_path) == asked
    is_over = slurm.get("SLURM_RESTART_COUNT") == "2"
    assert ("preempted again; --max-requeues 2 allows no further requeue" in said) == is_over


@pytest.mark.parametrize(
    ("answer", "code"), [("trap 'echo got; exit 75' USR1", 75), ("", 138)], ids=["saves", "does not hear it"]
)
@pytest.mark.parametrize("setup", [(), ("set -euo pipefail",)], ids=["plain", "strict setup"])
def test_script_that_requeues_hands_signals_on(tmp_path, answer, code, setup):
    python = stand_in(tmp_path, f"{answer}\necho ready\nwhile true; do sleep 0.1; done")
    process = run_script(BatchJob("x", (), ("true",), max_requeues=2, setup=setup), tmp_path, python)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(10)
    out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == ("got\n" if answer else "", code)
    assert asked_of_scontrol(tmp_path) == "requeue 12\n"


@pytest.mark.parametrize("max_requeues", [0, 2])
@pytest.mark.parametrize(("told", "end"), [({}, "1796040000 "), ({"SLURM_JOB_END_TIME": "7"}, " 7")])
def test_script_tells_the_end_and_the_directory(tmp_path, max_requeues, told, end):
    """2026-11-30 12:00 UTC is 1,796,040,000 s after 1970."""
    python = stand_in(tmp_path, 'echo "$HVDTRAIN_END_TIME $SLURM_JOB_END_TIME|$HVDTRAIN_RUN_DIR"')
    job = BatchJob("x", (), ("true",), max_requeues=max_requeues, run_dir="a b" if max_requeues else "")
    out, _ = run_script(job, tmp_path, python, **told, **ARRAY).communicate(timeout=30)
    assert out == f"{end}|{'a b-10_3' if max_requeues else ''}\n"
    if not told:
        assert "--jobs=10_3" in (tmp_path / "asked_of_squeue").read_text()


def test_job_id():
    assert parse_job_id("12\n") == "12"
    assert parse_job_id("a warning\n12;cluster\n") == "12"
    with pytest.raises(InputError, match="no job id"):
        parse_job_id("")


def test_other_options_of_sbatch():
    assert parse_sbatch_options(("mail-type=END", "--hold", "comment=a=b")) == {
        "mail-type": "END",
        "hold": "",
        "comment": "a=b",
    }
    with pytest.raises(InputError, match="--sbatch: 'a b=c'"):
        parse_sbatch_options(("a b=c",))


@pytest.mark.parametrize("name", ["gpu-training", "array-sweep", "train-then-evaluate", "preemptible"])
def test_samples_are_shell(name):
    path = ROOT / "slurm" / f"{name}.sh"
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert path.read_text().startswith("#!/bin/bash\n# ")


def test_the_job_around_is_not_told_to_the_new_one():
    environ = dict.fromkeys(
        ("SLURM_CONF", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_MINE", "SLURMD_X", "PATH"), "1"
    )
    job = BatchJob("x", (), ("true",), exported=("SLURM_CONF", "SLURM_MINE"))
    assert sbatch_command(job, Path("x"), environ).unset == ("SLURM_JOB_ID", "SLURM_NTASKS")


def test_variables_of_sbatch_do_not_override_the_script():
    """sbatch(1) puts them above the script's own lines; those of others are still the user's to set."""
    options = {"time": "1:00", "mem": "1G", "array": "0-3", "gpus-per-node": "2"}
    job = BatchJob("x", (), ("true",), options=options, max_requeues=1)
    theirs = {
        *("SBATCH_TIMELIMIT", "SBATCH_MEM_PER_NODE", "SBATCH_MEM_PER_CPU", "SBATCH_ARRAY_INX"),
        *(
            "SBATCH_GPUS_PER_NODE",
            "SBATCH_NO_REQUEUE",
            "SBATCH_JOB_NAME",
            "SBATCH_OPEN_MODE",
            "SBATCH_EXPORT",
        ),
    }
    environ = dict.fromkeys((*theirs, "SBATCH_PARTITION", "SBATCH_QOS"), "1")
    assert set(sbatch_command(job, Path("x"), environ).unset) == theirs


def test_export_is_not_silently_replaced():
    job = BatchJob("x", (), ("true",), options={"export": "ALL"}, exported=("PATH",))
    with pytest.raises(InputError, match="--sbatch: export=ALL; name variables with --env"):
        render(job, PYTHON)


def test_variables_that_setup_lines_export():
    lines = [
        "export A=1; export B='x y' # c",
        "  export A=2\nexport C_1=$(date)",
        "[ -d /x ] && export D=1",
        "E=1",
    ]
    assert setup_names(lines) == ("A", "B", "C_1")
