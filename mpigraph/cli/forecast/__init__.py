"""``python -m mpigraph forecast``: how long steps and epochs take on more nodes, before there are any.

``traffic`` makes minibatches of a simulated job, ``timing`` puts them on nodes and a network, ``command`` prints.
"""

import argparse

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "forecast",
        help="forecast steps, epochs and memory of a job on more nodes",
        description="Make minibatches of simulated trainers by the real sampler and caches, in one process, and "
        "forecast the time of steps and epochs on each number of nodes, what bounds it, and the memory of a node. "
        "Needs memory for the graph's topology. slurm/README.md says how to read the forecast, and what it assumes.",
    )
    add = parser.add_argument
    add("part_configs", nargs="+", metavar="PARTS", help="<name>.json; several, of one graph in different parts")
    add("--nodes", default="2,4,8", metavar="N,...", help="numbers of nodes (2,4,8)")
    add("--trainers", default="4", metavar="N,...", help="on each node (4); several to compare")
    add("--servers", type=int, default=1, metavar="N", help="on each node (1); 0: the trainers hold the graph")
    add("--fanouts", default="10,25", metavar="K,...", help="neighbours in each layer, outermost hop first (10,25)")
    add("--batch-size", type=int, default=1000, metavar="N", help="seeds of a minibatch (1000)")
    add(
        "--machine", metavar="FILE", help="what `bench --out` wrote, or a JSON object of numbers; else 10 Gbit/s, 20 us"
    )
    add("--model-ms", default="", metavar="MS,...", help="a step of the model on a device, or some to draw from")
    add("--report", metavar="DIR", help="of a job, for the times of the model's steps in it")
    add("--gradients", default="1MB", metavar="SIZE", help="that the trainers sum in each step (1MB)")
    add("--cache", default="best", metavar="SIZE", help="of a node, for remote rows; none; or best: compare some sizes")
    add("--memory", metavar="SIZE", help="of a node, such as 256GiB: a limit for the cache, and marks what is too much")
    add("--minibatches", type=int, default=8, metavar="N", help="of each simulated trainer that count (8)")
    add("--warm", type=int, default=24, metavar="N", help="minibatches before these, which fill its cache (24)")
    add("--simulated-nodes", type=int, default=2, metavar="N", help="whose trainers are simulated (2)")
    add("--cut", action="store_true", help="cut parts for each number of nodes without PARTS, by the multilevel method")
    add("--measured", nargs="+", default=[], metavar="FILE", help="of `bench --out`, to print how these jobs scaled")
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--svg", metavar="FILE", help="draw strong and weak scaling")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from mpigraph.cli.forecast.command import run

    return run(arguments)
