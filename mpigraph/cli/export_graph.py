"""``python -m mpigraph export``: write a partitioned graph as .npy files in its original order."""

import argparse

from mpigraph.cli.progress import ProgressBar
from mpigraph.cli.ranks import working_ranks
from mpigraph.partition.output_folder import check_writable
from mpigraph.partition.spill import Scratch


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "export",
        help="write a partitioned graph as .npy files in its original order",
        description="Write a partitioned graph as a folder of .npy files by its original ids, which partition reads; "
        "examples/inputs.md has recipes from there to DGL and PyG. On several ranks the first writes all.",
    )
    parser.add_argument("part_config", metavar="PART_CONFIG", help="<name>.json")
    parser.add_argument("-o", "--out", required=True, metavar="DIR", help="directory to write")
    parser.add_argument("--scratch", metavar="DIR", help="directory of temporary files (default: --out)")
    parser.add_argument("--overwrite", action="store_true", help="write over another export in --out (default: refuse)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    with working_ranks("export") as exchange:
        with exchange.together(f"exporting {arguments.part_config}"):
            check_writable(arguments.out)
            if exchange.rank == 0:
                from mpigraph.formats.original import write_npy  # torch takes seconds to load

                scratch = Scratch(arguments.scratch or arguments.out)
                with ProgressBar() as progress:
                    print(write_npy(arguments.part_config, arguments.out, scratch, progress, arguments.overwrite))
    return 0
