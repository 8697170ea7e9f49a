"""Percentages out of the compiler's output, and the lines that matter out of a failure's."""

import pytest

from hvdtrain.tools.build_horovod.progress import BarReporter, BuildOutput, LineReporter


def read(lines):
    steps = []
    output = BuildOutput(lambda done, what: steps.append((done, what)))
    for line in lines:
        output.line(line)
    return output, steps


def test_percentages_are_the_compilers_own():
    _, steps = read(
        [
            "  Running command python setup.py bdist_wheel",
            "  [  2%] Building CXX object third_party/gloo/gloo/CMakeFiles/gloo.dir/allgather.cc.o",
            "  cd /tmp/x && /usr/bin/c++ -DX=[50%] -o a.o -c a.cc",
            "[100%] Linking CXX shared library mpi_lib_v2.so",
        ]
    )
    assert steps == [(2, "allgather.cc"), (100, "mpi_lib_v2.so")]


def test_the_first_errors_are_the_excerpt_not_the_command_lines():
    output, _ = read(
        [
            "  /usr/bin/c++ -Werror -o a.o -c '/tmp/error: a.cc'",
            "  a.cc:3:10: fatal error: Python.h: No such file or directory",
            "      3 | #include <Python.h>",
            "",
            "        |          ^~~~~~~~~~",
            "  compilation terminated.",
            "  [ 50%] Building CXX object b.cc.o",
            "  make[2]: *** [a.o] Error 1",
            "  error: subprocess-exited-with-error",
        ]
    )
    assert output.excerpt() == [
        "  a.cc:3:10: fatal error: Python.h: No such file or directory",
        "      3 | #include <Python.h>",
        "        |          ^~~~~~~~~~",
        "  compilation terminated.",
        "  make[2]: *** [a.o] Error 1",
        "  error: subprocess-exited-with-error",
    ]


def test_the_first_errors_are_kept_not_the_last():
    output, _ = read([f"a.cc:{number}: error: no" for number in range(100)])
    assert output.excerpt() == [f"a.cc:{number}: error: no" for number in range(16)]


def test_output_without_an_error_gives_its_end():
    output, _ = read([f"line {number}" for number in range(100)])
    assert output.excerpt() == [f"line {number}" for number in range(85, 100)]


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("c++: fatal error: Killed signal terminated program cc1plus", "--jobs 1"),
        ("a.cc: fatal error: error writing to /tmp/a.s: No space left on device", "TMPDIR"),
        ("host_config.h: error: #error -- unsupported GNU version! gcc versions later than 13", "CXX"),
        ("a.cc:1: error: expected ;", "log"),
    ],
)
def test_the_advice_fits_the_failure(line, word):
    assert word in read([line])[0].advice()


def test_lines_come_every_ten_percent_or_ten_seconds(capsys):
    now = [0.0]
    reporter = LineReporter(clock=lambda: now[0])
    for done, at_s in [(1, 0), (2, 1), (9, 2), (10, 3), (11, 4), (12, 13), (13, 14), (30, 15)]:
        now[0] = float(at_s)
        reporter.percent(done, "a.cc")
    shown = [int(line.split()[1]) for line in capsys.readouterr().err.splitlines()]
    assert shown == [1, 10, 12, 30]


def test_a_bar_shows_percentages_and_lets_lines_through(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with BarReporter() as reporter:
        reporter.say("before [bold]")
        reporter.percent(42, "a.cc")
        reporter.say("between [bold]")
        reporter.percent(100, "b.cc")
        reporter.say("after")
    told = capsys.readouterr().err
    for part in ("before [bold]\n", "between [bold]", "42 %", "a.cc", "after\n"):
        assert part in told
