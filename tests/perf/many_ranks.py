"""Messages, bytes and Python time of a rank's hop in jobs of 64 to 8,192 ranks, simulated in one process.

    python tests/perf/many_ranks.py

The rank is real, the others and the communicator are not (``tests/support/many_ranks.py``): what MPI itself takes does
not count. The frontier has 1,000 nodes on this rank and on 3 or 31 others. A step of all ranks counts as one message to
and one from each other rank.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from many_ranks import Hop


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ranks", type=int, nargs="+", default=[64, 1024, 8192])
    p.add_argument("--asked", type=int, nargs="+", default=[3, 31], help="other ranks that hold a part of the frontier")
    args = p.parse_args()
    print("| ranks | asked | way | messages | KB | ms |\n|---|---|---|---|---|---|")
    for asked in args.asked:
        for way in ("alltoallv", "sparse"):
            for ranks in args.ranks:
                hop = Hop(way, ranks, asked)
                figures = f"{hop.messages} | {hop.bytes / 1e3:.0f} | {hop.seconds() * 1e3:.2f}"
                print(f"| {ranks} | {asked} | {way} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
