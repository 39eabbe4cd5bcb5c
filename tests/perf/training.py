"""Train GraphSAGE on two hosts beside DGL: time of a step, start to first minibatch, memory, accuracy.

    DGL_PYTHON=... python tests/perf/training.py DIR --graph S --fanouts 10,25          # as root
    DGL_PYTHON=... python tests/perf/training.py DIR --graph products --memory
    DGL_PYTHON=... python tests/perf/training.py DIR --graph products --labor

Two hosts (``namespaces.py``) with one server (``--num_servers 0``: ours with none) and one trainer of one thread each,
every byte between them over TCP, the same parts and the same script for both systems (``job.py``). Whole jobs
alternate: ours, DGL, DGL with GraphBolt. With ``--memory`` the memory of all processes on the hosts, launchers
included, is polled (``host_jobs.Usage``), and times are not reported because polling costs time. ``--labor``: this
library draws by ``LaborSampler``, DGL uniformly as before, with the same fanouts.
"""

import statistics

import common
import host_jobs

MUST = {("S", 2): 2.0, ("products", 2): 2.5, ("S", 3): 1.5, ("products", 3): 1.5}
MUST_LABOR, MUST_START, MUST_MEMORY = 2.2, 2.0, 1 / 0.6
STEPS = {("S", 2): 40, ("products", 2): 30, ("S", 3): 12, ("products", 3): 8}
PARTS = ("sample", "gather", "compute", "cpu")
MEMORY = ("memory", "mapped memory")  # with all of /dev/shm, and only what processes have mapped


def main():
    p = common.parser(__doc__)
    p.add_argument("--fanouts", choices=common.FANOUTS, default=common.FANOUTS[0])
    p.add_argument("--steps", type=int, help="timed steps of a job (default: by graph and fanouts)")
    p.add_argument("--num_servers", type=int, choices=(0, 1), default=1, help="ours on each host; 0: trainers host")
    p.add_argument("--memory", action="store_true", help="measure memory in place of time")
    common.add_labor(p)
    args = p.parse_args()
    layers = len(args.fanouts.split(","))
    steps = args.steps or STEPS[args.graph, layers]
    options = {"fanouts": args.fanouts, "steps": steps, "memory": args.memory}
    ours = {"num_servers": args.num_servers} | common.labor_of(args)
    peers = ["dgl", "graphbolt"]
    found, loads = host_jobs.alternate(args, "train", peers, summary, ours, rehearse=not args.memory, **options)
    make = memory_rows if args.memory else time_rows
    more = {"fanouts": args.fanouts, "steps": steps, "labor": args.labor, "others": loads}
    common.report(args, make(args, layers, found), **more)


def summary(_, trainers, memory):
    """One job in numbers: means over steps, the first of an epoch among them, and over trainers; seconds and bytes."""
    mean = {name: statistics.mean(statistics.mean(t[name]) for t in trainers) for name in ("step", *PARTS)}
    mean["median step"] = statistics.mean(statistics.median(t["step"]) for t in trainers)
    for name in ("edges", "inputs"):
        mean[name] = statistics.mean(statistics.mean(t[name]) for t in trainers)
    mean["accuracy"] = statistics.mean(statistics.mean(t["accuracy"][-5:]) for t in trainers)
    mean["start"] = max(t["start"] for t in trainers)
    if memory:
        first = max(t["first_minibatch_at"] for t in trainers)
        later = [sample for sample in memory if sample[0] > first] or memory[-1:]
        for i, name in enumerate(MEMORY, 1):
            mean[f"peak {name}"] = max(sample[i] for sample in memory)
            mean[f"steady {name}"] = statistics.median(sample[i] for sample in later)
    common.say(", ".join(f"{name} {value:.4g}" for name, value in mean.items()))
    return mean


def time_rows(args, layers, found):
    """Step against each peer and the faster one, start against each; then what the step consists of."""
    steps, starts = common.pick(found, "step", 1e3), common.pick(found, "start")
    peers = [name for name in found if name != common.OURS]
    rows = []
    if peers:
        best = min(peers, key=lambda name: statistics.median(steps[name]))
        must = MUST_LABOR if args.labor else MUST[args.graph, layers]
        what = f"training step, fanouts {args.fanouts}{', ours by LABOR' if args.labor else ''}"
        rows.append(common.compare(what, "ms", steps, best, must=must))
        rows += [common.compare(f"training step beside {name}", "ms", steps, name) for name in peers if name != best]
        cpu = common.pick(found, "cpu", 1e3)
        rows += [common.compare(f"CPU time of a trainer's step beside {name}", "ms", cpu, name) for name in peers]
        rows += [
            common.compare(f"start to first minibatch beside {name}", "s", starts, name, must=MUST_START)
            for name in peers
        ]
    medians = common.pick(found, "median step", 1e3)
    rows += [common.compare(f"median step beside {name}", "ms", medians, name) for name in peers]
    rows += [common.alone("training step", "ms", steps), common.alone("start to first minibatch", "s", starts)]
    rows += [common.alone(f"of the step: {name}", "ms", common.pick(found, name, 1e3)) for name in PARTS]
    rows += [common.alone(f"{name} of a minibatch", "", common.pick(found, name)) for name in ("edges", "inputs")]
    return [*rows, common.alone("accuracy, last 5 minibatches", "", common.pick(found, "accuracy"))]


def memory_rows(args, layers, found):
    """Peak and steady memory against each peer."""
    rows = []
    peers = [name for name in found if name != common.OURS]
    for what in (f"{when} {name}" for name in MEMORY for when in ("peak", "steady")):
        sizes = common.pick(found, what, 2**-30)
        must = MUST_MEMORY if what == "peak memory" else None
        rows += [common.compare(f"{what} beside {peer}", "GiB", sizes, peer, must=must) for peer in peers]
        rows += [] if peers else [common.alone(what, "GiB", sizes)]
    return rows


if __name__ == "__main__":
    main()
