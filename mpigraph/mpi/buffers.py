"""Window memory as numpy arrays."""

from typing import Any, cast

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

__all__ = ["as_array"]


def as_array(memory: MPI.buffer, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """View an MPI buffer as a writable array, without a copy. Local; no communication."""
    return np.frombuffer(cast(memoryview, memory), np.dtype(dtype))
