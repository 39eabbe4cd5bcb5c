"""CPU time of each rank's start to the first minibatch, by stage: ``mpiexec -n N python tests/perf/start.py CONFIG``.

CONFIG is of any graph in as many parts as the job has hosts (one, as it has one server). Run it twice: the first run
compiles kernels that no cache has.
"""

import sys
import time
from pathlib import Path

BEGIN = time.process_time()
STAGES: list[tuple[str, float]] = []


def lap(name: str) -> None:
    """Note the time of a stage that ends."""
    STAGES.append((name, time.process_time() - BEGIN - sum(seconds for _, seconds in STAGES)))


def main() -> None:
    import torch

    lap("torch")
    import mpigraph.distributed as dist
    from mpigraph.dataloading import NeighborSampler

    lap("library")
    try:
        dist.initialize()
    except SystemExit:
        STAGES.append(("server", time.process_time() - BEGIN - sum(seconds for _, seconds in STAGES)))
        report()
        return
    lap("initialize")
    g = dist.DistGraph(Path(sys.argv[1]).stem, part_config=sys.argv[1])
    lap("graph")
    seeds = dist.node_split(torch.ones(g.num_nodes(), dtype=torch.bool))[:1000]
    loader = dist.DistNodeDataLoader(g, seeds, NeighborSampler([10, 10]), batch_size=1000, features=list(g.ndata))
    for _ in loader:
        pass
    lap("first minibatch")
    dist.exit_client()
    report()


def report() -> None:
    """Print a line for each rank."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    for rank in range(comm.size):
        comm.Barrier()
        if rank == comm.rank:
            print(f"rank {rank}: " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in STAGES), flush=True)


if __name__ == "__main__":
    main()
