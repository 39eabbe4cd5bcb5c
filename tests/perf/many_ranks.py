"""What a rank's work costs in jobs of 4 to 8,192 ranks, simulated in one process: messages, bytes, Python.

    python tests/perf/many_ranks.py

The rank is real, the others and the communicator are not (``tests/support/many_ranks.py``): what MPI itself takes does
not count. A step of all ranks counts as one message to and one from each other rank. First hops, whose 1,000 nodes are
on this rank and on 3 or 31 others; then ten minibatches of 100 seeds with their rows, and a push of 1,000 gradients,
of which three other ranks have a part.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from many_ranks import Hop, Minibatches, Push

from mpigraph.mpi.start import start_mpi

WORK = {
    "10 minibatches, no cache": lambda ranks: Minibatches(ranks, 3, 0),
    "10 minibatches, a cache": lambda ranks: Minibatches(ranks, 3, 500),
    "push": lambda ranks: Push(ranks, 3),
}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ranks", type=int, nargs="+", default=[64, 1024, 8192])
    p.add_argument("--asked", type=int, nargs="+", default=[3, 31], help="other ranks that hold a part of the frontier")
    args = p.parse_args()
    start_mpi()
    print("| ranks | asked | way | messages | KB | ms |\n|---|---|---|---|---|---|")
    for asked in args.asked:
        for way in ("alltoallv", "sparse"):
            for ranks in args.ranks:
                hop = Hop(way, ranks, asked)
                cost = hop.cost()
                figures = f"{cost.messages} | {cost.bytes / 1e3:.0f} | {hop.seconds() * 1e3:.2f}"
                print(f"| {ranks} | {asked} | {way} | {figures} |", flush=True)
    print("\n| ranks | work | messages | KB | lines of Python | KB allocated |\n|---|---|---|---|---|---|")
    for name, make in WORK.items():
        for ranks in args.ranks:
            cost = make(ranks).cost()
            figures = f"{cost.messages} | {cost.bytes / 1e3:.0f} | {cost.lines} | {cost.allocated / 1e3:.0f}"
            print(f"| {ranks} | {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
