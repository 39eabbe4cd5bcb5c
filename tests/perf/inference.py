"""All nodes by a trained model on two hosts: layer by layer beside the loop that DGL's example writes by hand.

    DGL_PYTHON=... python tests/perf/inference.py DIR --graph S          # as root
    DGL_PYTHON=... python tests/perf/inference.py DIR --graph products

Two hosts (``namespaces.py``) with one server and one trainer of one thread each, every byte between them over TCP, the
same parts, parameters and batch size for both systems (``job.py``). Whole jobs alternate. Beside the time, the CPU
seconds of all processes on a host are compared, and the bytes that a host sends; and the mean of what comes out, which
must agree, since the parts of the graph have the same nodes.
"""

import statistics

import common
import host_jobs

MUST = 3.0
EACH = ("seconds", "cpu", "sent")


def main():
    p = common.parser(__doc__)
    p.add_argument("--batch_size", type=int, default=1000, help="nodes of a minibatch (%(default)s)")
    p.add_argument("--layers", type=int, default=3)
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--steps", type=int, default=1, help="timed evaluations of a job (%(default)s)")
    p.add_argument("--limit", type=float, default=1800.0, help="seconds after which a job is ended (%(default)s)")
    args = p.parse_args()
    options = {name: getattr(args, name) for name in ("batch_size", "layers", "hidden", "steps")}
    found, loads = host_jobs.alternate(
        args, "inference", ["dgl"], summary, rehearse=False, limit=args.limit, warm=0, **options
    )
    common.report(args, rows_of(args, found), others=loads, **options)


def summary(system, trainers, _):
    """One job in numbers: means over evaluations and trainers, and the mean of the results."""
    numbers = {name: statistics.mean(statistics.mean(t[name]) for t in trainers) for name in EACH}
    numbers["rows"] = trainers[0]["rows"][0]
    common.say(f"{system}: " + ", ".join(f"{name} {value:.4g}" for name, value in numbers.items()))
    return numbers


def rows_of(args, found):
    """Time, CPU time and bytes beside DGL's loop."""
    what = f"{args.layers} layers of width {args.hidden} on all nodes"
    seconds, cpu = common.pick(found, "seconds"), common.pick(found, "cpu")
    rows = []
    for peer in found:
        if peer != common.OURS:
            rows.append(common.compare(f"{what}, beside {peer}'s loop", "s", seconds, peer, must=MUST))
            rows.append(common.compare(f"CPU time of a host, beside {peer}'s loop", "s", cpu, peer))
    rows += [common.alone(what, "s", seconds), common.alone("CPU time of a host", "s", cpu)]
    rows.append(common.alone("sent by a host", "MB", common.pick(found, "sent", 1e-6)))
    return [*rows, common.alone("mean of the results", "", common.pick(found, "rows"))]


if __name__ == "__main__":
    main()
