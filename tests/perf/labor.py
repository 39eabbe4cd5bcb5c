"""LABOR beside uniform sampling on two hosts: rows of a minibatch, rows fetched by size of the cache, bytes, times.

    python tests/perf/labor.py DIR --graph products --fanouts 10,10,10          # as root
    python tests/perf/labor.py DIR --graph S --trainers 2 --samplers NS LABOR
    python tests/perf/labor.py DIR --graph S --work train --caches 0.2

Two hosts (``namespaces.py``) with one server and ``--trainers`` trainers of one thread each, every byte between them
over TCP. ``--work loader`` makes minibatches without a model (``job.py``), ``--work train`` trains GraphSAGE. The
samplers' jobs alternate. A cache is given as a share of the rows that the other host has, with its tables.

Rows are those of a trainer's minibatch: means over the steps and the trainers. The bytes that a host sends and the CPU
time of its processes, servers among them, are those of a step of all its trainers. Counts need one round, and no quiet
machine.
"""

import argparse
import json
import math
from itertools import pairwise

import common
import host_jobs
import numpy as np

from mpigraph.rows.row_cache import cache_memory
from mpigraph.storage.part_config import PartConfig

SAMPLERS = {  # name -> options of LaborSampler; None: NeighborSampler
    "NS": None,
    "LABOR": {},
    "layers": {"layer_dependency": True},
    "kappa 4": {"batch_dependency": 4},
    "kappa 16": {"batch_dependency": 16},
    "kappa 64": {"batch_dependency": 64},
}
ROWS = {"inputs": "input rows", "remote": "remote rows", "fetched": "fetched rows"}
MEASURES = {  # by work: number of job.py -> (words, unit, factor)
    "loader": {
        "sent": ("sent by a host", "MB", 1e-6),
        "batch": ("time", "ms", 1e3),
        "cpu": ("CPU of a host", "ms", 1e3),
    },
    "train": {
        "step": ("step", "ms", 1e3),
        "sample": ("waiting", "ms", 1e3),
        "cpu": ("CPU of a trainer", "ms", 1e3),
    },
}


def main():
    p = common.parser(__doc__)
    p.add_argument("--work", choices=tuple(MEASURES), default="loader", help="(%(default)s)")
    p.add_argument("--fanouts", default=common.FANOUTS[0], help="outermost hop first (%(default)s)")
    p.add_argument("--samplers", nargs="+", choices=tuple(SAMPLERS), default=list(SAMPLERS), help="(default: all)")
    p.add_argument("--caches", nargs="+", type=share, default=[0.0, 0.1, 0.2, 0.5], help="shares of the remote rows")
    p.add_argument("--trainers", type=int, default=1, help="on each host (%(default)s)")
    p.add_argument("--batch_size", type=int, default=1000, help="seeds of a trainer's minibatch (%(default)s)")
    p.add_argument("--steps", type=int, default=40, help="timed steps of a job (%(default)s)")
    p.add_argument("--warm", type=int, default=16, help="steps before these, which fill the cache (%(default)s)")
    args = p.parse_args()
    options = {name: getattr(args, name) for name in ("fanouts", "trainers", "batch_size", "steps", "warm")}
    rows, loads = [], []
    for number, cache in enumerate(args.caches):
        shared = options | {"cache": cache_size(args, cache)}
        sides = {name: (common.OURS, shared | labor_flag(name)) for name in args.samplers}
        found, others = host_jobs.in_turn(args, args.work, sides, rehearse=number == 0)
        rows += rows_of(args.work, cache, found)
        loads += others
    common.report(args, rows, others=loads, work=args.work, **options)


def share(text):
    """A part of a whole."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1 (got {text})")
    return value


def cache_size(args, part):
    """The size of a cache that holds this part of the rows of the other host, or "none"."""
    config = PartConfig.read(args.dir / args.graph / "parts-2" / f"{args.graph}.json")
    nodes = config.book.node_offsets[0].tolist()
    feat = config.node_features["_N"]["feat"]
    row_bytes = np.dtype(feat.dtype).itemsize * math.prod(feat.shape)
    slots = round(part * max(end - begin for begin, end in pairwise(nodes)))
    return cache_memory(nodes[-1], slots, row_bytes) if slots else "none"


def labor_flag(sampler):
    """The option of ``job.py`` that selects a sampler."""
    options = SAMPLERS[sampler]
    return {} if options is None else {"labor": json.dumps(options)}


def rows_of(work, cache, found):
    """A row for each measure, with the values of all samplers."""
    measures = {name: (words, "", 1.0) for name, words in ROWS.items()} | MEASURES[work]
    return [
        common.alone(f"{words}, cache {cache:.0%}", unit, common.pick(found, name, factor))
        for name, (words, unit, factor) in measures.items()
    ]


if __name__ == "__main__":
    main()
