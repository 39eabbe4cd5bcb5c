"""Divide the selected nodes or edges among the trainers.

Ids are ranges by part and parts lie in host order, so consecutive pieces of the selected ids, given to trainers in
rank order, are mostly local without looking at any table.
"""

from collections.abc import Sequence
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch

from mpigraph.arrays import I64
from mpigraph.distgraph.partition_book import RangePartitionBook
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import InvalidArgumentError, MaskLengthError, PartitionError, TensorMismatchError, check_integer
from mpigraph.graphs.fields import EdgeType, as_tensor
from mpigraph.metadata.schema import Schema
from mpigraph.rows.row_tensor import Policy
from mpigraph.session.context import Session, current

MaskLike: TypeAlias = DistTensor | torch.Tensor | npt.NDArray[np.generic] | Sequence[bool]
"""One entry for each node of a type or edge of a relation; non-zero is selected."""

_BLOCK = 1 << 22  # mask entries read at a time


def node_split(
    nodes: MaskLike,
    partition_book: RangePartitionBook | None = None,
    ntype: str | None = None,
    rank: int | None = None,
    force_even: bool = True,
    node_trainer_ids: MaskLike | None = None,
) -> torch.Tensor:
    """Return the selected nodes that this trainer works on.

    Args:
        nodes: a mask with 0 or 1 for each node of the type (tensor, ndarray or DistTensor); 1 is selected. Or
            ``arange`` of their number, which means all of them; for DGL it is a mask, which leaves out the first. Of
            one or two nodes ``[0]`` and ``[0, 1]`` could be either: give a mask of bool.
        partition_book: the book; needed for plain masks when several graphs are open.
        ntype: the node type; may be left out if there is one, or if the mask is a DistTensor, which knows.
        rank: whose share; this trainer's by default.
        force_even: shares differ by at most one node: trainer t gets the t-th of equal consecutive pieces of the
            selected ids. Else: the selected ids on this trainer's node, divided among the trainers there.
        node_trainer_ids: without effect: any number of trainers share a part.

    Of a DistTensor of bool, uint8 or int8 a trainer reads the rows that its own piece lies in; the selected rows of the
    others were counted when the graph was loaded, or in the first collective call after a write. Other masks, and those
    that this trainer wrote since, are read whole. Writes of other trainers count after :meth:`DistGraph.barrier`.

    Returns:
        int64[n], ascending.

    Raises:
        MaskLengthError: the mask does not have one entry for each node.
        InvalidArgumentError: it has numbers other than 0 and 1, as ids are, or integers that could be both, or no
            numbers, or there is no trainer ``rank``.
        NodeTypeError: the type does not exist, or was left out where there are several (EdgeTypeError for edges).
        TensorMismatchError: the mask is a DistTensor of another type.

    One-sided; every trainer can call it alone.

    Example:
        >>> nodes = mpigraph.distributed.node_split(g.ndata["train_mask"])
    """
    return _split(nodes, partition_book, True, ntype, rank, force_even)


def edge_split(
    edges: MaskLike,
    partition_book: RangePartitionBook | None = None,
    etype: EdgeType = None,
    rank: int | None = None,
    force_even: bool = True,
    edge_trainer_ids: MaskLike | None = None,
) -> torch.Tensor:
    """Return the selected edges that this trainer works on; the arguments are those of :func:`node_split`.

    One-sided; every trainer can call it alone.

    Example:
        >>> edges = mpigraph.distributed.edge_split(torch.ones(g.num_edges(), dtype=torch.bool))
    """
    return _split(edges, partition_book, False, etype, rank, force_even)


def _split(
    mask: MaskLike,
    partition_book: RangePartitionBook | None,
    is_node: bool,
    kind: EdgeType,
    rank: int | None,
    even: bool,
) -> torch.Tensor:
    session = current()
    rank = session.rank if rank is None else check_integer("rank", rank, 0, session.num_trainers - 1)
    if partition_book is not None and not isinstance(partition_book, RangePartitionBook):
        raise InvalidArgumentError(f"partition_book must be a RangePartitionBook (got {partition_book!r})")
    graph = _graph_of(session, mask, partition_book)
    topology = session.store.graphs[graph].topology
    policy = _policy_of(topology.config.schema, mask, is_node, kind)
    offsets = policy.offsets(topology.hosts)
    _check_length(mask, int(offsets[-1]), "node" if is_node else "edge")
    if isinstance(mask, torch.Tensor | np.ndarray | list | tuple) and _is_every_id(as_tensor(mask)):
        mask = np.ones(len(mask), np.bool_)
    if even:
        hosts, index, pieces = list(range(len(offsets) - 1)), rank, session.num_trainers
    else:  # the selected ids on the trainer's node
        hosts, index, pieces = session.world.neighbourhood(rank)
    counts = session.store.mask_counts(mask.rows) if isinstance(mask, DistTensor) else None
    ids = None if counts is None else _counted_share(mask, counts.blocks(hosts), index, pieces)
    if ids is None:
        ranges = [(0, len(mask))] if even else [(int(offsets[h]), int(offsets[h + 1])) for h in hosts]
        ids = _share(mask, ranges, index, pieces)
    return torch.from_numpy(ids)


