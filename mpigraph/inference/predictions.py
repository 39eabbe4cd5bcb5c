"""Write predictions for nodes by the ids of the input and in its order, as ``.npy`` files and as csv."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpigraph.arrays import I64, Array
from mpigraph.collective import collective
from mpigraph.distgraph.graph import DistGraph
from mpigraph.distgraph.tensor import DistTensor
from mpigraph.errors import InvalidArgumentError, TensorMismatchError
from mpigraph.graphs.fields import IdsLike
from mpigraph.partition.exchange import Exchange
from mpigraph.partition.output_folder import README, UNFINISHED, new_npy_files, write_readme
from mpigraph.partition.over_mpi import MPIExchange
from mpigraph.session.context import current
from mpigraph.storage.files import storage_errors

_LABEL = "label"
_TABLE = "predictions.csv"
_FILES = {
    "ids.npy": "the id of each node in the input",
    "classes.npy": "the class of each node, a number",
    "scores.npy": "the scores of all classes of each node",
    "values.npy": "the value of each node",
    "names.npy": "the names of the classes, by their numbers",
}
_LINES = 100_000  # of the table, written at once


@collective("trainers")
def write_predictions(
    folder: str | os.PathLike[str],
    g: DistGraph,
    rows: DistTensor | torch.Tensor,
    nodes: IdsLike | None = None,
    *,
    ntype: str | None = None,
    names: Sequence[str] | None = None,
    label: str = _LABEL,
) -> Path:
    """Write what a model says of nodes, by the ids of the input and in its order. The trainers write together.

    The folder gets ``predictions.csv`` with the columns id, class, name and score, and the same as arrays: ``ids.npy``
    (int64 or text), ``classes.npy`` (int64), ``scores.npy`` (float32, of all classes) and ``names.npy`` (text, the name
    of each class); ``README`` says what each file is. Predictions that were written there before are replaced. The
    files are the same on any number of ranks.

    Args:
        folder: to write to, created if missing; all trainers see it.
        g: the graph.
        rows: integers [n], the class of each node; or floats [n, classes], where the largest tells the class (NaN
            counts as larger), such as the result of :func:`.layerwise`; or one float for each node, which is written
            as ``value``. As a DistTensor it has a row for each node of a type, as a tensor one for each of ``nodes``.
        nodes: int64[n], the nodes of this trainer to write, such as those of a loader; by default all nodes of the
            type. Which trainer has which does not matter, but each is given once.
        ntype: the node type of a tensor; may be left out if there is one.
        names: the names of the classes; by default the categories of ``label``, if it has some.
        label: the feature whose categories the classes are.

    Returns:
        The folder.

    Raises:
        InvalidArgumentError: an argument is not as described above; a class has no name; the folder has files of these
            names that are no predictions.
        FieldNameError: there is no feature ``label``, and it is not "label".
        TensorMismatchError: ``rows`` are not of nodes of ``g``, or trainers give rows of different shapes.
        CollectiveError: trainers give different ``names``, ``label`` or ``ntype``.
        StorageError: a file cannot be written.
        ShardFormatError, GraphDataError: the graph's original ids cannot be read.

    All of these are raised on every trainer.

    Example:
        >>> mpigraph.inference.write_predictions("predictions", g, scores)
    """
    session = current()
    exchange = MPIExchange(session.world.trainers)
    with session.world.together("writing predictions"):
        if not isinstance(rows, DistTensor) and (not isinstance(rows, torch.Tensor) or nodes is None):
            raise InvalidArgumentError("rows must be a DistTensor, or a tensor with a row for each of nodes")
        given = {"names": None if names is None else list(names), "label": label, "ntype": ntype}
    exchange.same("write_predictions", given)
    if isinstance(rows, torch.Tensor):
        assert nodes is not None
        shape = (g.num_nodes(ntype), *rows.shape[1:])
        table = DistTensor(shape, rows.dtype, part_policy=g.get_node_partition_policy(ntype))
        with exchange.together("writing predictions"):
            table[nodes] = rows.detach().cpu()
    else:
        table = rows
    chosen = None
    if nodes is not None:
        chosen = DistTensor((len(table),), torch.bool, part_policy=table.part_policy)
        with exchange.together("writing predictions"):
            chosen[nodes] = True
        g.barrier()
    with exchange.together("writing predictions"):
        policy = table.part_policy
        if table.graph_name != g.graph_name or not policy.is_node:
            raise TensorMismatchError(f"{table!r} has no rows of nodes of graph {g.graph_name!r}")
        features = g.nodes[policy.type_name].data
        if names is None:
            names = features[label].categories if label in features or label != _LABEL else ()
        ids = features.get("id")
        predictions = _Predictions(table, chosen, ids, list(names))
    return predictions.write(exchange, Path(folder))


class _Predictions:
    """Predictions for nodes of a type, and what to write of them."""

    def __init__(self, rows: DistTensor, chosen: DistTensor | None, ids: DistTensor | None, names: list[str]) -> None:
        self._rows = rows
        self._chosen = chosen
        is_text = ids is not None and ids.dtype == torch.uint8 and len(ids.shape) == 2
        self._ids = ids if is_text or (ids is not None and _is_integer(ids) and len(ids.shape) == 1) else None
        self._text_width = ids.shape[1] if is_text and ids is not None else 0
        width = int(np.prod(rows.shape[1:]))
        if len(rows.shape) > 2 or width == 0 or (_is_integer(rows) and len(rows.shape) == 2):
            raise InvalidArgumentError(f"rows must be classes [n] or scores [n, classes] (got {rows!r})")
        self._is_value = not _is_integer(rows) and width == 1
        self._names = [] if self._is_value else names

    @collective("ranks")
    def write(self, exchange: Exchange, folder: Path) -> Path:
        """Write all files; return the folder."""
        doing = f"writing predictions to {folder}"
        blocks = self._rows.in_original_order()
        with exchange.together(doing):
            if exchange.rank == 0:
                _check_folder(folder)
            own = [self._selected(first, ids) for first, ids in blocks]
        counts = exchange.gather_json(sum(len(ids) for _, ids in own))
        total, at = sum(counts), sum(counts[: exchange.rank])
        empty = self._arrays(np.zeros(0, np.int64), np.zeros(0, np.int64))
        contents = {name: ((total, *array.shape[1:]), array.dtype) for name, array in empty.items()}
        with new_npy_files(exchange, folder, contents) as (temporary, files):
            with exchange.together(doing), storage_errors(folder):
                for originals, ids in own:
                    for name, array in self._arrays(originals, ids).items():
                        files[name].write(array, at)
                    at += len(ids)
                if exchange.rank == 0:
                    if self._names:
                        np.save(temporary / "names.npy", np.array(self._names, np.str_))
                    self._write_readme(temporary, total)
                    for name in (_TABLE, README, *_FILES):
                        (folder / name).unlink(missing_ok=True)  # of predictions before
        with exchange.together(doing), storage_errors(folder):
            if exchange.rank == 0:
                self._write_table(folder, {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in contents})
        return folder

    def _write_readme(self, folder: Path, total: int) -> None:
        of_graph = f"type {self._rows.part_policy.type_name!r} of the graph {self._rows.graph_name!r}"
        about = f"Predictions for {total} nodes of {of_graph}, in the order of the input."
        files = {name: text for name, text in _FILES.items() if (folder / name).exists()}
        of_class = ", with the score of the class" if "scores.npy" in files else ""
        write_readme(folder, about, files | {_TABLE: f"all of this as a table{of_class}"})

    def _write_table(self, folder: Path, arrays: dict[str, Array]) -> None:
        """Write the table, from the arrays of all nodes, under a name of its own until it is whole."""
        unfinished = folder / f"{UNFINISHED}{_TABLE}"
        with unfinished.open("w", encoding="utf-8", newline="") as text:
            lines = csv.writer(text, lineterminator="\n")
            for first in range(0, len(arrays["ids"]) + 1, _LINES):  # once without nodes: the names of columns
                columns = self._columns({name: array[first : first + _LINES] for name, array in arrays.items()})
                if first == 0:
                    lines.writerow(columns)
                lines.writerows(zip(*columns.values(), strict=True))
        unfinished.replace(folder / _TABLE)

    def _selected(self, first: int, ids: I64) -> tuple[I64, I64]:
        """Return the original numbers, and the ids here, of the nodes of a block that are to be written."""
        originals = np.arange(first, first + len(ids))
        if self._chosen is None:
            return originals, ids
        mask = self._chosen[ids].numpy()
        return originals[mask], ids[mask]

    def _arrays(self, originals: I64, ids: I64) -> dict[str, Array]:
        """Return the arrays of nodes. Raises InvalidArgumentError: a class has no name."""
        arrays: dict[str, Array] = {"ids": originals if self._ids is None else self._ids[ids].numpy()}
        if self._text_width:
            texts = np.char.decode(arrays["ids"].view(f"S{self._text_width}")[:, 0], "utf-8", "replace")
            arrays["ids"] = texts.astype(f"U{self._text_width}")
        rows = self._rows[ids]
        if _is_integer(self._rows):
            arrays["classes"] = rows.numpy().astype(np.int64)
        elif self._is_value:
            arrays["values"] = rows.float().numpy().reshape(-1)
        else:
            arrays["scores"] = rows.float().numpy()
            arrays["classes"] = arrays["scores"].argmax(1)
        most = arrays["classes"].max(initial=0) if self._names else 0
        if most >= max(len(self._names), 1):
            raise InvalidArgumentError(f"class {most} has no name: there are {len(self._names)} names")
        return arrays

    def _columns(self, arrays: dict[str, Array]) -> dict[str, Any]:
        """Return the columns of the table."""
        columns: dict[str, Any] = {"id": arrays["ids"].tolist()}
        if self._is_value:
            return columns | {"value": map(str, arrays["values"])}
        classes = arrays["classes"]
        columns["class"] = classes.tolist()
        if self._names:
            columns["name"] = [self._names[number] if number >= 0 else "" for number in classes.tolist()]
        if "scores" in arrays:
            columns["score"] = map(str, np.take_along_axis(arrays["scores"], classes[:, None], 1)[:, 0])
        return columns


def _is_integer(rows: DistTensor) -> bool:
    return not rows.dtype.is_floating_point


def _check_folder(folder: Path) -> None:
    """Refuse to replace files that are no predictions: these have a table."""
    there = [name for name in (*_FILES, README) if (folder / name).exists()]
    if there and not (folder / _TABLE).exists():
        raise InvalidArgumentError(
            f"{folder} has files that are no predictions, such as {there[0]}: give another folder"
        )
