"""What a hop costs a rank of a job of 64 to 8,192, simulated in one process: messages, bytes, processor time.

    python tests/perf/many_ranks.py

The rank is real, the others and the communicator are not (``tests/support/many_ranks.py``): what MPI itself takes does
not count. A step of all ranks counts as one message to and one from each other rank. The 1,000 nodes of a hop are on
this rank and on three others.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))  # before this folder: a module of this name
from many_ranks import Hop

from mpigraph.mpi.start import start_mpi


def main():
    start_mpi()
    print("| ranks | way | messages | KB | ms |\n|---|---|---|---|---|")
    for way in ("alltoallv", "sparse"):
        for ranks in (64, 1024, 8192):
            hop = Hop(way, ranks, 3)
            cost = hop.cost()
            print(
                f"| {ranks} | {way} | {cost.messages} | {cost.bytes / 1e3:.0f} | {hop.seconds() * 1e3:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
