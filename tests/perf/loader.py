"""Minibatches without a model on two hosts beside DGL: rows of features and labels gathered, nothing done with them.

    DGL_PYTHON=... python tests/perf/loader.py DIR --graph S          # as root
    DGL_PYTHON=... python tests/perf/loader.py DIR --graph products --cache none
    DGL_PYTHON=... python tests/perf/loader.py DIR --graph products --labor '{"layer_dependency": true}'

Two hosts (``namespaces.py``) with one server and one trainer of one thread each, every byte between them over TCP, the
same parts, seeds and script for both systems (``job.py``). Whole jobs alternate: this library, DGL, and DGL with
GraphBolt. Beside the time of a minibatch, the CPU seconds of all processes on both hosts are compared, servers among
them, and the bytes between the hosts. ``--cache`` is of this library's loader: what it has by default, none, or a size.
``--labor``: this library draws by ``LaborSampler``, DGL uniformly as before, with the same fanouts.

A minibatch's time is the mean over a job, since one that was made ahead costs nothing when it is asked for; the median
is shown, too. An epoch of S has 8 minibatches on each trainer, so that every eighth is the first of an epoch.
"""

import statistics

import common
import host_jobs

MUST = {"dgl": 3.0, "graphbolt": 2.5}
MUST_WITHOUT_CACHE, MUST_CPU = 2.0, 2.0
STEPS = {"S": 40, "products": 40}
WARM = 8  # an epoch of S
EACH = ("batch", "mean", "edges", "inputs")  # numbers of a trainer's minibatch
HOST = ("cpu", "sent")  # and of all that a host does for one


def main():
    p = common.parser(__doc__)
    p.add_argument("--fanouts", choices=common.FANOUTS, default=common.FANOUTS[0])
    p.add_argument("--batch_size", type=int, default=1000, help="seeds of a minibatch (%(default)s)")
    p.add_argument("--steps", type=int, help="timed minibatches of a job (default: by graph)")
    p.add_argument("--num_servers", type=int, choices=(0, 1), default=1, help="ours on each host; 0: trainers host")
    p.add_argument("--cache", default="default", help="of remote rows, ours: none, default, or a size such as 64MiB")
    p.add_argument("--peers", nargs="*", choices=tuple(MUST), default=tuple(MUST), help="(default: both)")
    common.add_labor(p)
    args = p.parse_args()
    options = {"fanouts": args.fanouts, "batch_size": args.batch_size, "steps": args.steps or STEPS[args.graph]}
    ours = {"num_servers": args.num_servers, "cache": args.cache} | common.labor_of(args)
    found, loads = host_jobs.alternate(args, "loader", args.peers, summary, ours, warm=WARM, **options)
    common.report(args, rows_of(args, found), others=loads, cache=args.cache, labor=args.labor, **options)


def summary(system, trainers, _):
    """One job in numbers, of a minibatch: means over the trainers; seconds and bytes."""
    numbers = {name: statistics.mean(statistics.mean(t[name]) for t in trainers) for name in (*EACH[1:], *HOST)}
    numbers["batch"] = statistics.mean(statistics.median(t["batch"]) for t in trainers)
    common.say(f"{system}: " + ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()))
    return numbers


def rows_of(args, found):
    """Time and CPU time beside each of DGL's; then what a minibatch consists of."""
    what = f"minibatch, fanouts {args.fanouts}, cache {args.cache}{', ours by LABOR' if args.labor else ''}"
    means, cpu = common.pick(found, "mean", 1e3), common.pick(found, "cpu", 1e3)
    medians = common.pick(found, "batch", 1e3)
    rows = []
    for peer in found:
        if peer != common.OURS:
            must = MUST_WITHOUT_CACHE if args.cache == "none" else MUST[peer]
            rows.append(common.compare(f"{what}, beside {peer}", "ms", means, peer, must=must))
            rows.append(common.compare(f"median {what}, beside {peer}", "ms", medians, peer))
            rows.append(common.compare(f"CPU time of all processes, beside {peer}", "ms", cpu, peer, must=MUST_CPU))
    rows += [common.alone(what, "ms", means), common.alone(f"median {what}", "ms", medians)]
    rows += [common.alone("CPU time of all processes", "ms", cpu)]
    rows += [common.alone("sent by a host", "MB", common.pick(found, "sent", 1e-6))]
    return rows + [common.alone(f"{name} of a minibatch", "", common.pick(found, name)) for name in EACH[2:]]


if __name__ == "__main__":
    main()
