"""The caches of a loader: the user's options, their sizes, and the readers that go through them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpigraph.collective import collective
from mpigraph.dataloading.fetcher import FeatureFetcher
from mpigraph.errors import InvalidArgumentError, check_integer
from mpigraph.log import get_logger
from mpigraph.memory import as_bytes, in_units
from mpigraph.mpi.world import World
from mpigraph.rows.lookahead import CachedRows, UpcomingReads
from mpigraph.rows.row_cache import RowCache, free_for_caches, priced_rows
from mpigraph.session.context import Session
from mpigraph.session.control import Operation

LOOKAHEAD = 8
"""Minibatches that a loader samples ahead by default: blocks of some MB each."""
_MOST_AHEAD = 16  # by default, with rows on disk: they read 6 % less than 8 on ogbn-products, and 32 no less
_FREE_BYTES_EACH = 1 << 30  # free bytes of a trainer for each of them
_AUTO = -1  # bytes, or minibatches


@dataclass(frozen=True)
class CacheOptions:
    """Size and look-ahead that a user asked for."""

    total: int  # bytes on each node for all features together, -1 for as many as fit
    lookahead: int  # minibatches sampled ahead; -1 for the default


def check_cache(cache: str | int | None, lookahead: int | None) -> CacheOptions:
    """Check the options, which :class:`.DistNodeDataLoader` describes. Raises InvalidArgumentError."""
    ahead = _AUTO if cache is not None else 0
    ahead = ahead if lookahead is None else check_integer("lookahead", lookahead, 0, 1 << 20)
    total = 0 if cache is None else _AUTO if cache == "auto" else size_in_bytes(cache, "cache")
    return CacheOptions(total, ahead)


def size_in_bytes(size: object, what: str) -> int:
    """Return the bytes of a size such as "2GiB", or of a number. Raises InvalidArgumentError that names it ``what``."""
    try:
        size = as_bytes(size) if isinstance(size, str) else check_integer(what, size, 0)
    except ValueError:
        raise InvalidArgumentError(f"{what} must be a size such as '2GiB', or bytes (got {size!r})") from None
    return size


@collective("trainers")
def open_caches(
    session: Session, options: CacheOptions, fetchers: Sequence[FeatureFetcher[Any]]
) -> tuple[list[RowCache], int]:
    """Open the caches of a loader, through which its fetchers read from now on.

    Returns:
        The caches, one for what is read at once; and the number of minibatches to sample ahead.

    Raises:
        SharedMemoryError: a node's shared memory cannot hold them; on every rank.
    """
    tensors = {of.tensor.rows.number: of.tensor for fetcher in fetchers for of in fetcher.together}
    on_disk = any(tensor.rows.window.from_sources for tensor in tensors.values())
    ahead = _default_ahead(session.world, on_disk) if options.lookahead == _AUTO else options.lookahead
    groups = [(sorted(tensors), options.total)]
    caches: dict[int, RowCache] = session.control.call(
        Operation.OPEN_CACHES, doing="making caches", groups=groups, ahead=ahead
    )
    for fetcher in fetchers:
        for of in fetcher.together:
            rows = of.tensor.rows
            alike = of.alike, rows.window.free.tobytes()
            upcoming = fetcher.upcoming.setdefault(alike, UpcomingReads(rows.window))
            of.reader = CachedRows(rows, caches[rows.number], upcoming, session.pool)
    for cache in caches.values():
        slots = cache.per_trainer * session.world.num_local_trainers
        priced = priced_rows(cache.rows)
        get_logger().info(
            "cache of rows of %r on this node: up to %s, %d of %d rows %s; %d minibatches ahead",
            cache.rows.name,
            in_units(slots * cache.rows.window.row_bytes),
            min(slots, priced),
            priced,
            "on disk or of other nodes" if cache.rows.window.from_sources else "of other nodes",
            ahead,
        )
    return list(caches.values()), ahead


@collective("trainers", "with rows on disk")
def _default_ahead(world: World, on_disk: bool) -> int:
    """Return the number of minibatches to sample ahead: with rows on disk, where a read costs more, by free memory."""
    if not on_disk:
        return LOOKAHEAD
    free = free_for_caches(world) // (world.num_local_trainers * _FREE_BYTES_EACH)
    return world.allreduce_minmax(min(max(free, LOOKAHEAD), _MOST_AHEAD), False)
