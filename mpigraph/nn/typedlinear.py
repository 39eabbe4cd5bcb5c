"""Matrices by type, plain or composed of fewer parameters, as in ``dgl.nn.TypedLinear`` and ``WeightBasis``."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from mpigraph.errors import InvalidArgumentError
from mpigraph.graphs.messages import take_rows
from mpigraph.nn.typed import Types, checked_types

_REGULARIZERS = (None, "basis", "bdd")


class WeightBasis(nn.Module):
    """Weights that are linear combinations of a few bases: ``W_o = sum over b of a_ob V_b``.

    Schlichtkrull et al., "Modeling relational data with graph convolutional networks", ESWC 2018.

    Args:
        shape: of one weight.
        num_bases: number of bases.
        num_outputs: number of weights.
    """

    def __init__(self, shape: tuple[int, ...], num_bases: int, num_outputs: int) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.num_bases = num_bases
        self.num_outputs = num_outputs
        self.weight = nn.Parameter(torch.empty(num_bases, *self.shape))
        self.w_comp = nn.Parameter(torch.empty(num_outputs, num_bases))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise bases and coefficients: Glorot uniform with the gain of ReLU."""
        for parameter in (self.weight, self.w_comp):
            nn.init.xavier_uniform_(parameter, gain=nn.init.calculate_gain("relu"))

    def forward(self) -> torch.Tensor:
        """Return all weights, [num_outputs, *shape]."""
        return torch.as_tensor(torch.tensordot(self.w_comp, self.weight, 1))


