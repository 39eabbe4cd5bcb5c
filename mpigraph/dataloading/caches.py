"""The caches of a loader: the user's options, their sizes, and the readers that go through them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpigraph.collective import collective
from mpigraph.dataloading.fetcher import FeatureFetcher
from mpigraph.errors import InvalidArgumentError, check_integer
from mpigraph.log import get_logger
from mpigraph.memory import as_bytes, in_units
from mpigraph.rows.lookahead import CachedRows, UpcomingReads
from mpigraph.rows.row_cache import RowCache, remote_rows
from mpigraph.session.context import Session
from mpigraph.session.control import Operation

LOOKAHEAD = 8
"""Minibatches that a loader samples ahead by default: blocks of some MB each."""
_AUTO = -1  # bytes


@dataclass(frozen=True)
class CacheOptions:
    """Size and look-ahead that a user asked for."""

    total: int  # bytes on each node for all features together, -1 for as many as fit
    lookahead: int  # minibatches sampled ahead


def check_cache(cache: str | int | None, lookahead: int | None) -> CacheOptions:
    """Check the options, which :class:`.DistNodeDataLoader` describes. Raises InvalidArgumentError."""
    ahead = LOOKAHEAD if cache is not None else 0
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
def open_caches(session: Session, options: CacheOptions, fetchers: Sequence[FeatureFetcher[Any]]) -> list[RowCache]:
    """Open the caches of a loader, through which its fetchers read from now on.

    Returns:
        The caches, one for what is read at once.

    Raises:
        SharedMemoryError: a node's shared memory cannot hold them; on every rank.
    """
    tensors = {of.tensor.rows.number: of.tensor for fetcher in fetchers for of in fetcher.together}
    groups = [(sorted(tensors), options.total)]
    caches: dict[int, RowCache] = session.control.call(
        Operation.OPEN_CACHES, doing="making caches", groups=groups, ahead=options.lookahead
    )
    for fetcher in fetchers:
        for of in fetcher.together:
            rows = of.tensor.rows
            upcoming = fetcher.upcoming.setdefault(of.alike, UpcomingReads(rows.window))
            of.reader = CachedRows(rows, caches[rows.number], upcoming, session.pool)
    for cache in caches.values():
        slots = cache.per_trainer * session.world.num_local_trainers
        remote = remote_rows(cache.rows)
        get_logger().info(
            "cache of rows of %r on this node: up to %s, %d of %d rows of other nodes; %d minibatches ahead",
            cache.rows.name,
            in_units(slots * cache.rows.window.row_bytes),
            min(slots, remote),
            remote,
            options.lookahead,
        )
    return list(caches.values())
