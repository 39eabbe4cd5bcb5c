"""``python -m mpigraph export``: write a partitioned graph for DGL or PyG, by its original ids."""

import argparse

from mpigraph.cli.progress import ProgressBar
from mpigraph.cli.ranks import working_ranks
from mpigraph.errors import InvalidArgumentError
from mpigraph.formats.to_dgl import write_chunked
from mpigraph.partition.output_folder import check_writable
from mpigraph.partition.spill import Scratch


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "export",
        help="write a partitioned graph in a format of DGL or PyG",
        description="Write a partitioned graph with its original ids: in DGL's chunked format, with the part of each "
        "node in partition/, or as PyG's Partitioner does. On several ranks the first writes all.",
    )
    parser.add_argument("part_config", metavar="PART_CONFIG", help="<name>.json")
    parser.add_argument("--format", required=True, choices=("dgl", "pyg"), help="DGL's chunks, or PyG's parts")
    parser.add_argument("-o", "--out", required=True, metavar="DIR", help="directory to write")
    parser.add_argument("--chunks", type=int, metavar="N", help="dgl: files of each array (default: one for each part)")
    rename = "rename a feature, such as feat=x (may be repeated)"
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW", help=rename)
    parser.add_argument("--scratch", metavar="DIR", help="directory of temporary files (default: --out)")
    parser.add_argument("--overwrite", action="store_true", help="write over another graph in --out (default: refuse)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    with working_ranks("export") as exchange:
        with exchange.together(f"exporting {arguments.part_config}"):
            names = _names(arguments.rename)
            if arguments.chunks is not None and arguments.format != "dgl":
                raise InvalidArgumentError("--chunks is for --format dgl")
            check_writable(arguments.out)
            if exchange.rank == 0:
                paths = (arguments.part_config, arguments.out)
                scratch = Scratch(arguments.scratch or arguments.out)
                with ProgressBar() as progress:
                    if arguments.format == "dgl":
                        path = write_chunked(*paths, arguments.chunks, names, scratch, progress, arguments.overwrite)
                    else:
                        from mpigraph.formats.to_pyg import write_pyg_parts  # torch takes seconds to load

                        path = write_pyg_parts(*paths, names, scratch, progress, arguments.overwrite)
                print(path)
    return 0


def _names(texts: list[str]) -> dict[str, str]:
    names = {}
    for text in texts:
        old, equals, new = text.partition("=")
        if not equals or not old or not new:
            raise InvalidArgumentError(f"--rename is OLD=NEW (got {text!r})")
        names[old] = new
    return names
