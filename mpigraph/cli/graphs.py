"""``generate`` writes a generated graph as ``.npy`` files, ``export`` a partitioned one in its original order."""

import argparse
from dataclasses import fields

from mpigraph.cli.ranks import ProgressBar, progress_of, working_ranks
from mpigraph.partition.generate import Recipe, write_graph
from mpigraph.partition.output_folder import check_writable
from mpigraph.partition.spill import Scratch


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register both commands."""
    _add_generate(commands)
    _add_export(commands)


def _add_generate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "generate",
        help="write a generated graph",
        description="Write a graph with power-law degrees, planted communities and features that correlate with the "
        "label, as .npy files that 'partition' reads. Started by mpiexec or srun, the ranks divide the work and write "
        "the same files.",
    )
    for name, field, text in (
        ("--nodes", "num_nodes", "number of nodes"),
        ("--edges", "num_edges", "number of directed edges (both directions count)"),
        ("--feat-dim", "feat_dim", "length of a feature row (%(default)s)"),
        ("--classes", "num_classes", "number of labels (%(default)s)"),
        ("--homophily", "homophily", "fraction of the edges inside a class (%(default)s)"),
        ("--block-share", "block_share", "fraction of those inside a block (%(default)s)"),
        ("--block-size", "block_size", "nodes of a block (0: by the mean degree)"),
        ("--train-fraction", "train_fraction", "fraction of training nodes (%(default)s)"),
        ("--signal", "signal", "strength of the features (%(default)s)"),
        ("--seed", "seed", "equal seeds give equal graphs (%(default)s)"),
    ):
        default = getattr(Recipe, field, None)  # the fields without one are required
        kind = float if isinstance(default, float) else int
        parser.add_argument(name, dest=field, type=kind, default=default, required=default is None, help=text)
    parser.add_argument("-o", "--out", required=True, metavar="DIR", help="directory to write, which every rank sees")
    parser.add_argument("--overwrite", action="store_true", help="write over another graph in --out (default: refuse)")
    parser.set_defaults(run=_generate)


def _generate(arguments: argparse.Namespace) -> int:
    with working_ranks("generate") as exchange:
        with exchange.together("checking the options"):
            values = vars(arguments)
            recipe = Recipe(**{field.name: values[field.name] for field in fields(Recipe) if field.name in values})
        with progress_of(exchange) as progress:
            path = write_graph(recipe, arguments.out, progress, exchange, arguments.overwrite)
        if exchange.rank == 0:
            edges = 2 * recipe.num_pairs
            print(f"{path}: {recipe.num_nodes} nodes, {edges} directed edges, {recipe.num_classes} classes")
    return 0


def _add_export(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
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
    parser.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> int:
    with working_ranks("export") as exchange:
        with exchange.together(f"exporting {arguments.part_config}"):
            check_writable(arguments.out)
            if exchange.rank == 0:
                from mpigraph.formats.original import write_npy  # torch takes seconds to load

                scratch = Scratch(arguments.scratch or arguments.out)
                with ProgressBar() as progress:
                    print(write_npy(arguments.part_config, arguments.out, scratch, progress, arguments.overwrite))
    return 0
