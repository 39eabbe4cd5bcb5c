"""The structure of one relation, grouped by destination (CSC), with the layouts that aggregation asks for.

Edges have two orders: the *edge id* order, in which users see features, and the *CSC* order, by destination.
In a block they are the same; in an in-memory graph ``perm`` leads from CSC position to edge id. Derived
layouts are made on first use and kept, so an instance must never change.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import torch


@dataclass(frozen=True, eq=False)
class InEdges:
    """Edges of one relation by destination.

    Attributes:
        indptr: int64[num_dst + 1]; the in-edges of destination d are positions indptr[d] to indptr[d + 1].
        indices: int32[num_edges] or int64[num_edges]; source of each edge, in CSC order.
        num_src: number of source nodes.
        perm: int64[num_edges], the edge id at each CSC position; None where that is the position itself.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    num_src: int
    perm: torch.Tensor | None = None

    @classmethod
    def from_coo(cls, src: torch.Tensor, dst: torch.Tensor, num_src: int, num_dst: int) -> "InEdges":
        """Group edges (src, dst: int64[num_edges]) by destination, keeping the order of edge ids within one."""
        perm: torch.Tensor | None = None
        if dst.numel() > 1 and bool((dst[1:] < dst[:-1]).any()):  # else perm would be the identity
            perm = torch.argsort(dst, stable=True)
            src = src[perm]
        return cls.of_degrees(torch.bincount(dst, minlength=num_dst), src, num_src, perm)

    @classmethod
    def of_degrees(
        cls, degrees: torch.Tensor, src: torch.Tensor, num_src: int, perm: torch.Tensor | None = None
    ) -> "InEdges":
        """Make the structure of edges that are already sorted by destination, from in-degrees int64[num_dst], and
        sources int64[num_edges] or int32[num_edges] and ``perm`` as attributes of the class.
        """
        # int32 where it fits: products with a sparse matrix are bound by memory, and indices are half of the traffic
        return cls(_indptr(degrees), src.to(torch.int32) if num_src < 2**31 else src, num_src, perm)

    @property
    def num_dst(self) -> int:
        """Number of destination nodes."""
        return self.indptr.shape[0] - 1

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.indices.shape[0]

    @cached_property
    def degrees(self) -> torch.Tensor:
        """In-degree of each destination, int64[num_dst]."""
        return self.indptr[1:] - self.indptr[:-1]

    @cached_property
    def dst(self) -> torch.Tensor:
        """Destination of each edge in CSC order, int64[num_edges]."""
        rows = torch.arange(self.num_dst, dtype=torch.int64, device=self.indptr.device)
        # output_size: on a GPU torch would otherwise wait for the sum of the degrees
        return torch.repeat_interleave(rows, self.degrees, output_size=self.num_edges)

    @cached_property
    def csr_index(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Row pointers and columns of the num_dst x num_src matrix; torch wants both in one integer type."""
        small = self.num_edges < 2**31 and self.indices.dtype == torch.int32
        dtype = torch.int32 if small else torch.int64
        return self.indptr.to(dtype), self.indices.to(dtype)

    @cached_property
    def transposed(self) -> tuple["InEdges", torch.Tensor]:
        """The same edges by source, and int64[num_edges], the CSC position of each edge in that order."""
        order = torch.argsort(self.indices, stable=True)  # stable: gradients are summed in one order, bit for bit
        rows = self.dst[order].to(self.indices.dtype)
        degrees = torch.bincount(self.indices, minlength=self.num_src)
        return InEdges(_indptr(degrees), rows, self.num_dst), order

    @cached_property
    def coo(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Source and destination of each edge by edge id, int64[num_edges] each."""
        return self.to_eid_order(self.indices.to(torch.int64)), self.to_eid_order(self.dst)

    def matrix(self, dtype: torch.dtype, values: torch.Tensor | None = None) -> torch.Tensor:
        """Return the sparse CSR matrix num_dst x num_src of values, [num_edges] in CSC order; None means ones of a
        dtype.

        The matrix of ones is kept.
        """
        if values is None and dtype in self._unit_matrices:
            return self._unit_matrices[dtype]
        _trigger_beta_warning()
        data = torch.ones(self.num_edges, dtype=dtype, device=self.indices.device) if values is None else values
        shape = self.num_dst, self.num_src
        matrix = torch.sparse_csr_tensor(*self.csr_index, data, shape, check_invariants=False)
        if values is None:
            self._unit_matrices[dtype] = matrix
        return matrix

    @cached_property
    def _unit_matrices(self) -> dict[torch.dtype, torch.Tensor]:
        return {}

    def to_csc_order(self, values: torch.Tensor) -> torch.Tensor:
        """Reorder rows from edge id order to CSC order."""
        return values if self.perm is None else values[self.perm]

    def to_eid_order(self, values: torch.Tensor) -> torch.Tensor:
        """Reorder rows from CSC order to edge id order."""
        if self.perm is None:
            return values
        inverse = torch.empty_like(self.perm)
        inverse[self.perm] = torch.arange(self.num_edges, device=self.perm.device)
        return values[inverse]

    def from_rows(self, rows: torch.Tensor, num_src: int) -> "InEdges":
        """Return the structure with ``rows[s]`` (int[num_src]) in place of each source ``s``, out of ``num_src``."""
        return InEdges(self.indptr, rows[self.indices], num_src, self.perm)

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "InEdges":
        """Return the structure with ``change(tensor)`` in place of every tensor; layouts already made move along."""
        perm = None if self.perm is None else change(self.perm)
        moved = InEdges(change(self.indptr), change(self.indices), self.num_src, perm)
        if "transposed" in self.__dict__:  # where cached_property keeps it; the other layouts are cheap to make again
            turned, order = self.transposed
            moved.__dict__["transposed"] = (turned.changed(change), change(order))
        return moved


@cache
def _trigger_beta_warning() -> None:
    """Trigger torch's one-time beta warning of CSR tensors while warnings are suppressed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor(torch.tensor([0, 0]), torch.tensor([], dtype=torch.int64), torch.tensor([]), (1, 1))


def _indptr(degrees: torch.Tensor) -> torch.Tensor:
    """Return the prefix sums of the degrees, int64[num_rows + 1], from 0 on."""
    indptr = torch.zeros(degrees.shape[0] + 1, dtype=torch.int64, device=degrees.device)
    torch.cumsum(degrees, 0, out=indptr[1:])
    return indptr