class TypedLinear(nn.Module):
    """A linear map for each type: ``y = x W_t`` where t is the type of the row x.

    * None: a matrix for each type.
    * basis: matrices that are linear combinations of ``num_bases`` ones.
    * bdd: block-diagonal matrices of ``num_bases`` blocks.

    Both from Schlichtkrull et al., "Modeling relational data with graph convolutional networks", ESWC 2018.

    Args:
        in_size: width of the input.
        out_size: width of the output.
        num_types: number of types.
        regularizer: None, "basis" or "bdd".
        num_bases: for "basis" and "bdd".

    Raises:
        InvalidArgumentError: another regularizer, ``num_bases`` missing or less than 1, or, for "bdd", a width that is
            no multiple of it.
    """

    def __init__(
        self, in_size: int, out_size: int, num_types: int, regularizer: str | None = None, num_bases: int | None = None
    ) -> None:
        super().__init__()
        if regularizer not in _REGULARIZERS:
            raise InvalidArgumentError(f"regularizer must be one of {_REGULARIZERS} (got {regularizer!r})")
        if regularizer is not None and (num_bases is None or num_bases < 1):
            raise InvalidArgumentError(f"num_bases must be at least 1 for {regularizer!r} (got {num_bases})")
        self.in_size = in_size
        self.out_size = out_size
        self.num_types = num_types
        self.regularizer = regularizer
        self.num_bases = num_bases
        blocks = num_bases if regularizer == "bdd" and num_bases is not None else 1
        if in_size % blocks or out_size % blocks:
            raise InvalidArgumentError(f"widths {in_size} and {out_size} must be multiples of num_bases {num_bases}")
        self._shape = num_types, blocks, in_size // blocks, out_size // blocks
        if regularizer == "bdd":
            self.W = nn.Parameter(torch.empty(num_types, in_size * out_size // blocks))
        elif regularizer == "basis" and num_bases is not None:
            self.W = nn.Parameter(torch.empty(num_bases, in_size, out_size))
            self.coeff = nn.Parameter(torch.empty(num_types, num_bases))
        else:
            self.W = nn.Parameter(torch.empty(num_types, in_size, out_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialise: weights uniform, as torch does for a linear map; coefficients Glorot uniform."""
        bound = 1 / math.sqrt(self._shape[2])  # the fan-in of an output, which in "bdd" is the width of a block
        nn.init.uniform_(self.W, -bound, bound)
        if self.regularizer == "basis":
            nn.init.xavier_uniform_(self.coeff, gain=nn.init.calculate_gain("relu"))

    def get_weight(self) -> torch.Tensor:
        """Return the matrices: [num_types, in_size, out_size], or the blocks of "bdd", a row for each type."""
        return torch.tensordot(self.coeff, self.W, 1) if self.regularizer == "basis" else self.W

    def of_groups(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Map [n, in_size] to [n, out_size]; the rows are sorted by type, and int64[num_types] counts their types."""
        return grouped_product(x, self.get_weight().reshape(self._shape), counts)

    def forward(self, x: torch.Tensor, x_type: Types, sorted_by_type: bool = False) -> torch.Tensor:
        """Map each row by the matrix of its type.

        Args:
            x: [n, in_size].
            x_type: int[n], in [0, num_types).
            sorted_by_type: the types ascend, which saves a sort.

        Returns:
            [n, out_size].

        Raises:
            InvalidArgumentError: not one type for each row, or one that is not in [0, num_types).
        """
        types = checked_types(x_type, x.shape[0], self.num_types, "x_type", x.device)
        counts = torch.bincount(types, minlength=self.num_types)
        if sorted_by_type:
            return self.of_groups(x, counts)
        order = torch.argsort(types, stable=True)
        rows = self.of_groups(x.index_select(0, order), counts)
        return torch.empty_like(rows).index_copy(0, order, rows)

    def extra_repr(self) -> str:
        """Describe the shape."""
        shape = f"{self.in_size}, {self.out_size}, num_types={self.num_types}"
        return f"{shape}, regularizer={self.regularizer!r}, num_bases={self.num_bases}"


def grouped_product(x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Multiply the rows of each group with the group's matrix, which may be block-diagonal: [n, blocks * out].

    There is no Python loop over groups, and no matrix is copied for each row.

    Args:
        x: [n, blocks * width], rows sorted by group.
        weight: [groups, blocks, width, out].
        counts: int64[groups], rows of each group.
    """
    if _has_kernel(x, weight):
        ends = counts.cumsum(0).to(torch.int32)
        product: torch.Tensor = F.grouped_mm(x.contiguous(), weight.squeeze(1).contiguous(), offs=ends)
        if product.requires_grad:
            # the backward kernel refuses expanded tensors, such as the gradient of a sum
            product.register_hook(torch.Tensor.contiguous)  # type: ignore[no-untyped-call]
        return product
    return _batched_product(x, weight, counts)


def _has_kernel(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether torch has a kernel: on CPU in float32, with rows of whole 16 bytes, from torch 2.10 on.

    Its rounding of a row depends on the size of the group. So it is for training only, and evaluation gives a node the
    same bits in any block.
    """
    _, blocks, width, out = weight.shape
    plain = (
        hasattr(F, "grouped_mm") and blocks == 1 and x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    )
    return plain and torch.is_grad_enabled() and width % 4 == 0 and out % 4 == 0 and x.shape[0] > 0


def _batched_product(x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Split the groups into tiles of one size, padded with zeros, for one batched product."""
    num_groups, blocks, width, out = weight.shape
    # few rows in a tile, so that padding, at most one tile for each group, costs little: half as many as there are,
    # unless groups are tiny; many enough for matrix products
    size = min(max(x.shape[0] // max(2 * num_groups, 1), 8), 512)
    tiles = (counts + (size - 1)) // size
    group = torch.repeat_interleave(tiles)
    # row i of a group that begins at row b and at tile t goes to row t * size + i - b
    shift = (tiles.cumsum(0) - tiles) * size - counts.cumsum(0) + counts
    place = torch.arange(x.shape[0], device=x.device) + torch.repeat_interleave(shift, counts, output_size=x.shape[0])
    padded = x.new_zeros(group.shape[0] * size, x.shape[1]).index_copy(0, place, x)
    left = padded.reshape(-1, size, blocks, width).transpose(1, 2)
    product = torch.matmul(left, take_rows(weight, group))
    return product.transpose(1, 2).reshape(-1, blocks * out).index_select(0, place)
