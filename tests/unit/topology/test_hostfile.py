"""Hostfile dialects and -H lists: what is read, and that everything else is refused with its line."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdtrain.errors import InputError
from hvdtrain.topology.hostfile import (
    parse_host_list,
    parse_hostfile,
    read_hostfile,
    render_host_list,
    render_hostfile,
)
from hvdtrain.topology.hosts import Cluster, Host, place

SAMPLES = Path(__file__).parents[3] / "hostfiles"


def read(text: str) -> list[tuple[str, int]]:
    return [(host.name, host.slots) for host in parse_hostfile(text, "hosts").hosts]


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_hostfile(text, "hosts")
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "slots"),
    [
        ("single-node", [("localhost", 8)]),
        ("two-nodes", [("node-1", 4), ("node-2", 4)]),
        ("horovod", [("node-1", 4), ("node-2", 4)]),
        ("unequal-slots", [("big-1", 8), ("mid-1", 4), ("small-1", 1)]),
        ("ipv6", [("2001:db8::11", 4), ("2001:db8::12", 4), ("fe80::1%eth0", 2)]),
        ("pbs-nodefile", [("r1n01", 2), ("r1n02", 2), ("r2n07", 1)]),
        ("openmpi-max-slots", [("aa", 4), ("bb", 4), ("cc", 2)]),
        ("commented", [("gpu-1", 4), ("gpu-2", 4), ("gpu-5", 2)]),
    ],
)
def test_samples(name, slots):
    cluster = read_hostfile(SAMPLES / name)
    assert [(host.name, host.slots) for host in cluster.hosts] == slots
    assert cluster.source == str(SAMPLES / name)


def test_every_sample_has_a_test_and_a_header():
    parametrized = next(mark for mark in test_samples.pytestmark if mark.name == "parametrize")
    assert {path.name for path in SAMPLES.iterdir()} == {name for name, _ in parametrized.args[1]}
    assert all(path.read_text().startswith("# ") for path in SAMPLES.iterdir())


def test_max_slots_in_both_spellings():
    cluster = parse_hostfile("aa slots=4 max_slots=4\nbb         max-slots=4\ncc slots=4\n", "hosts")
    assert cluster.hosts == (Host("aa", 4, 4), Host("bb", 4, 4), Host("cc", 4))
    with pytest.raises(InputError, match=r"14 ranks.*12 slots"):
        place(cluster, num_ranks=14)


@pytest.mark.parametrize(
    "key",
    ["slots-max", "slots_max", "max-slots", "max_slots", "cpu-max", "max_cpu", "count_max", "max-count"],
)
def test_every_spelling_of_the_limit(key):
    assert parse_hostfile(f"h slots=2 {key}=3", "hosts").hosts == (Host("h", 2, 3),)
    assert parse_hostfile(f"h {key} = 3 slots = 2", "hosts").hosts == (Host("h", 2, 3),)


def test_indentation_tabs_comments_and_no_final_newline():
    text = (
        "\n    node-1 slots=2\n\tnode-2\tslots=2   # rear rack\n\nlocalhost slots=1\n"
        "10.0.0.12 slots=2\n\n    #node-1 slots=3\n# end"
    )
    expected = [("node-1", 2), ("node-2", 2), ("localhost", 1), ("10.0.0.12", 2)]
    assert read(text) == expected
    assert read("\ufeff" + text.replace("\n", "\r\n")) == expected
    assert read(text.replace("\n", "\r")) == expected


def test_block_comments_keep_the_line_numbers():
    assert read("/* a slots=1\n b */ c slots=2 // d\n# see /etc/*\ne") == [("c", 2), ("e", 1)]
    assert refusal("/* one\ntwo */\nh slots=x").startswith("hosts:3: ")
    assert refusal("a\n/* no end\nb").startswith("hosts:2: ")


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("h slots = 4", ("h", 4)),
        ("h slots= 4", ("h", 4)),
        ("h count=4", ("h", 4)),
        ("h cpu=4", ("h", 4)),
        ("h:4", ("h", 4)),
        ("h:4 max_slots=8", ("h", 4)),
        ("h", ("h", 1)),
        ("n_1.site.example:2", ("n_1.site.example", 2)),
        ("[fe80::1]:2", ("fe80::1", 2)),
        ("[fe80::1]", ("fe80::1", 1)),
        ("fe80::1 slots=2", ("fe80::1", 2)),
        ("fe80::1", ("fe80::1", 1)),
        ("2001:db8::1:4 slots=2", ("2001:db8::1:4", 2)),
        ("::1 slots=2", ("::1", 2)),
        ("fe80::1%eth0 slots=2", ("fe80::1%eth0", 2)),
    ],
)
def test_forms_of_a_line(line, host):
    assert read(line) == [host]


@pytest.mark.parametrize(
    ("line", "offending"),
    [
        ("h slots=0", "'0'"),
        ("h slots=-1", "'-1'"),
        ("h slots=four", "'four'"),
        ("h slots=", "''"),
        ("h slots=4 4", "'4'"),
        ("h slots=4=4", "'=4'"),
        ("h slots=\u0664", "no number of slots"),
        ("h slots=99999999999999999999", "'99999999999999999999'"),
        ("h lots=8", "'lots' in 'h lots=8' is no setting"),
        ("h slots=4 slots=4", "gives slots twice"),
        ("h:4 slots=4", "gives the slots twice"),
        ("h slots=8 max-slots=4", "max_slots 4 is below slots 8"),
        ("h:0", "'0'"),
        ("h:", "''"),
        ("h:x", "'x'"),
        ("this is bad slots=1", "'is bad slots=1'"),
        ("slots=4", "'slots=4'"),
        ("-n slots=4", "'-n'"),
        ("$(id) slots=4", "'$(id)'"),
        ("h\u00e9 slots=4", "'h\u00e9'"),
        ("+n0 slots=2", "'+n0'"),
        ("ann@h slots=2", "User ann"),
        ("h username=ann", "~/.ssh/config"),
        ("n[1-3] slots=2", "--nodelist"),
        ("[h]:2", "'[h]:2'"),
        ("2001:db8::1:4", "[2001:db8::1]:4 or [2001:db8::1:4]"),
        ("a:b:c", "'a:b:c'"),
    ],
)
def test_refused_lines(line, offending):
    message = refusal(f"ok slots=1\n{line}\n")
    assert message.startswith("hosts:2: ")
    assert offending in message
    assert refusal(line).startswith("hosts:1: ")
    assert "{" not in message


def test_misspelled_key_has_a_hint():
    message = refusal("10.0.0.1 slots=8\n10.0.0.2 lots=8")
    assert "hosts:2" in message
    assert "10.0.0.2 lots=8" in message
    assert "did you mean slots?" in message


@pytest.mark.parametrize("text", ["", "\n\n", "# all gone\n", "\ufeff", "/* a\n*/"])
def test_no_host(text):
    assert refusal(text).startswith("hosts: no host")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("node-1 slots=2\nnode-2 slots=1\nnode-1 slots=1\n", ("1", "3")),
        ("node-1\n\nnode-1:2\n", ("1", "3")),
        ("node-1:1\nnode-1:1\n", ("1", "2")),
        ("node-1 slots=1\nNODE-1. slots=1\n", ("1", "2")),
    ],
)
def test_a_host_twice_is_refused_with_both_lines(text, lines):
    message = refusal(text)
    assert message.startswith(f"hosts:{lines[1]}: ")
    assert f"lines {lines[0]} and {lines[1]}" in message
    assert "node-1" in message.lower()


def test_one_address_in_two_notations():
    assert "lines 1 and 2" in refusal("fe80::1 slots=1\nfe80:0::1 slots=2")


def test_bare_names_count_slots():
    cluster = parse_hostfile("n1\nn1\nn2\nn2\n", "hosts")
    assert cluster.hosts == (Host("n1", 2), Host("n2", 2))
    assert cluster.notices == ()


def test_alternating_bare_names_are_told():
    cluster = parse_hostfile("n1\nn2\nn1\nn2\n", "hosts")
    assert cluster.hosts == (Host("n1", 2), Host("n2", 2))
    assert "n1 comes back" in cluster.notices[0]


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_hostfile(tmp_path / "none")
    with pytest.raises(InputError, match="directory"):
        read_hostfile(tmp_path)
    (tmp_path / "utf16").write_text("h slots=4", encoding="utf-16")
    with pytest.raises(InputError, match="not UTF-8"):
        read_hostfile(tmp_path / "utf16")


@settings(max_examples=300, deadline=None)
@given(st.text() | st.text(alphabet="ab1:=[] \n\t#/*,-@.slot"))
def test_any_text_is_read_or_refused(text):
    for parse in (lambda: parse_hostfile(text, "hosts"), lambda: parse_host_list(text)):
        with suppress(InputError):
            assert parse().slots >= 1


def test_host_list():
    assert parse_host_list("a:2,b,[fe80::1]:3").hosts == (Host("a", 2), Host("b", 1), Host("fe80::1", 3))
    assert parse_host_list("a,a,b").hosts == (Host("a", 2), Host("b", 1))
    ranks = place(parse_host_list("10.0.0.11:2,10.0.0.12:2"), num_ranks=4).ranks
    assert [rank.host[-1] for rank in ranks] == ["1", "1", "2", "2"]


@pytest.mark.parametrize(
    ("text", "offending"),
    [
        ("", "empty entry"),
        ("a:2,", "empty entry"),
        (",a:2", "empty entry"),
        ("a:2,,b:2", "empty entry"),
        ("a:2 b:2", "a blank in 'a:2 b:2'"),
        ("a:2, b:2", "a blank in ' b:2'"),
        ("localhost:0", "slots of localhost"),
        ("a:-1", "'-1'"),
        ("a:", "''"),
        ("a:2,b:1,a:1", "entries 1 and 3"),
        ("a slots=2", "blank"),
        ("ann@a:2", "User ann"),
    ],
)
def test_refused_host_lists(text, offending):
    with pytest.raises(InputError) as caught:
        parse_host_list(text)
    assert str(caught.value).startswith("-H")
    assert offending in str(caught.value)


def test_list_with_blanks_is_not_run_as_a_program():
    with pytest.raises(InputError) as caught:
        parse_host_list("localhost:0", ["10.0.0.11:2", "10.0.0.12:2", "train.py"])
    message = str(caught.value)
    assert "'10.0.0.11:2'" in message
    assert "commas" in message
    assert "localhost has no slots (localhost:0)" in message
    assert message.endswith("write -H 10.0.0.11:2,10.0.0.12:2")
    with pytest.raises(InputError, match=r"write -H a:2,b:2$"):
        parse_host_list("a:2", ["b:2", "python", "c:2"])


@pytest.mark.parametrize(
    "following", [(), ("train.py",), ("python", "b:2"), ("pkg.module:main",), ("./a:2",)]
)
def test_programs_after_the_list(following):
    assert parse_host_list("a:2", following).hosts == (Host("a", 2),)


def test_rendering():
    cluster = Cluster((Host("a", 2), Host("fe80::1", 3, 4)), "x")
    assert render_host_list(cluster) == "a:2,[fe80::1]:3"
    assert render_hostfile(cluster) == "a slots=2\nfe80::1 slots=3 max_slots=4\n"
    assert parse_host_list(render_host_list(cluster)).hosts == (Host("a", 2), Host("fe80::1", 3))
    assert parse_hostfile(render_hostfile(cluster), "x") == cluster