def _graph_of(session: Session, mask: MaskLike, partition_book: RangePartitionBook | None) -> str:
    if isinstance(mask, DistTensor):
        return mask.graph_name
    graphs = session.store.graphs
    if partition_book is not None:
        graphs = {n: g for n, g in graphs.items() if g.topology.config.book is partition_book.book}
    if len(graphs) != 1:
        raise PartitionError(f"give the partition_book of an open graph ({len(graphs)} graphs fit)")
    return next(iter(graphs))


def _policy_of(schema: Schema, mask: MaskLike, is_node: bool, kind: EdgeType) -> Policy:
    """Return the type that is split: the one that was named, else that of the rows of a DistTensor."""
    known = mask.rows.policy if isinstance(mask, DistTensor) else None
    if kind is None and known is not None and known.is_node == is_node:
        return known
    named = Policy(is_node, schema.ntype_id(cast(str | None, kind)) if is_node else schema.relation_id(kind))
    if not isinstance(mask, DistTensor):
        return named
    if named != known:
        kind = schema.ntypes[named.type_id] if is_node else schema.relations[named.type_id]
        raise TensorMismatchError(f"mask {mask.name!r} is of {mask.part_policy.policy_str!r}, not of {kind!r}")
    return named


def _check_length(mask: MaskLike, count: int, what: str) -> None:
    shape = tuple(mask.shape) if hasattr(mask, "shape") else np.shape(mask)
    if shape != (count,):
        raise MaskLengthError(f"the mask must have one entry for each of {count} {what}s, not ids (got shape {shape})")


def _is_every_id(values: torch.Tensor) -> bool:
    """Return whether this is ``arange``: the ids of all nodes or edges, which DGL's scripts give to infer, and no mask.

    Raises:
        InvalidArgumentError: it could be both, as of one or two nodes or edges.
    """
    no_integers = values.dtype.is_floating_point or values.dtype.is_complex or values.dtype == torch.bool
    if no_integers or values.element_size() == 1 or not len(values):  # integers of a byte are DGL's masks
        return False
    if int(values[-1]) != len(values) - 1 or not torch.equal(values.long().cpu(), torch.arange(len(values))):
        return False
    if len(values) < 3:
        raise InvalidArgumentError(
            f"the integers {values.tolist()} are a mask as well as the ids of all {len(values)} nodes or edges: give a "
            "mask of bool (torch.ones(n, dtype=torch.bool) selects all)"
        )
    return True


def _selected(mask: MaskLike, begin: int, end: int) -> I64:
    tensor = as_tensor(mask[begin:end]).detach().cpu()
    values = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()  # numpy has no bfloat16
    if values.dtype != np.uint8 and ((values != 0) & (values != 1)).any():  # DGL's masks of uint8 have any number
        got = f"numbers from {values.min()} to {values.max()}"
        raise InvalidArgumentError(f"a mask has 0 or 1 for each node or edge, not their ids (got {got})")
    return np.flatnonzero(values) + begin


def _bounds(count: int, index: int, pieces: int) -> tuple[int, int]:
    """Return begin and end of piece ``index`` of ``count`` entries; the first pieces get the remainder."""
    small, larger = divmod(count, pieces)
    begin = index * small + min(index, larger)
    return begin, begin + small + (index < larger)


def _share(mask: MaskLike, ranges: Sequence[tuple[int, int]], index: int, pieces: int) -> I64:
    """Return piece ``index`` of equal pieces of the selected ids in some ranges.

    The mask is read block by block, and a second time only where the piece lies.
    """
    blocks = [(first, min(first + _BLOCK, end)) for begin, end in ranges for first in range(begin, end, _BLOCK)]
    ends = np.cumsum([len(_selected(mask, *block)) for block in blocks], dtype=np.int64).tolist()
    begin, end = _bounds(ends[-1] if ends else 0, index, pieces)
    ids = [np.empty(0, np.int64)]
    for block, first, last in zip(blocks, [0, *ends], ends, strict=False):
        if max(first, begin) < min(last, end):
            ids.append(_selected(mask, *block)[max(begin - first, 0) : end - first])
    return np.concatenate(ids)


def _counted_share(mask: MaskLike, blocks: tuple[I64, I64, I64], index: int, pieces: int) -> I64 | None:
    """Return the piece of :func:`_share` of a counted mask, reading only its blocks; None if the mask has changed.

    ``blocks`` are those with selected ids: first ids, ids behind them, and counts, each int64[n].
    """
    firsts, lasts, counts = blocks
    ends = np.cumsum(counts)
    begin, end = _bounds(int(counts.sum()), index, pieces)
    own = np.flatnonzero((ends - counts < end) & (ends > begin))
    if begin == end:
        return np.empty(0, np.int64)
    ids = np.concatenate([_selected(mask, *stretch) for stretch in _stretches(firsts[own], lasts[own])])
    if len(ids) != counts[own].sum():
        return None
    before = int(ends[own[0]] - counts[own[0]])
    return ids[begin - before : end - before]


def _stretches(firsts: I64, lasts: I64) -> list[tuple[int, int]]:
    """Merge blocks that lie next to each other, and divide what is too large to be read at a time."""
    new = np.append(True, firsts[1:] != lasts[:-1])
    return [
        (at, min(at + _BLOCK, last))
        for first, last in zip(firsts[new].tolist(), lasts[np.roll(new, -1)].tolist(), strict=True)
        for at in range(first, last, _BLOCK)
    ]
