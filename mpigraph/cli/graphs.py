"""``generate`` writes a generated graph as ``.npy`` files, ``export`` a partitioned one in its original order."""

from mpigraph.cli.grammar import Export, Generate
from mpigraph.cli.main import chosen
from mpigraph.cli.ranks import progress_of, working_ranks
from mpigraph.formats.original import write_npy
from mpigraph.partition.generate import Recipe, write_graph
from mpigraph.partition.output_folder import check_writable


def generate(options: Generate) -> int:
    """Write a generated graph; return the exit status."""
    with working_ranks("generate") as exchange:
        with exchange.together("checking the options"):
            recipe = chosen(Recipe, vars(options))
        path = write_graph(recipe, options.out, progress_of(exchange), exchange, options.overwrite)
        if exchange.rank == 0:
            edges = 2 * recipe.num_pairs
            print(f"{path}: {recipe.num_nodes} nodes, {edges} directed edges, {recipe.num_classes} classes")
    return 0


def export(options: Export) -> int:
    """Write a partitioned graph in its original order; return the exit status."""
    with working_ranks("export") as exchange:
        with exchange.together(f"exporting {options.part_config}"):
            check_writable(options.out)
            if exchange.rank == 0:
                progress = progress_of(exchange)
                print(write_npy(options.part_config, options.out, None, progress, options.overwrite))
    return 0
