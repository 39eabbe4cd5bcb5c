"""Remote rows by one-sided ``Get`` beside rows that their owner packs: GB/s, and processor seconds a GB.

    MPIGRAPH_RANKS_PER_NODE=1 mpiexec -n 2 python tests/perf/ways.py     # by MPI's shared memory
    srun -N 2 --ntasks-per-node=1 python tests/perf/ways.py              # by the network

Every rank hosts rows of 40, 400 and 4,096 bytes and reads 20,000 random ones of the next node's, all ranks at once; the
ways take turns. Prints the median of the rounds, for the slowest rank, and the processor time of all ranks.
"""

import time

import numpy as np
from mpi4py import MPI

from mpigraph.config import Config
from mpigraph.mpi.world import World
from mpigraph.rows.service import RowService
from mpigraph.rows.window import RowWindow

HELD, READ, WIDTHS, ROUNDS = 100_000, 20_000, (10, 100, 1024), 15


def main() -> None:
    world = World(MPI.COMM_WORLD, 0, Config.from_env())
    service = RowService(world)
    if world.rank == 0 and len(service.transports) < 2:
        print("this job has one way or none: it needs two nodes, and MPIGRAPH_TRANSPORT=auto")
    for width in WIDTHS:
        window = RowWindow(service, np.arange(len(world.hosts) + 1) * HELD, (width,), "f4")
        window.memory(world.host_index)[:] = (np.arange(HELD) + HELD * world.host_index)[:, None]
        window.sync()
        world.comm.Barrier()
        window.sync()
        host = world.hosts_of_node((world.node_index + 1) % world.num_nodes)[0]
        ids = np.random.default_rng(world.rank).choice(HELD, READ, replace=False) + HELD * host
        out = np.empty((READ, width), np.float32)
        found: dict[str, list[tuple[float, float]]] = {way.name: [] for way in service.transports}
        for number in range(ROUNDS + 1):
            for way in service.transports[:: 1 if number % 2 else -1]:
                out[:] = 0
                world.comm.Barrier()
                wall, cpu = time.perf_counter(), time.process_time()
                window.gather(ids, out, way)
                wall = time.perf_counter() - wall
                world.comm.Barrier()  # until then this rank answers
                cpu = time.process_time() - cpu
                assert (out[:, 0] == ids.astype(np.float32)).all()
                slowest = world.comm.allreduce(wall, MPI.MAX), world.comm.allreduce(cpu)
                found[way.name] += [slowest] * (number > 0)
        gigabytes = out.nbytes * world.size / 1e9
        for name, rounds in found.items():
            wall, cpu = np.median(rounds, axis=0)
            if world.rank == 0:
                size = f"{out.itemsize * width:5} bytes, {name:6}"
                print(f"{size}: {gigabytes / wall:6.2f} GB/s, {cpu / gigabytes:6.2f} s/GB", flush=True)
        window.close()
    world.close()


if __name__ == "__main__":
    main()
