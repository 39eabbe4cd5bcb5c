"""What prefetching hides of a slow network: training on two hosts, ``num_prefetch`` 2 against 0.

    python tests/perf/slow_network.py DIR --delay 0.002 --rate 1e9           # as root

Jobs as in ``training.py``, ours alone, on hosts between which everything arrives DELAY seconds late, in each direction,
and at RATE bits per second; and on the same hosts without delay. Waiting is the part of a step in which the model waits
for its minibatch; its gradients cross the network, too, and count as computing. Hidden is the share of the waiting
without prefetching that is gone with it.
"""

import statistics
import sys

import common
import host_jobs
import namespaces

DEPTHS = (0, 2)


def main():
    p = common.parser(__doc__)
    p.add_argument("--fanouts", choices=common.FANOUTS, default=common.FANOUTS[0])
    p.add_argument("--steps", type=int, default=20, help="timed steps of a job (%(default)s)")
    p.add_argument("--batch_size", type=int, default=1000)
    p.add_argument("--delay", type=float, default=2e-3, help="seconds (%(default)s)")
    p.add_argument("--rate", type=float, default=1e9, help="bits per second (%(default)s)")
    args = p.parse_args()
    why = namespaces.missing() or namespaces.missing_delay()
    if why:
        sys.exit(f"two hosts and a slow network are needed: {why}")
    networks = {"fast": {}, "slow": {"delay": args.delay, "rate": args.rate}}
    sides = {
        f"{network}, {depth} ahead": side(args, networks[network], depth) for network in networks for depth in DEPTHS
    }
    sides["fast, 0 ahead"]()  # compile the kernels, warm the page cache
    found, loads = common.alternate(sides, args.rounds, args.quiet)
    what = {"step": "step", "wait": "of a step: waiting", "compute": "of a step: computing"}
    rows = [common.alone(words, "ms", common.pick(found, part, 1e3)) for part, words in what.items()]
    rows += [hidden(found, network) for network in networks]
    common.report(args, rows, others=loads, fanouts=args.fanouts, delay=args.delay, rate=args.rate)


def side(args, network, depth):
    """A function that runs one job and returns the means over its steps and trainers."""

    def run():
        options = {"fanouts": args.fanouts, "steps": args.steps, "batch_size": args.batch_size, "num_prefetch": depth}
        with namespaces.Hosts(2, **network) as hosts:
            trainers, _ = host_jobs.run(hosts, common.OURS, "train", args.dir / args.graph, args.graph, **options)
        return {
            "step": mean_of(trainer["step"] for trainer in trainers),
            "wait": mean_of(map(sum, zip(t["sample"], t["gather"], strict=True)) for t in trainers),
            "compute": mean_of(trainer["compute"] for trainer in trainers),
        }

    return run


def mean_of(lists):
    return statistics.mean(statistics.mean(values) for values in lists)


def hidden(found, network):
    """The share of the waiting that prefetching takes away."""
    waits = common.pick(found, "wait")
    pairs = zip(*(waits[f"{network}, {depth} ahead"] for depth in DEPTHS), strict=True)
    shares = [1 - ahead / inline for inline, ahead in pairs]
    what = f"share of the waiting that prefetching hides, {network} network"
    return common.alone(what, "", {common.OURS: shares})


if __name__ == "__main__":
    main()
