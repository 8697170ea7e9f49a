"""Ranks that report for work, held against the plan."""

import pytest

from hvdtrain.errors import InputError
from hvdtrain.launch.roster import Roster, planned_layout


def report(roster, hosts):
    """Rank after rank reports from its host."""
    for rank, host in hosts.items():
        roster.start(rank, {"host": host, "size": roster.size, "device": ""})


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_ranks_where_they_belong(order):
    hosts = {0: "a", 1: "b", 2: "b"}
    roster = Roster(3, layout=planned_layout({"HVDTRAIN_RANKS_PER_HOST": "1,2"}))
    report(roster, {rank: hosts[rank] for rank in order})
    assert roster.hosts == hosts


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        (
            {0: "a", 2: "a", 1: "b", 3: "b"},
            "ranks 0 and 2 belong on two hosts, but both run on a;",
        ),
        (
            {0: "a", 1: "b"},
            "ranks 0 and 1 belong on one host, but the launcher started them on a and b;",
        ),
        ({3: "a", 2: "a", 1: "a"}, "ranks 3 and 1 belong on two hosts, but both run on a;"),
    ],
)
def test_ranks_where_they_do_not_belong(hosts, text):
    with pytest.raises(InputError) as caught:
        report(Roster(4, layout=(2, 2)), hosts)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("env", [{}, {"HVDTRAIN_RANKS_PER_HOST": "8(x2)"}])
def test_without_a_plan_of_this_job_any_host_will_do(env):
    report(Roster(3, layout=planned_layout(env)), {0: "a", 1: "b", 2: "a"})
