"""Jobs on two hosts beside DGL and GraphBolt: one script (``job.py``), the same parts, ids and seeds for all systems.

    DGL_PYTHON=... python tests/perf/two_hosts.py DIR train fanouts=15,10,5 steps=12       # as root
    DGL_PYTHON=... python tests/perf/two_hosts.py DIR loader cache=none --graph products
    DGL_PYTHON=... python tests/perf/two_hosts.py DIR hetero --graph mag
    DGL_PYTHON= python tests/perf/two_hosts.py DIR loader 'labor={"batch_dependency": 16}' cache=8160KB steps=96 warm=32

``train`` steps of GraphSAGE; ``loader`` minibatches with their rows and labels, without a model; ``hetero`` minibatches
of papers of ``mag``; ``inference`` a model on all nodes, beside the loop of DGL's example. Words after the options are
options of ``job.py``; ``num_servers=0``: our trainers host.

Two hosts (``namespaces.py``) have one server and one trainer of one thread each, every byte between them goes over TCP,
and whole jobs alternate. A number is the mean over the steps and the trainers of a job: a minibatch that was made ahead
costs nothing when it is asked for. CPU time is that of a trainer (``train``, ``hetero``) or of all processes of a host,
servers among them. "rows" must agree between the systems.
"""

import common
import host_jobs
import prepare

BOTH = ("dgl", "graphbolt")
WORKS = {  # name -> which of DGL's ways it has, and its options by default
    "train": (BOTH, {}),
    "loader": (BOTH, {"warm": 8}),  # an epoch of S
    "hetero": (BOTH, {"fanouts": "25,25", "batch_size": 1024, "steps": 20}),
    "inference": (("dgl",), {"steps": 1, "warm": 0, "limit": 1800}),
}
MEASURES = {  # number of job.py -> (words, unit, factor); those without a unit have no ratio
    "step": ("training step", "ms", 1e3),
    "batch": ("minibatch", "ms", 1e3),
    "seconds": ("all nodes", "s", 1),
    "start": ("start to first minibatch", "s", 1),
    "cpu": ("CPU time", "ms", 1e3),
    "sent": ("sent by a host", "MB", 1e-6),
    "sample": ("of the step: sample", "ms", 1e3),
    "gather": ("of the step: gather", "ms", 1e3),
    "compute": ("of the step: compute", "ms", 1e3),
} | {name: (name, "", 1) for name in ("edges", "inputs", "remote", "fetched", "papers", "accuracy", "rows")}


def main():
    p = common.parser(__doc__, graphs=(*prepare.SIZES, "mag"))
    p.add_argument("work", choices=tuple(WORKS))
    p.add_argument("options", nargs="*", metavar="NAME=VALUE", help="options of job.py")
    args = p.parse_intermixed_args()
    peers, options = WORKS[args.work]
    options = options | dict(word.split("=", 1) for word in args.options)
    systems = (common.OURS, *(peers if common.dgl_python() else ()))
    sides = {system: (system, options) for system in systems}
    found, loads = host_jobs.in_turn(args, args.work, sides, rehearse=args.work != "inference")
    common.report(args, rows_of(found), others=loads, work=args.work, **options)


def rows_of(found):
    """Rows of what all systems have measured."""
    rows = []
    for name, (words, unit, factor) in MEASURES.items():
        if all(name in job for jobs in found.values() for job in jobs):
            rounds = common.pick(found, name, factor)
            rows += common.beside(words, unit, rounds) if unit else [common.alone(words, unit, rounds)]
    return rows


if __name__ == "__main__":
    main()
