"""``python -m mpigraph generate``: write a generated graph as ``.npy`` files."""

import argparse
from dataclasses import fields

from mpigraph.cli.progress import progress_of
from mpigraph.cli.ranks import working_ranks
from mpigraph.partition.generate import Recipe, write_graph


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
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
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
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
