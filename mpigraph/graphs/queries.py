"""Questions about the edges of a graph or block in memory, with the names of DGL's methods."""

from typing import Any

import torch

from mpigraph.errors import GraphDataError, InvalidArgumentError
from mpigraph.graphs.fields import EdgeType, IdsLike, as_ids, is_number
from mpigraph.graphs.in_memory import check_range
from mpigraph.graphs.inedges import InEdges
from mpigraph.graphs.message_passing import MessagePassing
from mpigraph.metadata.schema import Relation

__all__ = ["Queries"]


class Queries(MessagePassing):
    """A graph or block whose edges can be looked up by their ends. Ids of a block are positions."""

    def has_edges_between(self, u: IdsLike, v: IdsLike, etype: EdgeType = None) -> Any:
        """Return whether there is an edge from ``u[i]`` to ``v[i]``.

        Args:
            u: int[n], sources; one is for all ``v``.
            v: int[n], destinations; one is for all ``u``.
            etype: the relation; None means the only one.

        Returns:
            bool[n]; a bool if ``u`` and ``v`` are numbers.

        Raises:
            OutOfRangeError: a node does not exist.
            InvalidArgumentError: ids that are not integers, or different numbers of them.
        """
        relation = self.to_canonical_etype(etype)
        _, counts = self._places(relation, *self._ends(u, v, relation))
        return bool(counts[0] > 0) if is_number(u) and is_number(v) else counts > 0

    def edge_ids(self, u: IdsLike, v: IdsLike, return_uv: bool = False, etype: EdgeType = None) -> Any:
        """Return the ids of the edges from ``u[i]`` to ``v[i]``.

        Args:
            u: int[n], sources; one is for all ``v``.
            v: int[n], destinations; one is for all ``u``.
            return_uv: return all edges of each pair, and none where there is none.
            etype: the relation; None means the only one.

        Returns:
            int64[n], of parallel edges the first; an int if ``u`` and ``v`` are numbers. With ``return_uv`` sources,
            destinations and ids, int64 each, the edges of a pair one after the other.

        Raises:
            OutOfRangeError: a node does not exist.
            GraphDataError: a pair has no edge, without ``return_uv``.
            InvalidArgumentError: ids that are not integers, or different numbers of them.
        """
        relation = self.to_canonical_etype(etype)
        src, dst = self._ends(u, v, relation)
        first, counts = self._places(relation, src, dst)
        eids = self._by_ends(relation)[1]
        if return_uv:
            places = _expanded(first, counts)
            return src.repeat_interleave(counts), dst.repeat_interleave(counts), eids[places]
        if bool((counts == 0).any()):
            pair = int((counts == 0).nonzero()[0])
            raise GraphDataError(f"there is no edge of {relation} from {int(src[pair])} to {int(dst[pair])}")
        found = eids[first]
        return int(found) if is_number(u) and is_number(v) else found

    def in_edges(self, v: IdsLike, form: str = "uv", etype: EdgeType = None) -> Any:
        """Return the edges into nodes, node by node in the order of ``v``, those of a node by their ids.

        Args:
            v: int[n], destinations.
            form: "uv" for (src, dst), "eid" for the ids, "all" for (src, dst, eid); int64 each.
            etype: the relation; None means the only one.

        Raises:
            OutOfRangeError: a node does not exist.
            InvalidArgumentError: another ``form``, or ids that are not integers.
        """
        relation = self.to_canonical_etype(etype)
        dst, src, eids = self._neighbours(self._in_edges(relation), v, form, relation[2])
        return {"uv": (src, dst), "eid": eids, "all": (src, dst, eids)}[form]

    def out_edges(self, u: IdsLike, form: str = "uv", etype: EdgeType = None) -> Any:
        """Return the edges out of nodes, node by node in the order of ``u``, those of a node by their ids.

        Arguments and errors are those of :meth:`in_edges`, with sources in place of destinations.
        """
        relation = self.to_canonical_etype(etype)
        src, dst, eids = self._neighbours(self._out_edges(relation), u, form, relation[0])
        return {"uv": (src, dst), "eid": eids, "all": (src, dst, eids)}[form]

    def predecessors(self, v: IdsLike, etype: EdgeType = None) -> torch.Tensor:
        """Return the sources of the edges into a node, int64[in-degree]."""
        return torch.as_tensor(self.in_edges(v, etype=etype)[0])

    def successors(self, v: IdsLike, etype: EdgeType = None) -> torch.Tensor:
        """Return the destinations of the edges out of a node, int64[out-degree]."""
        return torch.as_tensor(self.out_edges(v, etype=etype)[1])

    def _out_edges(self, relation: Relation) -> InEdges:
        """Return the edges of a relation by source: "destinations" are the sources."""

        def turned() -> InEdges:
            src, dst = self._coo(relation)
            frames = self._frames_of(relation)
            return InEdges.from_coo(dst, src, frames[1].num_rows, frames[0].num_rows)

        return self._once(("out-edges", relation), turned)

    def _by_ends(self, relation: Relation) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the edges in the order of source, then destination: a number for each pair, and their ids."""

        def ordered() -> tuple[torch.Tensor, torch.Tensor]:
            src, dst = self._coo(relation)
            keys, eids = torch.sort(src * self._frames_of(relation)[1].num_rows + dst, stable=True)
            return keys, eids

        return self._once(("by ends", relation), ordered)

    def _places(self, relation: Relation, src: torch.Tensor, dst: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return where the edges of each pair begin in :meth:`_by_ends`, and how many they are; int64[n] each."""
        keys = self._by_ends(relation)[0]
        wanted = src * self._frames_of(relation)[1].num_rows + dst
        first = torch.searchsorted(keys, wanted)
        return first, torch.searchsorted(keys, wanted, right=True) - first

    def _ends(self, u: IdsLike, v: IdsLike, relation: Relation) -> tuple[torch.Tensor, torch.Tensor]:
        """Return checked sources and destinations, int64[n] each."""
        frames = self._frames_of(relation)
        src, dst = as_ids(u, "source ids").to(self.device), as_ids(v, "destination ids").to(self.device)
        for ids, frame, ntype in zip((src, dst), frames, relation[::2], strict=False):
            check_range(ids, frame.num_rows, f"node of type {ntype!r}")
        if len(src) != len(dst) and 1 not in (len(src), len(dst)):
            raise InvalidArgumentError(f"an edge has two ends (got {len(src)} sources and {len(dst)} destinations)")
        most = max(len(src), len(dst)) if len(src) and len(dst) else 0
        return src.expand(most), dst.expand(most)

    def _neighbours(
        self, edges: InEdges, nodes: IdsLike, form: str, ntype: str
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the nodes of each edge of ``nodes``, what is at its other end, and its id."""
        if form not in ("uv", "eid", "all"):
            raise InvalidArgumentError(f"form must be 'uv', 'eid' or 'all' (got {form!r})")
        ids = as_ids(nodes, "node ids").to(self.device)
        check_range(ids, edges.num_dst, f"node of type {ntype!r}")
        counts = edges.degrees[ids]
        places = _expanded(edges.indptr[ids], counts)
        eids = places if edges.perm is None else edges.perm[places]
        return ids.repeat_interleave(counts), edges.indices[places].long(), eids


def _expanded(first: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return first[i], first[i] + 1, ... counts[i] of them, one after the other: int64[sum of the counts]."""
    begins = (first - counts.cumsum(0) + counts).repeat_interleave(counts)
    return begins + torch.arange(begins.shape[0], device=begins.device)
