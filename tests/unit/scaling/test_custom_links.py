"""Links of one's own: a bandwidth and a latency, and what is no such."""

import pytest

from hvdtrain.errors import InputError
from hvdtrain.scaling.custom_links import read_bytes_per_s, split_delay
from hvdtrain.scaling.links import find_link, find_links


@pytest.mark.parametrize(
    "text",
    [
        "200Mbit/s@1ms",
        "200 Mbit/s @ 1 ms",
        "200Mbit/s, 1ms",
        "200Mbit/s with 1 ms",
        "200Mbit/s 1ms",
        "200Mb/s 1000us latency",
        "200Mbps, 0.001 s",
    ],
)
def test_a_bandwidth_in_bits_with_a_latency(text):
    link = find_link(text)
    assert link.line_b_s == pytest.approx(25e6)
    assert link.delay_s == pytest.approx(1e-3)
    assert link.alpha_s == pytest.approx(find_link("1GbE").alpha_s + 1e-3)
    assert link.name == "200 Mbit/s (TCP) + 1 ms"


@pytest.mark.parametrize(
    ("text", "speed"),
    [
        ("12.5GB/s", 12.5e9),
        ("12.5 GB/s", 12.5e9),
        ("1.5GiB/s", 1.5 * 2**30),
        ("100MB/s", 1e8),
        ("10GBps", 1e10),
    ],
)
def test_bytes_a_second_are_taken_as_they_stand(text, speed):
    link = find_link(f"{text}@20us")
    assert 1 / link.wire.beta_s == pytest.approx(speed)
    assert link.wire.alpha_s == pytest.approx(20e-6)
    # bits are a line rate, of which an allreduce reaches a share
    assert find_link("100Gbit/s").bandwidth_b_s < find_link("12.5GB/s").bandwidth_b_s


def test_two_links_are_inside_and_between():
    inside, between = find_links("60GB/s@5us+1.2GB/s@40us")
    assert (inside.bandwidth_b_s, between.bandwidth_b_s) == (60e9, 1.2e9)
    inside, between = find_links("1GbE@2ms+NVLink3")
    assert (inside.inside, between.delay_s) == (True, 2e-3)
    assert [link.line_b_s * 8e-9 for link in find_links("25GbE+100GbE")] == pytest.approx([25, 100])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("200Mbit/s@soon", "no delay: 'soon'; legal: such as 100Mbit@1ms"),
        ("200Mbit/s@-1ms", "no delay: '-1ms'"),
        ("200Mbit/s@1", "no delay: '1'"),
        ("200Mbit/s@", "no delay: ''"),
        ("200Mbit/s@20s", "a message takes 20 s: '200Mbit/s@20s'; legal: a latency of at most 10 s"),
        ("0GB/s@1ms", "no bandwidth: '0GB/s@1ms'"),
        ("100 GB/s InfiniBand", "100 GB/s in '100 GB/s InfiniBand' counts bytes"),
        ("-5Gbit/s", "no bandwidth: '-5Gbit/s'"),
        ("0Mbit/s@1ms", "no bandwidth: '0Mbit/s@1ms'"),
        ("200", "unknown network '200'.*one's own: 200Mbit/s@1ms"),
        ("NVLink+PCIe3", "links that do not go together: 'NVLink\\+PCIe3'; legal: one link, or two"),
        ("NVLink3+25GbE+10GbE", "links that do not go together"),
    ],
)
def test_what_is_malformed_is_told(text, told):
    with pytest.raises(InputError, match=f"^--network: {told}"):
        find_links(text)


def test_a_name_without_either_is_left_as_it_is():
    assert split_delay("InfiniBand EDR", "x") == ("InfiniBand EDR", None)
    assert read_bytes_per_s("100Gb/s", "x") is None
