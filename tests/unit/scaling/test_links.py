"""Names of links: what is read from them, and what is said of names that nobody knows."""

import pytest

from hvdtrain.errors import InputError
from hvdtrain.scaling.links import Link, find_link, find_links


@pytest.mark.parametrize(
    ("name", "gbit", "kind"),
    [
        ("25GbE", 25, "(TCP)"),
        ("25 GbE", 25, "(TCP)"),
        ("25gbit/s ethernet tcp", 25, "(TCP)"),
        ("10GigE", 10, "(TCP)"),
        ("Gigabit Ethernet", 1, "(TCP)"),
        ("100Mbit", 0.1, "(TCP)"),
        ("20 Mbit/s", 0.02, "(TCP)"),
        ("25GbE-RDMA", 25, "RDMA"),
        ("25 Gbit/s RoCE", 25, "RDMA"),
        ("100gbe roce v2", 100, "RDMA"),
        ("25GbE-CPU", 25, "CPUs"),
        ("InfiniBand", 100, "InfiniBand"),
        ("InfiniBand EDR", 100, "InfiniBand EDR"),
        ("100 Gbps InfiniBand", 100, "InfiniBand"),
        ("hdr", 200, "HDR"),
        ("ib-hdr100", 100, "HDR100"),
        ("NDR400", 400, "NDR"),
        ("EDR 100Gb/s (4X)", 100, "EDR"),
        ("8xHDR", 1600, "8x InfiniBand HDR"),
        ("4x100GbE", 400, "4x 100GbE"),
        ("400G EFA", 400, "EFA"),
        ("IPoIB 100Gb", 100, "(TCP)"),
        ("Omni-Path", 100, "Omni-Path"),
    ],
)
def test_links_between_nodes(name, gbit, kind):
    link = find_link(name)
    assert link.line_b_s * 8 / 1e9 == pytest.approx(gbit)
    assert kind in link.name
    assert not link.inside
    assert link.wire.beta_s == pytest.approx(1 / (link.line_b_s * link.reached))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("NVLink", "NVLink (generation"),
        ("NVLink 3", "NVLink3"),
        ("nvlink4", "NVLink4"),
        ("PCIe Gen4", "PCIe4"),
        ("PCIe3 x16", "PCIe3"),
        ("NVSwitch", "NVSwitch"),
        ("Infinity Fabric", "Infinity Fabric"),
    ],
)
def test_links_inside_a_node(name, told):
    link = find_link(name)
    assert link.inside
    assert link.name.startswith(told)


def test_a_text_may_name_both_levels():
    inside, between = find_links("NVLink2 + InfiniBand EDR")
    assert (inside.name, between.name) == ("NVLink2 (V100)", "InfiniBand EDR")
    assert find_links("PCIe3")[1] is None
    # a plus between words of one link
    assert find_links("TCP+NCCL 25GbE") == (None, find_link("25GbE"))


def test_a_delay_is_added_to_each_message():
    plain, far = find_link("1GbE"), find_link("1GbE@2ms")
    assert far.alpha_s == pytest.approx(plain.alpha_s + 2e-3)
    assert far.delay_s == 2e-3
    with pytest.raises(InputError, match="no delay: 'soon'"):
        find_link("1GbE@soon")


def test_a_transport_without_a_speed_is_a_wide_guess():
    assert find_link("RoCE").spread > find_link("25GbE-RDMA").spread


def test_usual_orders_hold():
    def speed(name):
        return find_link(name).bandwidth_b_s

    assert speed("25GbE-CPU") < speed("25GbE") < speed("25GbE-RDMA") < speed("100GbE-RDMA")
    rising = [speed(f"{gbit}GbE") for gbit in (1, 10, 25, 40, 50, 100, 200, 400)]
    assert rising == sorted(rising)
    assert speed("PCIe3") < speed("PCIe4") < speed("NVLink1") < speed("NVLink2") < speed("NVLink3")
    assert all(0 < find_link(name).reached <= 1 for name in ("1GbE", "HDR", "NVLink5"))


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("25GBX", "25GbE"),
        ("NVlinkk", "NVLink"),
        ("infinyband", "InfiniBand"),
        ("0xHDR", "HDR"),
        ("PCIe9", "PCIe"),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest(name, nearest):
    with pytest.raises(
        InputError, match=f"^--network: unknown network '{name}'; the nearest name is {nearest}"
    ):
        find_link(name)


@pytest.mark.parametrize("name", ["", "   ", "@1ms", "%%", "99999999GbE"])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(InputError, match="unknown network"):
        find_link(name)


def test_an_assumption_is_told_in_words():
    told = Link("25GbE (TCP)", 30e-6, 25e9 / 8, 0.55).describe()
    assert told == "25GbE (TCP): 1.72 GB/s (55 % of the line rate), 30 us a message"


def test_words_around_a_speed_may_have_a_delay_after_them():
    inside, between = find_links("TCP+NCCL 25GbE@1ms")
    assert inside is None
    assert between.name == "25GbE (TCP) + 1 ms"
    assert between.delay_s == pytest.approx(1e-3)


def test_an_amount_is_no_speed():
    with pytest.raises(InputError, match="'25GB' is an amount, not a speed; legal: 25GB/s for bytes"):
        find_link("25GB")


@pytest.mark.parametrize("name", ["0Gbit/s", "0.0GB/s", "-5GB/s", "0GbE", "-1Gbit/s@1ms"])
def test_a_bandwidth_is_above_0(name):
    with pytest.raises(InputError, match=r"--network: no bandwidth: .*; legal: above 0"):
        find_link(name)
