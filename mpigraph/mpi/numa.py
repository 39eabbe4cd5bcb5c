"""Which ranks of a node serve, by where they run.

The rows of a server lie in the memory of the processor that it runs on (NUMA), and what loads them from another
processor waits longer. So servers are taken from all processors in turn, where ranks are bound to processors.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

__all__ = ["choose_servers", "memory_domain"]

_DOMAINS = Path("/sys/devices/system/node")


def memory_domain(domains: Path = _DOMAINS) -> int:
    """Return the number of the processor (NUMA node) that this process is bound to, -1 if it is to none."""
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        return -1
    mine = os.sched_getaffinity(0)
    for path in domains.glob("node[0-9]*"):
        try:
            text = (path / "cpulist").read_text(encoding="ascii")
        except OSError:
            continue
        ranges = [(int(first), int(last or first)) for first, last in re.findall(r"(\d+)(?:-(\d+))?", text)]
        if all(any(first <= core <= last for first, last in ranges) for core in mine):
            return int(path.name.removeprefix("node"))
    return -1


def choose_servers(domains: Sequence[int], num_servers: int) -> list[int]:
    """Return which ranks of a node serve: the last of every processor, then the last but one, ...

    Args:
        domains: the processor of each rank, as :func:`memory_domain` says.
        num_servers: how many serve.

    Returns:
        Positions in ``domains``, ascending; where ranks are not bound to processors, or all to one, the last ones.
    """
    turns = [0] * len(domains)
    of_domain: Counter[int] = Counter()
    for place in reversed(range(len(domains))):
        turns[place] = of_domain[domains[place]]
        of_domain[domains[place]] += 1
    return sorted(sorted(range(len(domains)), key=lambda place: (turns[place], -place))[:num_servers])
