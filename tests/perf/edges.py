"""Minibatches of edges on two hosts beside DGL: uniform negatives, reverse edges excluded.

    DGL_PYTHON=... python tests/perf/edges.py DIR --graph S          # as root

Two hosts (``namespaces.py``) with one server and one trainer of one thread each, every byte between them over TCP, the
same parts, seed edges and script for both systems (``job.py``). Each trainer iterates over its loader and does nothing
with the minibatches, so what is timed is what it takes to make one. Whole jobs alternate.

"leaked" counts the excluded edges in the blocks of the last minibatch: DGL 2.1 ignores ``exclude`` with a DistGraph
(its issue 7225), and has that much less to do.
"""

import statistics

import common
import host_jobs
import numpy as np
import prepare

MUST = 2.0
STEPS = {"S": 20, "products": 10}
SIZES = ("nodes", "edges", "inputs", "leaked")


def main():
    p = common.parser(__doc__)
    p.add_argument("--fanouts", choices=common.FANOUTS, default=common.FANOUTS[0])
    p.add_argument("--negatives", type=int, default=10, help="of each edge (%(default)s)")
    p.add_argument("--batch_size", type=int, default=1000, help="seed edges of a minibatch (%(default)s)")
    p.add_argument("--steps", type=int, help="timed minibatches of a job (default: by graph)")
    p.add_argument("--num_servers", type=int, choices=(0, 1), default=1, help="ours on each host; 0: trainers host")
    args = p.parse_args()
    base = args.dir / args.graph
    prepare.once(base / "reverse-2.npy", lambda out: write_reverse(base / "flat-2", out))
    options = {name: getattr(args, name) for name in ("fanouts", "negatives", "batch_size")}
    options |= {"steps": args.steps or STEPS[args.graph], "reverse": base / "reverse-2.npy"}
    ours = {"num_servers": args.num_servers}
    found, loads = host_jobs.alternate(args, "edges", ["dgl"], summary, ours, **options)
    shown = {name: value for name, value in options.items() if name != "reverse"}
    common.report(args, rows_of(args, found), others=loads, **shown)


def write_reverse(flat, out):
    """The id of the reverse of each edge: int64[num_edges]."""
    indptr, src = np.load(flat / "indptr.npy"), np.load(flat / "indices.npy")
    num = len(indptr) - 1
    dst = np.repeat(np.arange(num), np.diff(indptr))
    forward, backward = dst * num + src, src * num + dst
    order = np.argsort(forward)
    place = np.searchsorted(forward, backward, sorter=order)
    reverse = order[np.minimum(place, len(order) - 1)]
    if not np.array_equal(forward[reverse], backward):
        raise ValueError("some edge has no reverse")
    with open(out, "wb") as file:
        np.save(file, reverse)


def summary(system, trainers, _):
    """One job in numbers: minibatches in a second of both trainers together, and means over minibatches."""
    mean = {name: statistics.mean(statistics.mean(t[name]) for t in trainers) for name in ("batch", "cpu", *SIZES)}
    if system == common.OURS and mean["leaked"]:
        raise ValueError(f"{mean['leaked']} excluded edges were sampled")
    mean["rate"] = sum(1 / statistics.mean(t["batch"]) for t in trainers)
    common.say(", ".join(f"{name} {value:.4g}" for name, value in mean.items()))
    return mean


def rows_of(args, found):
    """The rate beside DGL's, and what a minibatch consists of."""
    what = f"edge minibatches, fanouts {args.fanouts}, {args.negatives} negatives"
    rates, cpu = common.pick(found, "rate"), common.pick(found, "cpu", 1e3)
    rows = [common.alone(what, "1/s", rates), common.alone("a minibatch", "ms", common.pick(found, "batch", 1e3))]
    if "dgl" in found:
        rows[0] = common.compare(what, "1/s", rates, "dgl", must=MUST, more_is_better=True)
        rows.append(common.compare("CPU time of a trainer's minibatch", "ms", cpu, "dgl"))
    return rows + [common.alone(f"{name} of a minibatch", "", common.pick(found, name)) for name in SIZES]


if __name__ == "__main__":
    main()
