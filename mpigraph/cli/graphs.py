"""``generate`` writes a generated graph as ``.npy`` files, ``export`` a partitioned one in its original order."""

from dataclasses import fields

from mpigraph.cli.grammar import Export, Generate
from mpigraph.cli.ranks import ProgressBar, progress_of, working_ranks
from mpigraph.formats.shards import write_npy
from mpigraph.partition.generate import Recipe, write_graph
from mpigraph.partition.output_folder import check_writable
from mpigraph.partition.spill import Scratch


def generate(options: Generate) -> int:
    """Write a generated graph; return the exit status."""
    with working_ranks("generate") as exchange:
        with exchange.together("checking the options"):
            values = vars(options)
            recipe = Recipe(**{field.name: values[field.name] for field in fields(Recipe) if field.name in values})
        with progress_of(exchange) as progress:
            path = write_graph(recipe, options.out, progress, exchange, options.overwrite)
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
                scratch = Scratch(options.scratch or options.out)
                with ProgressBar() as progress:
                    print(write_npy(options.part_config, options.out, scratch, progress, options.overwrite))
    return 0
