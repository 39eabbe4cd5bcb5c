"""``python -m mpigraph generate``: write a generated graph as ``.npy`` files.

Started by ``mpiexec`` or ``srun``, the ranks divide the work and write the same files.
"""

import argparse
from contextlib import nullcontext

from mpigraph.cli.progress import ProgressBar
from mpigraph.cli.ranks import working_ranks
from mpigraph.partition.generate import Recipe, write_graph

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "generate",
        help="write a generated graph",
        description="Write a graph with power-law degrees, planted communities and features that say something about "
        "the label, as .npy files that 'partition' reads. Started by mpiexec or srun, the ranks divide the work and "
        "write the same files.",
    )
    parser.add_argument("--nodes", type=int, required=True, help="number of nodes")
    parser.add_argument("--edges", type=int, required=True, help="number of directed edges (both directions count)")
    parser.add_argument("--feat-dim", type=int, default=Recipe.feat_dim, help="length of a feature row (%(default)s)")
    parser.add_argument("--classes", type=int, default=Recipe.num_classes, help="number of labels (%(default)s)")
    parser.add_argument(
        "--homophily", type=float, default=Recipe.homophily, help="fraction of the edges inside a class (%(default)s)"
    )
    parser.add_argument(
        "--block-share", type=float, default=Recipe.block_share, help="fraction of those inside a block (%(default)s)"
    )
    parser.add_argument("--block-size", type=int, default=0, help="nodes of a block (0: by the mean degree)")
    parser.add_argument(
        "--train-fraction", type=float, default=Recipe.train_fraction, help="fraction of training nodes (%(default)s)"
    )
    parser.add_argument("--signal", type=float, default=Recipe.signal, help="strength of the features (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal graphs (%(default)s)")
    parser.add_argument("-o", "--out", required=True, metavar="DIR", help="directory to write, which every rank sees")
    parser.add_argument("--overwrite", action="store_true", help="write over another graph in --out (default: refuse)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    with working_ranks("generate") as exchange:
        with exchange.together("checking the options"):
            recipe = Recipe(
                num_nodes=arguments.nodes,
                num_edges=arguments.edges,
                feat_dim=arguments.feat_dim,
                num_classes=arguments.classes,
                seed=arguments.seed,
                homophily=arguments.homophily,
                block_share=arguments.block_share,
                block_size=arguments.block_size,
                train_fraction=arguments.train_fraction,
                signal=arguments.signal,
            )
        with ProgressBar() if exchange.rank == 0 else nullcontext() as progress:
            path = write_graph(recipe, arguments.out, progress, exchange, arguments.overwrite)
        if exchange.rank == 0:
            edges = 2 * recipe.num_pairs
            print(f"{path}: {recipe.num_nodes} nodes, {edges} directed edges, {recipe.num_classes} classes")
    return 0
