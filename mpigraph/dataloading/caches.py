"""The caches of a loader: the user's options, their sizes, and the readers that go through them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpigraph.collective import collective
from mpigraph.dataloading.fetcher import FeatureFetcher
from mpigraph.errors import FieldNameError, InvalidArgumentError, check_integer
from mpigraph.log import get_logger
from mpigraph.memory import as_bytes, in_units
from mpigraph.mpi.world import World
from mpigraph.rows.lookahead import CachedRows, UpcomingReads
from mpigraph.rows.row_cache import RowCache, free_for_caches, priced_rows
from mpigraph.session.context import Session
from mpigraph.session.control import Operation

Sizes = str | int | Mapping[str, Mapping[str, str | int]] | None
"""``"auto"``; a size for all features together; ``{"node": {name: size}, "edge": {name: size}}``; None for no cache."""

LOOKAHEAD = 8
"""Minibatches that a loader samples ahead by default: blocks of some MB each."""
_MOST_AHEAD = 16  # by default, with rows on disk: they read 6 % less than 8 on ogbn-products, and 32 no less
_OF_ONE = 1 << 30  # free bytes of a trainer for each of them
_AUTO = -1  # bytes, or minibatches
_DOING = "making caches"


@dataclass(frozen=True)
class CacheOptions:
    """Sizes and look-ahead that a user asked for.

    Attributes:
        total: bytes on each node for all features together, -1 for as many as fit; None with ``named``.
        named: bytes on each node by "node" or "edge" and name of the feature.
        lookahead: number of minibatches sampled ahead; -1 for the default.
    """

    total: int | None
    named: dict[tuple[str, str], int]
    lookahead: int


def check_cache(cache: Sizes, lookahead: int | None) -> CacheOptions:
    """Check the options, which :class:`.DistNodeDataLoader` describes.

    Raises:
        InvalidArgumentError: one is wrong.
    """
    ahead = _AUTO if cache is not None else 0
    ahead = ahead if lookahead is None else check_integer("lookahead", lookahead, 0, 1 << 20)
    if not isinstance(cache, Mapping):
        total = 0 if cache is None else _AUTO if cache == "auto" else size_in_bytes(cache, "cache")
        return CacheOptions(total, {}, ahead)
    named: dict[tuple[str, str], int] = {}
    for kind, sizes in cache.items():
        if kind not in ("node", "edge") or not isinstance(sizes, Mapping):
            raise InvalidArgumentError(
                f"cache must be {{'node': {{name: size}}, 'edge': {{name: size}}}} (got {kind!r}: {sizes!r})"
            )
        for name, size in sizes.items():
            named[kind, name] = size_in_bytes(size, f"cache of {kind} feature {name!r}")
    return CacheOptions(None, named, ahead)


def size_in_bytes(size: object, what: str) -> int:
    """Return the bytes of a size such as "2GiB", or of a number.

    Raises:
        InvalidArgumentError: it is neither; ``what`` names it.
    """
    try:
        size = as_bytes(size) if isinstance(size, str) else check_integer(what, size, 0)
    except ValueError:
        raise InvalidArgumentError(f"{what} must be a size such as '2GiB', or bytes (got {size!r})") from None
    return size


@collective("trainers")
def open_caches(
    session: Session, options: CacheOptions, fetchers: Sequence[FeatureFetcher[Any]]
) -> tuple[list[RowCache], int]:
    """Open the caches of a loader, and let its fetchers read through them.

    Args:
        session: the job.
        options: sizes and look-ahead that the user asked for.
        fetchers: gather the loader's features that may be remote; they read through the caches from now on.

    Returns:
        The caches, one for each feature; and the number of minibatches to sample ahead.

    Raises:
        FieldNameError: a size names a feature that the loader does not gather; on every trainer.
        SharedMemoryError: a node's shared memory cannot hold them; on every rank.
    """
    groups: dict[str, set[int]] = {}
    for fetcher in fetchers:
        for (_, name), tensor in fetcher.tensors.items():
            kind = "node" if tensor.rows.policy.is_node else "edge"
            group = "all" if options.total is not None else f"{kind} feature {name!r}"
            groups.setdefault(group, set()).add(tensor.rows.number)
    sizes = {f"{kind} feature {name!r}": size for (kind, name), size in options.named.items()}
    if options.total is not None:
        sizes = {"all": options.total}
    missing = [group for group in sizes if group != "all" and group not in groups]
    windows = [tensor.rows.window for fetcher in fetchers for tensor in fetcher.tensors.values()]
    on_disk = any(window.from_sources for window in windows)
    ahead = _default_ahead(session.world, on_disk) if options.lookahead == _AUTO else options.lookahead
    error = FieldNameError(f"cache: the loader gathers no {missing[0]}") if missing else None
    caches: dict[int, RowCache] = session.control.call(
        Operation.OPEN_CACHES, doing=_DOING, error=error, groups=_sized(groups, sizes), ahead=ahead
    )
    for fetcher in fetchers:
        for (kind, name), tensor in fetcher.tensors.items():
            rows = tensor.rows
            alike = kind, rows.window.free.tobytes()
            upcoming = fetcher.upcoming.setdefault(alike, UpcomingReads(rows.window))
            fetcher.readers[kind, name] = CachedRows(rows, caches[rows.number], upcoming, session.pool)
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
    free = free_for_caches(world) // (world.num_local_trainers * _OF_ONE)
    return world.allreduce_minmax(min(max(free, LOOKAHEAD), _MOST_AHEAD), False)


def _sized(groups: Mapping[str, set[int]], sizes: Mapping[str, int]) -> list[tuple[list[int], int]]:
    """Return numbers of tensors, each once, with their size; a tensor with several names takes the given size."""
    sized, seen = [], set[int]()
    for group in sorted(groups, key=lambda group: (group not in sizes, group)):
        sized.append((sorted(groups[group] - seen), sizes.get(group, 0)))
        seen |= groups[group]
    return [(numbers, size) for numbers, size in sized if numbers]
