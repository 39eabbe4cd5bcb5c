"""Minibatches of a typed graph on two hosts beside DGL: ogbn-mag's shape at one tenth, with reverse relations.

    DGL_PYTHON=... python tests/perf/hetero.py DIR          # as root, after prepare.py DIR --graph mag

Two hosts (``namespaces.py``) with one server and one trainer of one thread each, every byte between them over TCP, the
same parts, seed papers and script for both systems (``job.py``). Each trainer iterates over its loader and does nothing
with the minibatches, so what is timed is what it takes to make one; ``--gather`` also reads the features of their
papers. Whole jobs alternate: this library, DGL's distributed sampling, and the same with GraphBolt
(``initialize(use_graphbolt=True)``).
"""

import statistics

import common
import host_jobs

MUST = 3.0
SIZES = ("edges", "inputs", "papers")
PEERS = ("dgl", "graphbolt")


def main():
    p = common.parser(__doc__, graphs=("mag",))
    p.add_argument("--fanouts", default="25,25", help="of every relation, outermost hop first (%(default)s)")
    p.add_argument("--batch_size", type=int, default=1024, help="seed papers of a minibatch (%(default)s)")
    p.add_argument("--steps", type=int, default=20, help="timed minibatches of a job (%(default)s)")
    p.add_argument("--gather", type=int, choices=(0, 1), default=0, help="1: read the papers' features, too")
    p.add_argument("--num_servers", type=int, choices=(0, 1), default=1, help="ours on each host; 0: trainers host")
    p.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS, help="which of DGL's ways (default: both)")
    args = p.parse_args()
    options = {name: getattr(args, name) for name in ("fanouts", "batch_size", "steps", "gather")}
    ours = {"num_servers": args.num_servers}
    found, loads = host_jobs.alternate(args, "hetero", args.peers, summary, ours, **options)
    common.report(args, rows_of(args, found), others=loads, **options)


def summary(system, trainers, _):
    """One job in numbers: minibatches in a second of both trainers together, and means over minibatches."""
    mean = {name: statistics.mean(statistics.mean(t[name]) for t in trainers) for name in ("batch", "cpu", *SIZES)}
    mean["rate"] = sum(1 / statistics.mean(t["batch"]) for t in trainers)
    common.say(f"{system}: " + ", ".join(f"{name} {value:.4g}" for name, value in mean.items()))
    return mean


def rows_of(args, found):
    """The rate beside each of DGL's, and what a minibatch consists of."""
    what = f"typed minibatches, fanouts {args.fanouts}" + (", gathered" if args.gather else "")
    rates, cpu = common.pick(found, "rate"), common.pick(found, "cpu", 1e3)
    rows = [common.alone(what, "1/s", rates), common.alone("a minibatch", "ms", common.pick(found, "batch", 1e3))]
    for peer in found:
        if peer != common.OURS:
            rows.append(common.compare(f"{what}, beside {peer}", "1/s", rates, peer, must=MUST, more_is_better=True))
            rows.append(common.compare(f"CPU time of a trainer's minibatch, beside {peer}", "ms", cpu, peer))
    return rows + [common.alone(f"{name} of a minibatch", "", common.pick(found, name)) for name in SIZES]


if __name__ == "__main__":
    main()
