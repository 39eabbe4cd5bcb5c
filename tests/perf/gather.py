"""Gather 100,000 random rows of 100 float32: local into a reused buffer, and through ``t[ids]`` local and remote.

    DGL_PYTHON=... python tests/perf/gather.py DIR --graph S       # as root: the remote rows cross two hosts

The first against ``torch.index_select(out=)`` on the same memory, in one process. The others against DGL's DistTensor:
two hosts (``namespaces.py``) with one server and one trainer each, every byte between them over TCP; one trainer reads
while the other waits. Whole jobs alternate; values are medians over the reads of a job.
"""

import statistics

import common
import host_jobs
import namespaces
import numpy as np
import torch

import mpigraph as mg

ROWS = 100_000
MUST = {"local": 2.5, "remote": 2.5}
MUST_BUFFER = 0.9
READS = 15


def main():
    args = common.parser(__doc__).parse_args()
    torch.set_num_threads(1)
    base = args.dir / args.graph
    rows, loads = buffer_rows(args, base)
    if namespaces.missing():
        common.say(f"the jobs on two hosts are left out: {namespaces.missing()}")
    else:
        pulled, more = pull_rows(args, base)
        rows, loads = rows + pulled, loads + more
    common.report(args, rows, others=loads)


def buffer_rows(args, base):
    """In one process: our gather of a tensor's rows, and torch's of the same memory."""
    mg.distributed.initialize()
    g = mg.distributed.DistGraph(args.graph, part_config=str(base / "parts-2" / f"{args.graph}.json"))
    tensor = g.ndata["feat"].rows
    memory, rng = torch.from_numpy(tensor.window.memory(0)), np.random.default_rng(1)
    ids = [rng.integers(0, len(memory), ROWS) for _ in range(READS)]
    buffer = np.empty((ROWS, memory.shape[1]), np.float32)
    out = torch.from_numpy(buffer)
    peer = "torch.index_select"
    work = {
        common.OURS: lambda some: tensor.gather(some, buffer),
        peer: lambda some: torch.index_select(memory, 0, torch.from_numpy(some), out=out),
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
    mg.distributed.exit_client()
    what, size = "gather into a reused buffer", buffer.nbytes / 1e9
    speed = {name: [size / seconds for seconds in times] for name, times in common.pick(found, "wall").items()}
    cpu = {name: [size / seconds for seconds in times] for name, times in common.pick(found, "cpu").items()}
    return [
        common.compare(what, "GB/s", speed, peer, must=MUST_BUFFER, more_is_better=True),
        common.compare(f"{what}, CPU time", "GB/s", cpu, peer, more_is_better=True),
    ], loads


def pull_rows(args, base):
    """Jobs on two hosts: ``t[ids]`` of rows of the own and of the other part."""
    systems = [common.OURS, *(["dgl"] if common.dgl_python() else [])]
    with namespaces.Hosts(2) as hosts:

        def side(system):
            def run():
                found, _ = host_jobs.run(hosts, system, "pull", base, args.graph, steps=READS)
                return {where: statistics.median(found[0][where]) for where in MUST}

            return run

        found, loads = common.alternate({system: side(system) for system in systems}, args.rounds, args.quiet)
    rows = []
    for where, must in MUST.items():
        size = ROWS * 400 / 1e9
        speed = {name: [size / seconds for seconds in times] for name, times in common.pick(found, where).items()}
        what = f"t[ids], {where} rows"
        rows.append(
            common.compare(what, "GB/s", speed, "dgl", must=must, more_is_better=True)
            if "dgl" in speed
            else common.alone(what, "GB/s", speed)
        )
    return rows, loads


if __name__ == "__main__":
    main()
