"""The features of a graph that stay on disk: which, where memory decides; the sources of their rows."""

import math
import resource

import numpy as np

from mpigraph.arrays import I64
from mpigraph.collective import collective
from mpigraph.log import get_logger
from mpigraph.memory import in_units
from mpigraph.metadata.book import RangeBook
from mpigraph.mpi.agree import together
from mpigraph.mpi.world import World
from mpigraph.rows.row_tensor import Policy
from mpigraph.rows.shm_check import tightest_limits
from mpigraph.rows.sources.disk import DiskFile, DiskRows, Reading, open_rows
from mpigraph.rows.sources.verification import Verification
from mpigraph.rows.window import SourceOf
from mpigraph.storage.contents import PartFiles, StoredRows
from mpigraph.storage.files import file_system
from mpigraph.storage.format import storage_dtype
from mpigraph.storage.part_config import PartConfig
from mpigraph.store.host_ranges import host_memory
from mpigraph.store.placement import features_of, without
from mpigraph.store.topology import Topology
from mpigraph.trace import clock

_OF_FREE = 0.75  # of a node's free memory that a graph takes at most; the rest is for caches, minibatches and models
_SHARED = (
    "nfs",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "cifs",
    "smb",
    "fuse",
    "glusterfs",
    "9p",
    "panfs",
    "afs",
    "wekafs",
)
_SAMPLE = 256  # rows

Places = dict[tuple[Policy, str], str]


@collective("world.comm")
def settle(world: World, kept: PartConfig, hosts: RangeBook, places: Places) -> Places:
    """Decide where features are whose place is "auto": the largest go to disk until the others fit in memory.

    Args:
        world: the job.
        kept: the graph with the dtypes that features have in memory.
        hosts: the book whose owners are the hosts.
        places: "disk" or "auto" by feature; "auto" only where a host needs to narrow nothing.

    Returns:
        "disk" by feature, for those that stay there; the same on every rank.
    """
    decided = {key: word for key, word in places.items() if word == "disk"}
    if len(decided) == len(places):
        return decided
    sizes = {
        (policy, name): storage_dtype(info.stored).itemsize * math.prod(info.shape) * int(policy.offsets(hosts)[-1])
        for policy, name, info in features_of(kept)
    }
    undecided = sorted(places.keys() - decided.keys(), key=lambda key: (-sizes[key], repr(key)))
    free = tightest_limits(world)[:, 0]
    moved = []
    while undecided and ((needed := _of_nodes(world, without(kept, decided), hosts)) > _OF_FREE * free).any():
        moved.append(undecided.pop(0))
        decided[moved[-1]] = "disk"
    if moved and world.rank == 0:
        node = int((needed - free).argmax())
        get_logger().warning(
            "graph %r: %s stay on disk: with them a node would take %s of the %s that it has free",
            kept.graph_name,
            ", ".join(f"{name!r} ({in_units(sizes[policy, name])})" for policy, name in moved),
            in_units(int(_of_nodes(world, kept, hosts)[node])),
            in_units(int(free[node])),
        )
    return decided


def _of_nodes(world: World, kept: PartConfig, hosts: RangeBook) -> I64:
    """Return int64[nodes], the bytes of a graph on each node."""
    nbytes = np.zeros(world.num_nodes, np.int64)
    np.add.at(nbytes, world.nodes_of_hosts, host_memory(kept, hosts))
    return nbytes


@collective("world.comm")
def sources_on_disk(
    topology: Topology,
    files: PartFiles,
    policy: Policy,
    name: str,
    verification: Verification,
    opened: dict[tuple[int, str], DiskFile],
) -> SourceOf:
    """Return the sources of a feature's rows on disk, of the hosts of this node; their checksums will be verified.

    Args:
        topology: of the graph.
        files: of the graph.
        policy: type of the feature.
        name: of the feature.
        verification: verifies them.
        opened: the files that other features of the graph read, by part and kind; more are added.

    Raises:
        ShardFormatError, StorageError: a file is missing or damaged, or cannot be opened; on every rank.
    """
    world = topology.world
    config = topology.config
    stored = StoredRows.of_feature(config, policy.is_node, policy.type_id, name)
    which = stored.which
    dataset = stored.name
    hosts = policy.offsets(topology.hosts)
    of_job = world.config
    settings = Reading(of_job.disk_threads, of_job.disk_gap, bool(of_job.disk_direct), of_job.timeout)
    local: dict[int, DiskRows] = {}
    parts: set[int] = set()
    with together(world.comm, f"opening {dataset!r} of graph {config.graph_name!r}"):
        for host in np.flatnonzero(world.is_local).tolist():
            rows = list(stored.pieces(int(hosts[host]), int(hosts[host + 1])))
            parts.update(part for part, _, _ in rows)
            _allow_open_files((1 + settings.direct) * sum((part, which) not in opened for part, _, _ in rows))
            local[host] = open_rows(files, which, dataset, rows, opened, settings)
        siblings = world.hosts_of_node(world.node_index)
        if world.host_index in siblings:  # they share the work
            for part in sorted(parts)[siblings.index(world.host_index) :: len(siblings)]:
                extent = files.open(part, which).extent(dataset)
                verification.add(opened[part, which], config.seals[part][which], dataset, extent)
        if world.host_index == siblings[0] and parts:
            _warn_if_shared(opened[min(parts), which], local[siblings[0]], int(np.diff(hosts)[siblings[0]]))
    return local.__getitem__


def _allow_open_files(more: int) -> None:
    """Raise this process's limit of open files, often 1024, by ``more``, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        wanted = soft + more if hard == resource.RLIM_INFINITY else min(soft + more, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _warn_if_shared(file: DiskFile, rows: DiskRows, count: int) -> None:
    """Warn if a file is not on a disk of this node, with the rate at which it gives rows."""
    kind = file_system(file.number)
    if not kind.startswith(_SHARED):
        return
    sample = np.unique(np.random.default_rng(0).integers(0, max(count, 1), min(count, _SAMPLE)))
    out = np.empty((len(sample), rows.row_bytes), np.uint8)
    begin = clock()
    rows.read(sample, out, np.arange(len(sample)))
    get_logger().warning(
        "%s is on a shared file system (%s), which gave %.0f random rows a second: python -m mpigraph stage puts the "
        "parts of each node on its own disk",
        file.path,
        kind,
        len(sample) / max(clock() - begin, 1e-9),
    )
