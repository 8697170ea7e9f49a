"""Slurm's node lists and counts: the grammar, its refusals, its inverse, and scontrol's own answers."""

from __future__ import annotations

import shutil
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdtrain.errors import InputError
from hvdtrain.process import command, run
from hvdtrain.topology.nodelist import expand_counts, expand_nodelist, fold_counts, fold_nodelist

NODELISTS = {
    "comp-b24": "comp-b24",
    "comp-b2[1,2]": "comp-b21 comp-b22",
    "comp-b2[011,022]": "comp-b2011 comp-b2022",
    "comp[042-043,045,048-049]": "comp042 comp043 comp045 comp048 comp049",
    "comp-b24-[1-3,5-6],comp-b25-[1,4]": (
        "comp-b24-1 comp-b24-2 comp-b24-3 comp-b24-5 comp-b24-6 comp-b25-1 comp-b25-4"
    ),
    "comp-b2[1-3,8],comp-a1": "comp-b21 comp-b22 comp-b23 comp-b28 comp-a1",
    "nA,nB[001,003],nC": "nA nB001 nB003 nC",
    "r1g[0010,0011],r2g0005,r3g0007": "r1g0010 r1g0011 r2g0005 r3g0007",
    "alpha,beta,gamma": "alpha beta gamma",
    "alpha beta gamma": "alpha beta gamma",
    "alpha\tbeta": "alpha beta",
    "host[5-9,1]": "host5 host6 host7 host8 host9 host1",
    "alpha[3,1], beta": "alpha3 alpha1 beta",
    "1.1.1.1, 1.1.1.2": "1.1.1.1 1.1.1.2",
    "rack[1-2]n[1-3]": "rack1n1 rack1n2 rack1n3 rack2n1 rack2n2 rack2n3",
    "r[1-2][3-4]": "r13 r14 r23 r24",
    "n[08-12]": "n08 n09 n10 n11 n12",
    "n[9-11]": "n9 n10 n11",
    "n[098-101]": "n098 n099 n100 n101",
    "n[1-010]": "n1 n2 n3 n4 n5 n6 n7 n8 n9 n10",
    "[1-3]": "1 2 3",
    "n[1,1],a,a": "n1 n1 a a",
}
# Legal here, and different or refused in scontrol 22.05.
OURS = {
    "1.2.3.[089, 100-110]": "1.2.3.089 " + " ".join(f"1.2.3.{i}" for i in range(100, 111)),
    "n[1-2].rack1": "n1.rack1 n2.rack1",
    " a,b\n": "a b",
}
REFUSED = {
    "b2[1-,4]": 4,
    "b2[1,2,b3]": 8,
    "b2[1-3": 3,
    "b2]1": 3,
    "b2[5-3]": 4,
    "b2[]": 4,
    ",b2": 1,
    "b2[a-c]": 4,
    "a,,b": 3,
    "a,": 3,
    "a, ,b": 4,
    "n[1-3,]": 7,
    "n[1 3]": 3,
    "n[1 - 3]": 3,
    "n[-3]": 3,
    "n[1-2-3]": 3,
    "n[1[2]]": 3,
    "n[\u0661-\u0663]": 3,
    "n[1234567890123456789]": 3,
    "(null)": 1,
    "a:4": 2,
    "ann@a": 4,
    "a\u00a0b": 2,
    "a\x00b": 2,
    "a;b": 2,
}


@pytest.mark.parametrize(("text", "names"), [*NODELISTS.items(), *OURS.items()])
def test_expansion(text, names):
    assert expand_nodelist(text) == names.split()


@pytest.mark.parametrize(("text", "column"), REFUSED.items())
def test_refusal_quotes_the_string_and_the_column(text, column):
    with pytest.raises(InputError) as caught:
        expand_nodelist(text, "SLURM_JOB_NODELIST")
    assert str(caught.value).startswith("SLURM_JOB_NODELIST: ")
    assert repr(text) in str(caught.value)
    assert f"column {column}:" in str(caught.value)


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_empty_list(text):
    with pytest.raises(InputError, match="empty"):
        expand_nodelist(text)


@pytest.mark.parametrize("text", ["-n1", "-oProxyCommand[1-2]", ".a", "n" * 254, "n" * 250 + "[1-1000]"])
def test_names_that_no_host_has(text):
    with pytest.raises(InputError, match="is no host"):
        expand_nodelist(text)


@pytest.mark.parametrize(
    "text",
    ["n[1-1000001]", "n[0-999999999999999999]", "a[1-2000]b[1-2000]", "n" + "[0-999999999999999999]" * 300],
)
def test_too_many_hosts_are_refused_before_they_are_made(text):
    with pytest.raises(InputError, match="more than 1000000 hosts"):
        expand_nodelist(text)


