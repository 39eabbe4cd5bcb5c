"""Gather 100,000 random rows of 100 float32 into a reused buffer, beside ``torch.index_select(out=)`` of that memory.

    python tests/perf/gather.py DIR --graph S

One process. Values are medians over the reads of a round.
"""

import common
import numpy as np
import torch

ROWS, READS = 100_000, 15


def main():
    args = common.parser(__doc__).parse_args()
    torch.set_num_threads(1)
    tensor = common.open_graph(args).ndata["feat"].rows
    memory, rng = torch.from_numpy(tensor.window.memory(0)), np.random.default_rng(1)
    ids = [rng.integers(0, len(memory), ROWS) for _ in range(READS)]
    buffer = np.empty((ROWS, memory.shape[1]), np.float32)
    out = torch.from_numpy(buffer)
    work = {
        common.OURS: lambda some: tensor.gather(some, buffer),
        "torch.index_select": lambda some: torch.index_select(memory, 0, torch.from_numpy(some), out=out),
    }

    def side(gather):
        def run():
            watch = common.Stopwatch()
            for some in ids:
                with watch:
                    gather(some)
            return watch.medians()

        return run

    for gather in work.values():
        gather(ids[0])
    if not np.array_equal(memory[ids[0]].numpy(), tensor.gather(ids[0], buffer)):
        raise ValueError("the rows differ")
    found, loads = common.alternate({name: side(gather) for name, gather in work.items()}, 5 * args.rounds, args.quiet)
    what = "gather into a reused buffer"
    rows = common.beside(what, "ms", common.pick(found, "wall", 1e3))
    common.report(args, rows + common.beside(f"{what}, CPU time", "ms", common.pick(found, "cpu", 1e3)), others=loads)


if __name__ == "__main__":
    main()
