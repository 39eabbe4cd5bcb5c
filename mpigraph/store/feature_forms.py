"""The forms in which a job keeps the features of a graph, the same on every rank."""

from collections.abc import Iterator

import numpy as np

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.errors import ShardFormatError
from mpigraph.mpi.agree import everywhere
from mpigraph.mpi.world import World
from mpigraph.partition.column_ranges import measured_form
from mpigraph.partition.over_mpi import MPIExchange
from mpigraph.storage.contents import PartFiles, StoredRows
from mpigraph.storage.narrow import StoredForm
from mpigraph.storage.part_config import FeatureInfo
from mpigraph.storage.shard import read_chunks
from mpigraph.store.staging import parts_of_hosts

READ_ONLY = (
    "its rows are stored as int8, between the lowest and the highest number of each column; make a DistTensor for rows "
    "that change, or store the feature in another dtype"
)


@collective("world.comm")
def form_to_keep(
    world: World,
    files: PartFiles,
    stored: StoredRows,
    in_file: FeatureInfo,
    kept: FeatureInfo,
    hosts: I64,
) -> StoredForm | None:
    """Return the form in which hosts keep a feature, None for its own.

    Each host reads its parts: the ranges of columns that are int8 there, or all rows if they become int8.

    Args:
        world: the ranks.
        files: of the graph.
        stored: where the feature is.
        in_file: the feature as the files have it.
        kept: as it is kept: the same, or narrower.
        hosts: int64[H + 1], the hosts' ranges of its rows.

    Raises:
        ShardFormatError: a file is missing or damaged, or parts have different column ranges; on every rank.
        GraphDataError: the feature cannot be int8; on every rank.
    """
    if kept.narrow != "int8":
        return StoredForm(kept.narrow) if kept.narrow else None
    which = stored.which
    name = stored.name
    offsets = stored.offsets
    exchange = MPIExchange(world.comm)
    if kept != in_file:

        def chunks() -> Iterator[tuple[int, Array]]:
            if not world.is_host:
                return
            begin, end = hosts[world.host_index :][:2].tolist()
            for part, first, last in stored.pieces(begin, end):
                for row, rows in read_chunks(files.open(part, which), name, first, last):
                    yield int(offsets[part] - stored.begins[part]) + row, rows

        def place(row: int) -> str:
            part = int(np.searchsorted(offsets, row, side="right")) - 1
            return f"{files.config.part_path(part, which)}: row {row - int(offsets[part] - stored.begins[part])}"

        return measured_form(f"dataset {name!r}", kept, int(offsets[-1]), chunks, place, exchange)[0]
    own = b""
    with exchange.together(f"reading the column ranges of {name!r}"):
        if world.is_host:
            parts = parts_of_hosts([world.host_index], len(world.hosts), files.config.num_parts)
            form = files.form_of(which, name, kept, parts)
            assert form is not None and form.ranges is not None
            own = form.ranges.tobytes()
    ranges = [data for data in exchange.gather_bytes(own) if data] or [b""]  # of no columns
    if any(data != ranges[0] for data in ranges):
        raise everywhere(ShardFormatError(f"{files.config.path}: parts have different column ranges of {name!r}"))
    return StoredForm("int8", np.frombuffer(ranges[0], kept.dtype).reshape(2, *kept.shape).copy())
