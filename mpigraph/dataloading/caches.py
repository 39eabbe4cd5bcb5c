"""The caches of a loader: what the user asked for, how large they are, and the readers that go through them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpigraph.dataloading.fetcher import FeatureFetcher
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import FieldNameError, InvalidArgumentError, check_integer
from mpigraph.log import get_logger
from mpigraph.memory import as_bytes
from mpigraph.rows.lookahead import CachedRows, ReadCounts, UpcomingReads
from mpigraph.rows.row_cache import RowCache
from mpigraph.sampling.protocol import Operation
from mpigraph.session.context import Session

__all__ = ["LOOKAHEAD", "POLICIES", "CacheOptions", "Sizes", "check_cache", "open_caches"]

Sizes = str | int | Mapping[str, Mapping[str, str | int]] | None
"""``"auto"``; a size for all features together; ``{"node": {name: size}, "edge": {name: size}}``; None for no cache."""

POLICIES = ("lookahead", "vip", "degree")
LOOKAHEAD = 8
"""How many minibatches a loader samples ahead if nothing else is said: blocks of some MB each."""
_AUTO = -1  # bytes


@dataclass(frozen=True)
class CacheOptions:
    """What a user asked for.

    Attributes:
        total: bytes on each node for all features together, -1 for what fits; None where they are named.
        named: bytes on each node by "node" or "edge" and name of the feature.
        policy: one of :data:`POLICIES`.
        lookahead: how many minibatches are sampled ahead.
    """

    total: int | None
    named: dict[tuple[str, str], int]
    policy: str
    lookahead: int


def check_cache(cache: Sizes, cache_policy: str, lookahead: int | None) -> CacheOptions:
    """The checked options of a loader.

    Raises:
        InvalidArgumentError: they are not what :class:`.DistNodeDataLoader` says.
    """
    if cache_policy not in POLICIES:
        raise InvalidArgumentError(f"cache_policy must be one of {list(POLICIES)} (got {cache_policy!r})")
    ahead = LOOKAHEAD if cache is not None else 0
    ahead = ahead if lookahead is None else check_integer("lookahead", lookahead, 0, 1 << 20)
    if not isinstance(cache, Mapping):
        total = 0 if cache is None else _AUTO if cache == "auto" else _size(cache, "cache")
        return CacheOptions(total, {}, cache_policy, ahead)
    named: dict[tuple[str, str], int] = {}
    for kind, sizes in cache.items():
        if kind not in ("node", "edge") or not isinstance(sizes, Mapping):
            raise InvalidArgumentError(
                f"cache must be {{'node': {{name: size}}, 'edge': {{name: size}}}} (got {kind!r}: {sizes!r})"
            )
        named.update({(kind, name): _size(size, f"cache of {kind} feature {name!r}") for name, size in sizes.items()})
    return CacheOptions(None, named, cache_policy, ahead)


def _size(given: object, what: str) -> int:
    try:
        size = as_bytes(given) if isinstance(given, str) else check_integer(what, given, 0)
    except ValueError:
        raise InvalidArgumentError(f"{what} must be a size such as '2GiB', or bytes (got {given!r})") from None
    return size


def open_caches(
    session: Session, options: CacheOptions, fetchers: Sequence[FeatureFetcher[Any]], counts: ReadCounts
) -> list[RowCache]:
    """Make the caches of a loader, and let its fetchers read through them.

    Args:
        session: the job, some of whose hosts are far.
        options: what the user asked for.
        fetchers: gather the features of what a minibatch reaches.
        counts: of the loader.

    Returns:
        The caches, one for each feature that is stored with rows on several nodes.

    Raises:
        FieldNameError: a feature that is named is not one that the loader gathers; on every trainer.
        SharedMemoryError: a node's shared memory cannot hold them; on every rank.

    Collective on the trainers.
    """
    tensors: dict[int, tuple[str, DistTensor]] = {}
    for fetcher in fetchers:
        for (_, name), tensor in fetcher.tensors.items():
            kind = "node" if tensor.rows.policy.is_node else "edge"
            tensors[tensor.rows.number] = (f"{kind} {name}", tensor)
    numbers = sorted(tensors)
    groups: dict[str, list[int]] = {}
    for number in numbers:
        groups.setdefault("" if options.total is not None else tensors[number][0], []).append(number)
    wanted = (
        {"": options.total}
        if options.total is not None
        else {f"{kind} {name}": size for (kind, name), size in options.named.items()}
    )
    absent = [group for group in wanted if group and group not in groups]
    if absent:
        error = FieldNameError(f"cache: the loader gathers no {absent[0].replace(' ', ' feature ', 1)!r}")
        session.control.call(Operation.OPEN_CACHES, doing="making caches", error=error)
    made: dict[int, RowCache] = session.control.call(
        Operation.OPEN_CACHES,
        doing="making caches",
        groups=[[numbers, wanted.get(group, 0)] for group, numbers in groups.items()],
        ahead=options.lookahead,
    )
    upcoming: dict[Any, UpcomingReads] = {}
    for fetcher in fetchers:
        for key, tensor in fetcher.tensors.items():
            rows = tensor.rows
            reads = upcoming.setdefault((id(fetcher), rows.policy), UpcomingReads(rows.window))
            fetcher.readers[key] = CachedRows(rows, made[rows.number], reads, counts, session.pool)
        fetcher.upcoming = {kind: upcoming[id(fetcher), t.rows.policy] for (kind, _), t in fetcher.tensors.items()}
    for cache in made.values():
        size = cache.per_trainer * session.world.num_local_trainers * cache.rows.window.row_bytes
        get_logger().info(
            "cache of far rows of %r on this node: %.1f MiB, policy %s, %d minibatches ahead",
            cache.rows.name,
            size / 2**20,
            options.policy,
            options.lookahead,
        )
    return list(made.values())
