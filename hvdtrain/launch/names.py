"""Whether a host's name means this machine."""

from __future__ import annotations

import os

from hvdtrain.topology.names import is_loopback, machine_key


def is_this_machine(host: str) -> bool:
    """Whether a name is this machine's own, without asking a name server."""
    own = os.uname().nodename
    return is_loopback(host) or machine_key(host) in (machine_key(own), machine_key(own.partition(".")[0]))
