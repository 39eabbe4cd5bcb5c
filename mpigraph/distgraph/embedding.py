"""DistEmbedding: rows that learn, one for each node of a type or edge of a relation.

Reading rows is one-sided, as in any :class:`DistTensor`. Each read with gradients on is recorded with the tensor that
it returned; a sparse optimizer (``optim/``) later takes the gradients that ``backward`` has left there. A read stays
recorded as long as its tensor can still get a gradient: loaders read ahead. There is no copy of the rows on the
trainers.
"""

import os
import threading
from typing import Any, NamedTuple

import torch
from torch.utils.weak import TensorWeakRef

from mpigraph.arrays import I64
from mpigraph.collective import collective
from mpigraph.distgraph.new_tensor import InitFunc
from mpigraph.distgraph.partition_book import PartitionPolicy
from mpigraph.distgraph.tensor import DistTensor, RowSource
from mpigraph.distgraph.typed_ids import to_rows
from mpigraph.errors import InvalidArgumentError, check_state
from mpigraph.rows.owners import RowOwners

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Lookup(NamedTuple):
    """One read that may be followed by ``backward``."""

    ids: I64  # [n], the rows
    leaf: torch.Tensor  # float32[n, dim], the rows as they were read; its ``grad`` is that of the rows


class DistEmbedding:
    """A learnable row for each node of a type, or edge of a relation, spread over the hosts.

    ``emb(ids)`` reads rows, from any trainer, and :class:`~mpigraph.distributed.optim.SparseAdagrad` or one of its kind
    trains them. A read sees what every trainer's last ``step()`` wrote. Without a ``step()`` after each ``backward``
    the records of the reads pile up; :meth:`reset_trace` drops them. Several threads may read at once.

    Attributes:
        weight: the rows, a :class:`DistTensor` [num_embeddings, embedding_dim]. The other trainers see writes to it
            after :meth:`DistGraph.barrier`.
        num_embeddings: number of rows.
        embedding_dim: elements of a row.
        optm_state: the state of the optimizer made last for these rows, DistTensors by name.

    One-sided: the call.

    Example:
        >>> embedding = mpigraph.distributed.DistEmbedding(g.num_nodes(), 8)
        >>> rows = embedding([0, 1])  # a tensor that requires gradients
    """

    @collective("trainers")
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        name: str | None = None,
        init_func: InitFunc | None = None,
        part_policy: PartitionPolicy | None = None,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Create the rows, or attach to those of this name that every trainer still holds.

        Args:
            num_embeddings: the number of nodes of a type or edges of a relation.
            embedding_dim: elements of a row, at least 1.
            name: a name to attach to the rows by; None makes anonymous rows.
            init_func: ``init_func(shape, dtype) -> tensor`` makes rows, as for :class:`.DistTensor`; zeros if None.
            part_policy: the node type or relation of the rows; inferred from ``num_embeddings`` if None.
            dtype: the dtype in memory: float32, float16 or bfloat16. Rows are read, and their gradients and optimizer
                state are kept, in float32; an update rounds a 16-bit row once.

        Raises:
            TensorMismatchError: no type has so many rows, or several have; or the name exists with another shape,
                dtype or policy.
            InvalidArgumentError: ``embedding_dim`` is less than 1, ``dtype`` is another, ``name`` is no string, or
                ``init_func`` cannot be called or returns rows of another shape.
            CollectiveError: ``init_func`` raised.

        All of these are raised on every trainer, even if only one has the reason.
        """

        def check() -> None:
            if embedding_dim < 1:
                raise InvalidArgumentError(f"embedding_dim must be an integer >= 1 (got {embedding_dim!r})")
            if dtype not in _DTYPES:
                raise InvalidArgumentError(f"dtype must be one of {', '.join(map(str, _DTYPES))} (got {dtype!r})")

        shape = (num_embeddings, embedding_dim)
        self.weight = DistTensor.filled(shape, dtype, name, None, part_policy, init_func, "embedding", check)
        self.num_embeddings, self.embedding_dim = self.weight.shape
        self.optm_state: dict[str, DistTensor] | None = None
        self.trace: list[Lookup] = []
        self._lock = threading.Lock()  # a loader may read ahead in a thread during a step

    @property
    def name(self) -> str:
        """The name of its creation, or a generated one."""
        return self.weight.name

    data_name = name

    @property
    def part_policy(self) -> PartitionPolicy:
        """The node type or relation of the rows."""
        return self.weight.part_policy

    @property
    def owners(self) -> RowOwners:
        """The trainer that updates each row."""
        rows = self.weight.rows
        return RowOwners(rows.window.world, rows.offsets)

    def __call__(self, idx: Any, device: torch.device | str = "cpu") -> torch.Tensor:
        """Read rows in the order of ``idx``. One-sided.

        Args:
            idx: int[n], tensor, array or list; rows may repeat.
            device: the device of the result.

        Returns:
            float32[n, embedding_dim] on the device, whatever the dtype of the rows. With gradients on
            (``torch.is_grad_enabled()``) a leaf that requires them, remembered for the optimizer.

        Raises:
            OutOfRangeError: a row does not exist; names the embedding and the row.
            InvalidArgumentError: ``idx`` are not ids.
        """
        rows = to_rows(idx, self.num_embeddings, self.name)
        leaf = self.weight.gather(rows, device=device).to(torch.float32)
        if torch.is_grad_enabled():
            leaf = leaf.detach().requires_grad_()
            with self._lock:
                self.trace.append(Lookup(rows.copy(), leaf))
        return leaf

    def reset_trace(self) -> None:
        """Forget all reads, with their gradients."""
        with self._lock:
            self.trace = []

    def take_gradients(self) -> list[tuple[I64, torch.Tensor]]:
        """Take the gradients of the reads, which then have none: rows (int64[n]) with their gradient.

        A read is forgotten once nothing else refers to its tensor; until then it may get a gradient, or another one.
        """
        with self._lock:
            taken = [(lookup.ids, grad) for lookup in self.trace if (grad := _take(lookup.leaf)) is not None]
            weak = [(ids, TensorWeakRef(leaf)) for ids, leaf in self.trace]
            self.trace.clear()  # what is alive now, the user or a graph of operations refers to
            self.trace = [Lookup(ids, leaf) for ids, ref in weak if (leaf := ref()) is not None]
        return taken

    def state_dict(self) -> dict[str, DistTensor]:
        """The rows, for checkpoints: ``{"weight": self.weight}``."""
        return {"weight": self.weight}

    def load_state_dict(self, state_dict: dict[str, DistTensor]) -> None:
        """Forget all reads, with their gradients: a checkpoint has put the rows into the memory of the embedding.

        Raises:
            InvalidArgumentError: it is no state of this embedding.
        """
        check_state("an embedding", state_dict, {"weight": DistTensor})
        self.weight.load_state_dict({"rows": state_dict["weight"]})
        self.reset_trace()

    @collective("trainers")
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the rows to one ``.npy`` file in the original order of nodes or edges: :meth:`.DistTensor.save`."""
        self.weight.save(path)

    @collective("trainers")
    def load(self, source: str | os.PathLike[str] | RowSource) -> None:
        """Overwrite the rows with those of such a file; see :meth:`.DistTensor.load`."""
        self.weight.load(source)
        self.reset_trace()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be pickled or deep-copied, with the module that holds it: the rows are the job's."""
        raise InvalidArgumentError(
            f"embedding {self.name!r} cannot be pickled or deep-copied, and so cannot a module that holds it: its rows "
            "lie on all hosts. mpigraph.checkpoint.save keeps rows and modules, save(path) the rows, and "
            "torch.save(module.state_dict()) the module's own parameters. Keep embeddings beside a module that is "
            "to be copied, as by AveragedModel, which averages no rows"
        )

    def __repr__(self) -> str:
        return f"DistEmbedding({self.num_embeddings}, {self.embedding_dim}, name={self.name!r})"


def _take(leaf: torch.Tensor) -> torch.Tensor | None:
    grad, leaf.grad = leaf.grad, None
    return grad
