"""A step of SparseAdagrad on two hosts beside DGL: each trainer has gradients for 100,000 rows of 128 float32.

    DGL_PYTHON=... python tests/perf/sparse_step.py DIR --graph S       # as root: gradients cross two hosts

Two hosts (``namespaces.py``) with one server (``--num_servers 0``: ours with none) and one trainer of one thread each,
every byte between them over TCP. Half of a trainer's rows are on the other host; trainers meet before each step, and
only the step is timed. Whole jobs alternate; values are means over the steps of a job and its trainers. Both systems
get the same gradients, and rows after the first step are compared. (Not later ones: on CPUs DGL 2.1 takes the square
root of its state in place, ``grad_state.sqrt_()``, before it is stored.)
"""

import statistics

import common
import host_jobs

MUST = 3.0
STEPS = 12


def main():
    p = common.parser(__doc__)
    p.add_argument("--steps", type=int, default=STEPS, help="timed steps of a job (%(default)s)")
    p.add_argument("--num_servers", type=int, choices=(0, 1), default=1, help="ours on each host; 0: trainers host")
    args = p.parse_args()
    ours = {"num_servers": args.num_servers}
    found, loads = host_jobs.alternate(args, "sparse", ["dgl"], summary, ours, rehearse=False, steps=args.steps)
    check(found)
    rows = []
    for what, name in (("step of SparseAdagrad", "step"), ("CPU time of a trainer's step", "cpu")):
        times = common.pick(found, name, 1e3)
        must = MUST if name == "step" else None
        rows.append(
            common.compare(what, "ms", times, "dgl", must=must) if "dgl" in times else common.alone(what, "ms", times)
        )
    common.report(args, rows, steps=args.steps, others=loads)


def summary(_, trainers, __):
    """One job in numbers: seconds, means over steps and trainers; and rows after the first step."""
    mean = {name: statistics.mean(statistics.mean(t[name]) for t in trainers) for name in ("step", "cpu")}
    common.say(", ".join(f"{name} {1e3 * value:.4g} ms" for name, value in mean.items()))
    return mean | {"rows": trainers[0]["rows"]}


def check(found):
    """Both systems must have made the same first update."""
    jobs = [job["rows"] for jobs in found.values() for job in jobs]
    worst = max(abs(a - b) for rows in jobs for a, b in zip(jobs[0], rows, strict=True))
    if worst > 1e-3:
        raise ValueError(f"the rows differ by up to {worst}")


if __name__ == "__main__":
    main()
