"""Links by name: what 25GbE, InfiniBand HDR or NVLink3 usually give an allreduce, and how sure that is.

A name's bandwidth is its line rate times the share that an allreduce usually reaches, both stated here and
printed with every prediction. A measured network (``hvdtrain bench allreduce``) is always better than a name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches

from hvdtrain.errors import InputError
from hvdtrain.scaling.collectives import Wire
from hvdtrain.scaling.custom_links import counts_bytes, read_bytes_per_s, split_delay


@dataclass(frozen=True)
class Link:
    """A kind of link, as an allreduce sees it.

    Attributes:
        name: What it is called in the output.
        alpha_s: Seconds a message.
        line_b_s: Line rate in B/s; of a node's whole connection where it leads out of the node.
        reached: Share of the line rate that an allreduce reaches as bus bandwidth.
        spread: Standard deviation of the logarithm of that share, between sites.
        inside: Whether the link stays inside a node.
        on_gpu: Whether GPUs reduce and send, so that it competes with their arithmetic; CPUs do otherwise.
        delay_s: Part of ``alpha_s`` that was added to what the kind of link usually has.
        is_told: Whether a user named it; else it is the prior of a link that nobody told.
        is_whole: Whether a user told all that a message takes; else hosts and engine may add to it.
    """

    name: str
    alpha_s: float
    line_b_s: float
    reached: float
    spread: float = 0.35
    inside: bool = False
    on_gpu: bool = True
    delay_s: float = 0.0
    is_told: bool = True
    is_whole: bool = False

    @property
    def bandwidth_b_s(self) -> float:
        """Bus bandwidth in B/s."""
        return self.line_b_s * self.reached

    @property
    def wire(self) -> Wire:
        """Its constants for the cost model."""
        return Wire(self.alpha_s, 1 / self.bandwidth_b_s)

    def describe(self) -> str:
        """The assumption in words."""
        speed = f"{self.bandwidth_b_s / 1e9:.3g} GB/s ({100 * self.reached:.0f} % of the line rate)"
        return f"{self.name}: {speed}, {self.alpha_s * 1e6:.3g} us a message"


_GBIT = 1e9 / 8
_TCP_REACHED, _RDMA_REACHED, _CPU_REACHED = 0.55, 0.88, 0.22
_TCP_ALPHA_S, _RDMA_ALPHA_S, _IB_ALPHA_S = 30e-6, 6e-6, 4e-6

_INFINIBAND = {
    "sdr": 8,
    "ddr": 16,
    "qdr": 32,
    "fdr": 56,
    "edr": 100,
    "hdr100": 100,
    "hdr": 200,
    "ndr": 400,
    "xdr": 800,
}

# Bus bandwidth of an allreduce over the GPUs of one box; the line rate is a GPU's, one direction.
_INSIDE = {
    "nvlink": Link("NVLink (generation not told)", 8e-6, 150e9, 0.6, 0.5, inside=True),
    "nvlink1": Link("NVLink1 (P100)", 10e-6, 80e9, 0.6, 0.35, inside=True),
    "nvlink2": Link("NVLink2 (V100)", 8e-6, 150e9, 0.6, 0.35, inside=True),
    "nvlink3": Link("NVLink3 (A100)", 8e-6, 300e9, 0.6, 0.3, inside=True),
    "nvlink4": Link("NVLink4 (H100)", 8e-6, 450e9, 0.65, 0.3, inside=True),
    "nvlink5": Link("NVLink5 (B200)", 8e-6, 900e9, 0.75, 0.3, inside=True),
    "nvswitch": Link("NVSwitch (generation not told)", 8e-6, 150e9, 0.83, 0.5, inside=True),
    "pcie": Link("PCIe (generation not told)", 12e-6, 16e9, 0.5, 0.6, inside=True),
    "pcie3": Link("PCIe3 x16", 12e-6, 16e9, 0.5, 0.5, inside=True),
    "pcie4": Link("PCIe4 x16", 12e-6, 32e9, 0.5, 0.45, inside=True),
    "pcie5": Link("PCIe5 x16", 12e-6, 64e9, 0.5, 0.45, inside=True),
    "xgmi": Link("Infinity Fabric", 12e-6, 200e9, 0.4, 0.5, inside=True),
    "shm": Link("shared memory of a host", 2e-6, 20e9, 0.25, 0.6, inside=True, on_gpu=False),
}
_NAMED = {
    "aries": Link("Aries", 5e-6, 10e9, 0.75, 0.4),
    "slingshot": Link("Slingshot 11", 5e-6, 25e9, 0.75, 0.4),
    "omnipath": Link("Omni-Path 100", 5e-6, 100 * _GBIT, 0.75, 0.4),
    "efa": Link("EFA 100", 25e-6, 100 * _GBIT, 0.6, 0.4),
}
_SAME = {"infinityfabric": "xgmi", "opa": "omnipath", "gigabitethernet": "1gbe", "gigabit": "1gbe"}
_USUAL_GBIT = 25
_UNKNOWN_B_S, _USUAL_GPUS = 5e9, 8
_TOLD_SPREAD = 0.1  # of a bandwidth that a user measured
UNKNOWN_INSIDE = Link("link inside the node not told", 10e-6, 100e9, 0.5, 0.9, inside=True, is_told=False)

_NOISE = re.compile(r"[\s_,;()-]+")
_COUNT = re.compile(r"^(\d{1,2})[x*](.+)$")
_SPEED = re.compile(
    r"(\d+(?:\.\d+)?)\s*"
    r"(gigabitethernet|gigabit|gige|gbe|gbit/?s|gbps|gbits|gb/s|gbit|gb|ge|g|mbit/?s|mbits|mbps|mb/s|mbit)(?![a-z])"
)
_NO_SPEED = re.compile(r"(-\s*\d+(\.\d+)?|0+(\.0*)?)\s*[kmg]?i?(b|g|ge)", re.IGNORECASE)
_WORDS = {
    "tcp": "tcp", "ethernet": "", "eth": "", "socket": "tcp", "sockets": "tcp", "ipoib": "tcp",
    "nccl": "", "mpi": "",
    "rdma": "rdma", "roce": "rdma", "rocev2": "rdma", "gdr": "rdma", "gpudirect": "rdma", "iwarp": "rdma",
    "infiniband": "ib", "ib": "ib", "efa": "efa", "aries": "rdma", "slingshot": "rdma",
    "omnipath": "rdma", "opa": "rdma",
    "cpu": "cpu", "gloo": "cpu", "cpuallreduce": "cpu", "allreduce": "",
    "network": "", "link": "", "v2": "", "over": "", "and": "", "with": "",
}  # fmt: skip
_EXAMPLES = (
    *("1GbE", "10GbE", "25GbE", "40GbE", "50GbE", "100GbE", "200GbE", "400GbE", "25GbE-RDMA", "100GbE-RDMA"),
    *("InfiniBand", "EDR", "HDR", "NDR", "EFA", "Aries", "Slingshot", "Omni-Path"),
    *("NVLink", "NVLink1", "NVLink2", "NVLink3", "NVLink4", "NVLink5", "NVSwitch", "PCIe3", "PCIe4", "PCIe5"),
)
LEGAL = (
    "1GbE to 800GbE (also -TCP, -RDMA, -CPU), InfiniBand FDR, EDR, HDR, NDR, XDR, EFA, Aries, Slingshot, "
    "Omni-Path, NVLink1 to 5, PCIe3 to 5; 4xHDR for four of them a node; NVLink+25GbE for both; "
    "one's own: 200Mbit/s@1ms, 12.5GB/s@20us"
)


def unknown_between(gpus_per_node: int) -> Link:
    """The prior of a network that nobody told: who buys more GPUs a node buys a faster network for them."""
    line = _UNKNOWN_B_S * (gpus_per_node / _USUAL_GPUS) ** 0.5
    return Link("network not told", 20e-6, line, 0.7, 0.8, is_told=False)


def find_link(name: str, where: str = "--network") -> Link:
    """The link of a name, such as ``25GbE-RDMA``, ``8xHDR``, ``InfiniBand EDR``, or one's own.

    ``1GbE@2ms`` and ``200Mbit/s@1ms`` add a latency to what a message on such a link usually takes.
    ``12.5GB/s@20us`` is taken as it stands: what an allreduce reaches, and all that a message takes.

    Raises:
        InputError: No such name; names the nearest.
    """
    text, delay_s = split_delay(name, where)
    if _NO_SPEED.match(text.strip()):
        raise InputError(f"no bandwidth: {name.strip()!r}", where=where, legal="above 0, such as 10Gbit/s")
    speed = read_bytes_per_s(text, where)
    if speed is not None:
        alpha_s = _TCP_ALPHA_S if delay_s is None else delay_s
        is_whole = delay_s is not None
        return Link(f"link of {speed / 1e9:g} GB/s", alpha_s, speed, 1.0, _TOLD_SPREAD, is_whole=is_whole)
    text = text.strip().lower().replace("(4x)", "")
    packed = _NOISE.sub("", text)
    count = _COUNT.match(packed)
    link: Link | None
    if count and int(count[1]):
        link = _several(int(count[1]), find_link(count[2], where))
    else:
        link = None if text.startswith("-") else _find_plain(packed) or _find_words(text)
    if link is None:
        raise InputError(f"unknown network {name!r}; {_nearest(text)}", where=where, legal=LEGAL)
    return link if delay_s is None else delayed(link, delay_s)


def delayed(link: Link, delay_s: float) -> Link:
    """The link with seconds more for each message; the same one for none."""
    if not delay_s:
        return link
    told = f"{1e3 * delay_s:g} ms" if delay_s >= 1e-3 else f"{1e6 * delay_s:g} us"
    return replace(link, name=f"{link.name} + {told}", alpha_s=link.alpha_s + delay_s, delay_s=delay_s)


def _several(count: int, link: Link) -> Link:
    return replace(link, name=f"{count}x {link.name}", line_b_s=count * link.line_b_s)


def find_links(text: str, where: str = "--network") -> tuple[Link | None, Link | None]:
    """Links inside and between nodes of a text such as ``NVLink+25GbE``; one name is one link.

    Of two, the first is inside the node where the name does not say it: ``20GB/s@5us+200Mbit/s@1ms``.

    Raises:
        InputError: A name that is none, more than two, or both of a kind that is inside a node.
    """
    parts = text.split("+")
    if len(parts) > 1 and not counts_bytes(text):
        last, delay_s = split_delay(parts[-1], where)
        words = " ".join([*parts[:-1], last])
        whole = _find_words(words.strip().lower().replace("(4x)", ""))
        if whole is not None:  # such as TCP+NCCL 25GbE
            return None, delayed(whole, delay_s or 0.0)
    links = [find_link(part, where) for part in parts]
    if len(links) == 1:
        return (links[0], None) if links[0].inside else (None, links[0])
    if len(links) == 2 and links[1].inside:
        links.reverse()
    if len(links) > 2 or links[1].inside:
        legal = "one link, or two: inside a node + between nodes, such as NVLink3+25GbE"
        raise InputError(f"links that do not go together: {text!r}", where=where, legal=legal)
    return links[0], links[1]


def _find_plain(text: str) -> Link | None:
    text = re.sub(r"^(pcie|nvlink)(gen|v)?(\d)(\.0)?(x16)?$", r"\1\3", _SAME.get(text, text))
    if text == "1gbe":
        return ethernet(1)
    if text in _INSIDE:
        return _INSIDE[text]
    if text in _NAMED:
        return _NAMED[text]
    word = re.sub(r"^(infiniband|ib|mellanox)|(?<=dr)(56|100|200|400|800)$", "", text)
    word = "hdr100" if text.endswith("hdr100") else word
    if word in _INFINIBAND:
        return _infiniband(_INFINIBAND[word], word.upper())
    return None


def _find_words(text: str) -> Link | None:
    """A speed with words around it that tell how it is used."""
    speed = _SPEED.search(text)
    rest = text[: speed.start()] + " " + text[speed.end() :] if speed else text
    tokens = [token for token in re.split(r"[\s_,;()/-]+", rest) if token]
    kinds = {_WORDS[token] for token in tokens if token in _WORDS}
    grades = [token for token in tokens if token in _INFINIBAND]
    if any(token not in _WORDS and token not in _INFINIBAND for token in tokens):
        return None
    if not (speed or grades or "ib" in kinds):
        return _without_speed(kinds)
    gbit = _gbit(speed) if speed else float(_INFINIBAND[grades[0]] if grades else 100)
    if not 0.001 <= gbit <= 10_000:
        return None
    if "cpu" in kinds:
        return Link(
            f"{gbit:g} Gbit/s, reduced by CPUs", _TCP_ALPHA_S, gbit * _GBIT, _CPU_REACHED, 0.25, on_gpu=False
        )
    if "tcp" in kinds and "rdma" not in kinds:
        return ethernet(gbit)
    if "ib" in kinds or grades:
        return _infiniband(gbit, grades[0].upper() if grades else f"{gbit:g} Gbit/s")
    if "efa" in kinds:
        return Link(f"EFA {gbit:g}", 25e-6, gbit * _GBIT, 0.6, 0.4)
    if "rdma" in kinds:
        return rdma(gbit)
    return ethernet(gbit)


def _without_speed(kinds: set[str]) -> Link | None:
    """Only how the network is used was told: a usual speed, and a wide spread."""
    for kind, suffix in (("cpu", "-cpu"), ("rdma", "-rdma"), ("tcp", "-tcp")):
        if kind in kinds:
            link = find_link(f"{_USUAL_GBIT}gbe{suffix}")
            return replace(link, name=f"{link.name}, the speed not told", spread=0.8)
    return None


def ethernet(gbit: float) -> Link:
    """Ethernet with TCP: a ring's few flows reach less of a faster link, 94 % at 1, 28 % at 400."""
    reached = 0.94 if gbit <= 2 else 0.72 if gbit <= 10 else max(0.2, _TCP_REACHED * (25 / gbit) ** 0.25)
    # What a slow link loses is its packets' headers, which vary little.
    spread = 0.1 if gbit <= 2 else 0.4
    name = f"{gbit:g}GbE" if gbit >= 1 else f"{1000 * gbit:g} Mbit/s"
    return Link(f"{name} (TCP)", _TCP_ALPHA_S, gbit * _GBIT, reached, spread)


def rdma(gbit: float) -> Link:
    """RDMA over Ethernet."""
    return Link(f"{gbit:g} Gbit/s RDMA", _RDMA_ALPHA_S, gbit * _GBIT, _RDMA_REACHED, 0.3)


def _infiniband(gbit: float, grade: str) -> Link:
    return Link(f"InfiniBand {grade}", _IB_ALPHA_S, gbit * _GBIT, 0.65, 0.45)


def _gbit(speed: re.Match[str]) -> float:
    return float(speed[1]) / (1000 if speed[2].startswith("m") else 1)


def _nearest(text: str) -> str:
    lowered = {one.lower(): one for one in _EXAMPLES}
    close = get_close_matches(text, lowered, n=1, cutoff=0.3)
    return f"the nearest name is {lowered[close[0]]}" if close else "no name is near"
