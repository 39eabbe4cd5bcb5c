"""How much of sampling and gathering hides behind compute: one trainer on two cores, ``num_prefetch`` 2 against 0.

    python tests/perf/prefetch.py DIR --graph S

Two loaders of one process take turns. Hidden is 1 - (step with - compute) / (step without - compute), where compute is
the rest of a step without prefetching; means over the steps of a turn.
"""

import inspect
import itertools
import statistics

import common
import job
import torch
import torch.nn.functional as F

import mpigraph as mg

MUST = 0.7
WITH, WITHOUT = "num_prefetch=2", "num_prefetch=0"
WARM = 3


def main():
    p = common.parser(__doc__)
    p.add_argument("--fanouts", choices=common.FANOUTS, default=common.FANOUTS[0])
    p.add_argument("--steps", type=int, default=16, help="timed steps of a turn (%(default)s)")
    p.add_argument("--batch_size", type=int, default=1000)
    args = p.parse_args()
    torch.set_num_threads(1)
    mg.distributed.initialize()
    config = args.dir / args.graph / "parts-2" / f"{args.graph}.json"
    g = mg.distributed.DistGraph(args.graph, part_config=str(config))
    model = job.SAGE(mg, g.ndata["feat"].shape[1], 256, len(args.fanouts.split(",")))
    sides = {name: Turn(g, model, args, depth) for name, depth in ((WITHOUT, 0), (WITH, 2))}
    found, loads = common.alternate(sides, args.rounds, args.quiet)
    common.report(args, rows(found, args.fanouts), fanouts=args.fanouts, others=loads)


class Turn:
    """A loader of its own; calling it trains some steps, over ends of epochs, and returns the means."""

    def __init__(self, g, model, args, depth):
        self._g, self._model, self._steps, self._depth = g, model, WARM + args.steps, depth
        self._batch_size = args.batch_size
        self._sampler = mg.dataloading.NeighborSampler(list(map(int, args.fanouts.split(","))))
        self._seeds = mg.distributed.node_split(g.ndata["train_mask"])
        self._optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    def __call__(self):
        make = mg.distributed.DistNodeDataLoader
        gathers = "features" in inspect.signature(make.__init__).parameters
        rows = {"features": ["feat"], "labels": "label"} if gathers else {}
        options = {"batch_size": self._batch_size, "shuffle": True, "drop_last": True, "num_prefetch": self._depth}
        loader = make(self._g, self._seeds, self._sampler, **options, **rows)
        if len(loader) == 0:
            raise ValueError(f"{len(self._seeds)} seeds make no minibatch of {self._batch_size}")
        steps = list(self._run(itertools.chain.from_iterable(itertools.repeat(loader)), gathers))[WARM:]
        loader.close()
        step, compute = (statistics.mean(times) for times in zip(*steps, strict=True))
        return {"step": step, "compute": compute}

    def _run(self, batches, gathers):
        """Yield the seconds of each step, and of its compute."""
        watch = common.Stopwatch()
        for _ in range(self._steps):
            with watch:
                inputs, seeds, blocks = next(batches)
                feats = blocks[0].srcdata["feat"] if gathers else self._g.ndata["feat"][inputs]
                labels = blocks[-1].dstdata["label"] if gathers else self._g.ndata["label"][seeds]
            with watch:
                loss = F.cross_entropy(self._model(blocks, feats), labels)
                self._optimizer.zero_grad()
                loss.backward()
                self._optimizer.step()
            yield sum(watch.wall[-2:]), watch.wall[-1]


def rows(found, fanouts):
    """What is hidden, round by round, and the times it comes from."""
    hidden = [
        1 - (ahead["step"] - plain["compute"]) / (plain["step"] - plain["compute"])
        for ahead, plain in zip(found[WITH], found[WITHOUT], strict=True)
    ]
    share = statistics.median(hidden)
    what = f"share of sample + gather that prefetching hides, fanouts {fanouts}"
    return [
        common.Row(what, "", {common.OURS: share}, share, (min(hidden), max(hidden)), MUST, {common.OURS: hidden}),
        common.alone("step", "ms", common.pick(found, "step", 1e3)),
        common.alone("compute", "ms", common.pick(found, "compute", 1e3)),
    ]


if __name__ == "__main__":
    main()
