"""Rows of a table, gathered on first access.

A sum over neighbours reads each row of a block's sources about once. Gathering the rows first costs several times as
much as the sum: they are read, written and read again, mostly in memory, since blocks do not fit in caches. So the
sources of a block can be a :class:`TableRows`. It has the values of the gathered rows, but :func:`.spmm` reads them
directly from the table. All other operations gather the rows first.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

_Tensor = torch.Tensor
_KNOWN_WITHOUT_ROWS: set[Callable[..., Any]] = {
    *(getattr(_Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_sparse")),
    *(_Tensor.dim, _Tensor.size, _Tensor.numel, _Tensor.__len__, _Tensor.is_floating_point),
}


class TableRows(torch.Tensor):
    """``table[rows]``, gathered on first access and kept from then on, also when it is written to.

    Attributes:
        table: [num_rows, ...], on the CPU; never written through this tensor.
        rows: int[n].
    """

    table: torch.Tensor
    rows: torch.Tensor
    _gathered: torch.Tensor | None

    @staticmethod
    def __new__(cls, table: torch.Tensor, rows: torch.Tensor) -> "TableRows":  # noqa: D102
        shape = (len(rows), *table.shape[1:])
        tensor: TableRows = _Tensor._make_wrapper_subclass(cls, shape, dtype=table.dtype)  # type: ignore[attr-defined]
        tensor.table, tensor.rows, tensor._gathered = table, rows, None
        return tensor

    @property
    def in_place(self) -> bool:
        """True until the rows are gathered."""
        return self._gathered is None

    def gathered(self) -> torch.Tensor:
        """Return the rows, always the same tensor, made outside of any tracing mode."""
        if self._gathered is None:
            with _disable_current_modes(), torch.inference_mode(False):
                self._gathered = self.table.index_select(0, self.rows)
        return self._gathered

    def first(self, n: int) -> torch.Tensor:
        """Return the first ``n`` rows, for reading."""
        return self.table.index_select(0, self.rows[:n]) if self._gathered is None else self._gathered[:n]

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run operations from Python on the gathered rows; shape and dtype are known without them."""
        if func in _KNOWN_WITHOUT_ROWS and args[0].in_place:
            with torch._C.DisableTorchFunctionSubclass():  # type: ignore[attr-defined]
                return func(*args, **(kwargs or {}))
        return _with_gathered(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run operations from C++, such as a scripted module, on the gathered rows."""
        return _with_gathered(func, args, kwargs)


def first_rows(x: torch.Tensor, n: int) -> torch.Tensor:
    """Return ``x[:n]``, for reading, without gathering the other rows."""
    return x.first(n) if isinstance(x, TableRows) else x[:n]


def _with_gathered(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
    def plain(x: Any) -> Any:
        return x.gathered() if isinstance(x, TableRows) else x

    return func(*tree_map(plain, tuple(args)), **tree_map(plain, dict(kwargs or {})))
