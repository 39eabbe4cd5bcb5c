"""The caches of a loader: what the user asked for, how large they are, and the readers that go through them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpigraph.arrays import I64
from mpigraph.dataloading.fetcher import Stages
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import FieldNameError, InvalidArgumentError, MPIGraphError, check_integer
from mpigraph.log import get_logger
from mpigraph.memory import as_bytes
from mpigraph.rows.lookahead import CachedRows, ReadCounts, UpcomingReads
from mpigraph.rows.row_cache import RowCache
from mpigraph.rows.row_tensor import Policy
from mpigraph.sampling.hot_rows import hot_rows
from mpigraph.sampling.minibatch import SamplingPlan
from mpigraph.sampling.protocol import Operation

__all__ = ["LOOKAHEAD", "POLICIES", "CacheOptions", "Epochs", "Sizes", "check_cache", "open_caches"]

Sizes = str | int | Mapping[str, Mapping[str, str | int]] | None
"""``"auto"``; a size for all features together; ``{"node": {name: size}, "edge": {name: size}}``; None for no cache."""

POLICIES = ("lookahead", "vip", "degree")
LOOKAHEAD = 8
"""How many minibatches a loader samples ahead if nothing else is said: blocks of some MB each."""
_AUTO = -1  # bytes
_DOING = "making caches"


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
        total = 0 if cache is None else _AUTO if cache == "auto" else size_in_bytes(cache, "cache")
        return CacheOptions(total, {}, cache_policy, ahead)
    named: dict[tuple[str, str], int] = {}
    for kind, sizes in cache.items():
        if kind not in ("node", "edge") or not isinstance(sizes, Mapping):
            raise InvalidArgumentError(
                f"cache must be {{'node': {{name: size}}, 'edge': {{name: size}}}} (got {kind!r}: {sizes!r})"
            )
        for name, size in sizes.items():
            named[kind, name] = size_in_bytes(size, f"cache of {kind} feature {name!r}")
    return CacheOptions(None, named, cache_policy, ahead)


def size_in_bytes(given: object, what: str) -> int:
    """Bytes of a size such as "2GiB", or of a number of them.

    Raises:
        InvalidArgumentError: it is none of these; names ``what`` it is of.
    """
    try:
        size = as_bytes(given) if isinstance(given, str) else check_integer(what, given, 0)
    except ValueError:
        raise InvalidArgumentError(f"{what} must be a size such as '2GiB', or bytes (got {given!r})") from None
    return size


@dataclass(frozen=True)
class Epochs:
    """What the epochs of a loader are like, for policies that ask what is likely to be read.

    Attributes:
        g: the graph.
        sampler: draws the minibatches.
        batch_size: most seeds of a minibatch.
        steps: minibatches of an epoch of this trainer.
        stages: how they are made.
    """

    g: DistGraph
    sampler: Any
    batch_size: int
    steps: int
    stages: Stages[Any]


def open_caches(options: CacheOptions, epochs: Epochs, counts: ReadCounts) -> list[RowCache]:
    """Make the caches of a loader, and let its fetchers read through them.

    Args:
        options: what the user asked for.
        epochs: of the loader, which gathers features that may be far.
        counts: of the loader.

    Returns:
        The caches, one for each feature.

    Raises:
        FieldNameError: a feature that is named is not one that the loader gathers; on every trainer.
        InvalidArgumentError: the policy cannot be used with this sampler, or these features; on every trainer.
        SharedMemoryError: a node's shared memory cannot hold them; on every rank.

    Collective on the trainers.
    """
    g, fetchers = epochs.g, epochs.stages.inputs
    session = g.session
    tensors: dict[int, DistTensor] = {}
    groups: dict[str, set[int]] = {}
    for fetcher in fetchers:
        for (_, name), tensor in fetcher.tensors.items():
            kind = "node" if tensor.rows.policy.is_node else "edge"
            group = "all" if options.total is not None else f"{kind} feature {name!r}"
            groups.setdefault(group, set()).add(tensor.rows.number)
            tensors[tensor.rows.number] = tensor
    sizes = {f"{kind} feature {name!r}": size for (kind, name), size in options.named.items()}
    if options.total is not None:
        sizes = {"all": options.total}
    plan: SamplingPlan | None = None
    try:
        for group in sizes:
            if group != "all" and group not in groups:
                raise FieldNameError(f"cache: the loader gathers no {group}")
        if options.policy != "lookahead":
            plan = _plan(epochs, options.policy, list(tensors.values()))
    except MPIGraphError as error:
        session.control.call(Operation.OPEN_CACHES, doing=_DOING, error=error)
        raise
    made: dict[int, RowCache] = session.control.call(
        Operation.OPEN_CACHES,
        doing=_DOING,
        groups=_sized(groups, sizes),
        ahead=options.lookahead,
        policy=options.policy,
    )
    hot = {} if plan is None else _hot(epochs, plan, options.policy, made)
    for fetcher in fetchers:
        for (kind, name), tensor in fetcher.tensors.items():
            rows = tensor.rows
            upcoming = fetcher.upcoming.setdefault(kind, UpcomingReads(rows.window))
            kept = hot.get(rows.number)
            reader = CachedRows(rows, made[rows.number], upcoming, counts, session.pool, kept)
            fetcher.readers[kind, name] = reader
    for cache in made.values():
        nbytes = cache.per_trainer * session.world.num_local_trainers * cache.rows.window.row_bytes
        text = "cache of far rows of %r on this node: %.1f MiB, policy %s, %d minibatches ahead"
        get_logger().info(text, cache.rows.name, nbytes / 2**20, options.policy, options.lookahead)
    return list(made.values())


def _sized(groups: Mapping[str, set[int]], sizes: Mapping[str, int]) -> list[tuple[list[int], int]]:
    """Numbers of tensors, each once, and the size for them; a tensor of several names has a size that was given."""
    found, seen = [], set[int]()
    for group in sorted(groups, key=lambda group: (group not in sizes, group)):
        found.append((sorted(groups[group] - seen), sizes.get(group, 0)))
        seen |= groups[group]
    return [(numbers, size) for numbers, size in found if numbers]


def _plan(epochs: Epochs, policy: str, tensors: Sequence[DistTensor]) -> SamplingPlan:
    """How the sampler draws. Raises InvalidArgumentError if the policy cannot know what is read often."""
    if not hasattr(epochs.sampler, "plan"):
        raise InvalidArgumentError(
            f"cache_policy {policy!r} needs a sampler like NeighborSampler (got {type(epochs.sampler).__name__})"
        )
    if policy == "degree" and not all(tensor.rows.policy.is_node for tensor in tensors):
        raise InvalidArgumentError("cache_policy 'degree' is for features of nodes: edges have no degree")
    plan: SamplingPlan = epochs.sampler.plan(epochs.g)
    return plan


def _hot(epochs: Epochs, plan: SamplingPlan, policy: str, caches: dict[int, RowCache]) -> dict[int, I64]:
    """By tensor, the rows that this trainer keeps all the time. Collective on the trainers."""
    world = epochs.g.session.world
    capacities: dict[Policy, int] = {}
    for cache in caches.values():
        of_node = cache.per_trainer * world.num_local_trainers
        capacities[cache.rows.policy] = max(capacities.get(cache.rows.policy, 0), of_node)
    found = hot_rows(
        world,
        epochs.g.loaded,
        plan,
        epochs.stages.seed_nodes(),
        epochs.batch_size * epochs.stages.nodes_per_seed,
        epochs.steps,
        policy,
        capacities,
        expand_once=epochs.stages.expand_once,
    )
    return {
        number: found[cache.rows.policy][world.local_trainer :: world.num_local_trainers][: cache.per_trainer]
        for number, cache in caches.items()
    }