def test_a_million_hosts_may_be():
    assert len(expand_nodelist("n[0-999999]")) == 1_000_000


def test_a_long_list_is_quoted_around_the_fault():
    with pytest.raises(InputError) as caught:
        expand_nodelist(",".join(f"node{i}" for i in range(1000)) + ",x[3-1],y")
    assert "x[3-1]" in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ("n1", "n1"),
        ("n1 n2 n3", "n[1-3]"),
        ("n08 n09 n10 n11", "n[08-11]"),
        ("n2 n1 n1", "n[2,1,1]"),
        ("n1 a n2", "n1,a,n2"),
        ("n n1 n2 n n", "n,n[1-2],n,n"),
        ("n9 n10 n011", "n[9-10,011]"),
        ("n99 n100 n0101", "n[99-100,0101]"),
        ("1 2 4", "[1-2,4]"),
        ("r1n1-ib r1n2-ib", "r1n1-ib,r1n2-ib"),
    ],
)
def test_folding(names, folded):
    assert fold_nodelist(names.split()) == folded
    assert expand_nodelist(folded) == names.split()


@pytest.mark.parametrize("names", [[], [""], ["a,b"], ["n[1-2]"], ["a b"], ["-a"]])
def test_names_that_cannot_be_folded(names):
    with pytest.raises(InputError):
        fold_nodelist(names)


numbered = st.builds(
    lambda text, number, width: f"{text}{number:0{width}}",
    st.sampled_from(["n", "r1g", "a-", "b.", "0", ""]),
    st.integers(0, 120) | st.integers(0, 10**12),
    st.integers(1, 5),
)
host_names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,12}", fullmatch=True) | numbered


@settings(max_examples=400, deadline=None)
@given(st.lists(host_names, min_size=1, max_size=30))
def test_expanding_undoes_folding(names):
    assert expand_nodelist(fold_nodelist(names)) == names


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=20))
def test_expanding_undoes_folding_of_counts(counts):
    assert expand_counts(fold_counts(counts)) == counts


@settings(max_examples=600, deadline=None)
@given(st.text() | st.text(alphabet="ab019[]-, .(x)\t"))
def test_any_text_is_expanded_or_refused(text):
    for expand in (expand_nodelist, expand_counts):
        with suppress(InputError):
            assert expand(text)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("2(x3),1", [2, 2, 2, 1]),
        ("1(x2)", [1, 1]),
        ("3(x2)", [3, 3]),
        ("4", [4]),
        ("1(x4)", [1, 1, 1, 1]),
        ("4(x4)", [4, 4, 4, 4]),
        ("8,4(x2),8", [8, 4, 4, 8]),
        (" 2, 1 ", [2, 1]),
    ],
)
def test_counts(text, counts):
    assert expand_counts(text) == counts


def test_folding_counts():
    assert fold_counts([2, 2, 2, 1]) == "2(x3),1"
    assert fold_counts([4]) == "4"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "2(x0)",
        "0",
        "-1",
        "2(3)",
        "2(x3",
        "2x3",
        "2(x3)1",
        "1,,2",
        "1,",
        "2(x-1)",
        "\u0664",
        "1.5",
        "9" * 5000,
    ],
)
def test_refused_counts(text):
    with pytest.raises(InputError, match=r"SLURM_TASKS_PER_NODE: .*is no count"):
        expand_counts(text, "SLURM_TASKS_PER_NODE")


@pytest.mark.parametrize("text", ["1(x999999999)", ",".join(["1(x1000000)"] * 2)])
def test_too_many_counts(text):
    with pytest.raises(InputError):
        expand_counts(text)


@pytest.fixture(scope="module")
def scontrol(tmp_path_factory):
    """Slurm's own reading of a node list; it needs a configuration, but no running Slurm."""
    program = shutil.which("scontrol")
    if program is None:
        pytest.skip("scontrol is not installed")
    conf = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    conf.write_text("ClusterName=test\nSlurmctldHost=localhost\nNodeName=localhost CPUs=1\n")

    def hostnames(text: str) -> list[str]:
        show = command(program, "show", "hostnames", text)
        done = run(show, timeout_s=30, base_env={"SLURM_CONF": str(conf)})
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return hostnames


@pytest.mark.parametrize("text", NODELISTS)
def test_scontrol_reads_it_the_same_way(scontrol, text):
    assert scontrol(text) == expand_nodelist(text)


@settings(max_examples=100, deadline=None)
@given(names=st.lists(host_names, min_size=1, max_size=20))
def test_scontrol_reads_what_is_folded(scontrol, names):
    assert scontrol(fold_nodelist(names)) == names
