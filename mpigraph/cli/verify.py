"""``python -m mpigraph verify``: read all files of a partitioned graph and check them."""

import argparse
import json
import sys
from typing import Any

import numpy as np

from mpigraph.cli.ranks import progress_of, read_config, working_ranks
from mpigraph.collective import collective
from mpigraph.memory import in_units
from mpigraph.partition.exchange import Exchange
from mpigraph.storage.contents import PartFiles, audit_part
from mpigraph.storage.part_config import PartConfig


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "verify",
        help="read all files of a partitioned graph and check them",
        description="Read every dataset of every part; check the checksums, that the files belong to the "
        "configuration, and that their contents are consistent. Under srun or mpiexec the ranks divide the parts. The "
        "status is 0, or 2 after a line for each bad file.",
    )
    parser.add_argument("part_config", metavar="PART_CONFIG", help="<name>.json")
    parser.set_defaults(run=lambda arguments: run(arguments.part_config))


@collective("comm")
def run(part_config: str, comm: Any = None) -> int:
    """Verify a partitioned graph; print one line, or one for each bad file. Return the exit status, the same on all
    ranks.

    ``comm`` are the ranks that take part; by default those that a launcher started with this process.

    Raises MPIGraphError: the configuration is missing or damaged, or not the same on all ranks; on every rank.
    """
    with working_ranks("verify", comm) as exchange:
        return _verify(exchange, part_config)


@collective("ranks")
def _verify(exchange: Exchange, part_config: str) -> int:
    config = read_config(exchange, part_config)
    bad: list[str] = []
    sums = np.zeros(len(config.schema.relations), np.uint64)
    with exchange.together(f"verifying {config.path}"):
        own_parts = range(exchange.rank, config.num_parts, exchange.size)
        total = sum(bytes_on_disk(config, part) for part in own_parts)
        done = 0
        with PartFiles(config) as files, progress_of(exchange) as show:

            def advance(nbytes: int) -> None:
                nonlocal done
                done += nbytes
                show("verify (bytes)", min(done, total - 1), total)  # files are longer than their datasets

            advance(0)
            for part in own_parts:
                audit = audit_part(files, part, advance)
                bad += audit.bad
                sums += audit.sums
            show("verify (bytes)", total, total)
    own = json.dumps([bad, sums.tolist(), total]).encode(errors="backslashreplace")
    results = [json.loads(text) for text in exchange.gather_bytes(own)]
    lines = [line for bad, _, _ in results for line in bad]
    sums = np.array([rank_sums for _, rank_sums, _ in results], np.uint64).sum(axis=0)
    total = sum(rank_total for *_, rank_total in results)
    if not lines:  # else the sums lack unreadable datasets
        wrong = map(config.schema.relation_key, np.flatnonzero(sums).tolist())
        lines = [f"{config.path}: the out-degrees of {key} in its parts are not those of their edges" for key in wrong]
    if exchange.rank == 0:
        for line in lines:
            print(f"mpigraph verify: error: {line}", file=sys.stderr, flush=True)
        if not lines:
            number = sum(map(len, config.files))
            print(f"{config.path}: {number} files, {in_units(total)}, all checksums right", flush=True)
    return 2 if lines else 0


def bytes_on_disk(config: PartConfig, part: int) -> int:
    """Return the size of a part's files that exist."""
    paths = [config.directory / path for path in config.files[part].values()]
    return sum(path.stat().st_size for path in paths if path.is_file())
