"""A load that is refused says what does not fit, on every trainer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gradients import DIM, MAKE, embedding
from layouts import SharedJob
from oracle import NUM_NODES

import mpigraph.distributed as dist
from mpigraph import checkpoint
from mpigraph.dataloading import NeighborSampler
from mpigraph.errors import InvalidArgumentError


class Counter:
    """An object of the user's that takes states of its own kind, and any state of others in part."""

    def __init__(self, count: int, kind: str = "a") -> None:
        self.count = count
        self.kind = kind

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "kind": self.kind}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        if state["kind"] != self.kind:
            raise ValueError(f"a counter of kind {state['kind']}")


def whole_state(g: dist.DistGraph, seed: int, **other: Any) -> dict[str, Any]:
    """Return one of everything; tests replace the last ones by misfits."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    emb = embedding()
    emb.weight[torch.arange(NUM_NODES)] = torch.full(emb.weight.shape, float(seed))
    dense = torch.optim.Adam(model.parameters(), lr=seed)
    model(torch.rand(5, 3)).sum().backward()
    dense.step()
    loader = dist.DistNodeDataLoader(g, range(20), NeighborSampler([2]), batch_size=3)
    loader.set_epoch(seed)
    values = {"emb": emb, "model": model, "dense": dense, "counter": Counter(seed), "x": torch.full((2,), seed)}
    values |= {
        "schedule": torch.optim.lr_scheduler.StepLR(dense, seed),
        "loader": loader,
        "step": seed,
        "list": [torch.full((2,), seed), seed],
    }
    g.barrier()
    return values | {"sparse": MAKE["adagrad"]([emb]), "other": torch.nn.Linear(2, 2), "last": Counter(seed)} | other


MISFITS: dict[str, tuple[str, Callable[[Any, dict[str, Any]], Any], str]] = {
    "module": ("other", lambda g, state: torch.nn.Linear(3, 2), r"(?s)\['other'\] does not fit: .*size mismatch"),
    "optimizer": ("dense", lambda g, state: torch.optim.Adam([torch.zeros(1)]),
                  r"\['dense'\] does not fit: .*parameter group"),
    "class of an optimizer": ("dense", lambda g, state: torch.optim.SGD(state["model"].parameters(), lr=1),
                              r"\['dense'\] is a Adam there, and a SGD here"),
    "class of a schedule": ("schedule", lambda g, state: torch.optim.lr_scheduler.ExponentialLR(state["dense"], 0.5),
                            "is a StepLR there, and a ExponentialLR here"),
    "loader": ("loader", lambda g, state: dist.DistNodeDataLoader(g, range(21), NeighborSampler([2]), batch_size=3),
               "the state is of another loader: number of seeds"),
    "class of a sparse optimizer": ("sparse", lambda g, state: MAKE["adam"]([state["emb"]]),
                                    "is a SparseAdagrad there, and a SparseAdam here"),
    "setting of a sparse optimizer": ("sparse", lambda g, state: MAKE["adagrad"]([state["emb"]], reduction="sum"),
                                      "reduction is 'mean' in the state, and 'sum' here"),
    "embedding of another name": ("sparse", lambda g, state: MAKE["adagrad"]([embedding("another")]),
                                  r"\['state'\]\['emb'\].* is no DistTensor here \(those here are .*'another'"),
    "tensors of a sparse optimizer": ("sparse", lambda g, state: MAKE["row-wise"]([state["emb"]]),
                                      r"tensor 'emb_sum' is float32\[101, 5\] of 'node~_N' there"),
    "width": ("emb", lambda g, state: dist.DistEmbedding(NUM_NODES, DIM + 1, None),
              r"tensor 'emb' is float32\[101, 5\] of 'node~_N' there, and float32\[101, 6\]"),
    "name": ("nothing", lambda g, state: 1, r"has no state_dict\['nothing'\] \(it has 'emb', 'model', "),
    "shape": ("x", lambda g, state: torch.zeros(3), r"state_dict\['x'\] is \(2,\) torch.int64 there, and \(3,\)"),
    "embedding": ("x", lambda g, state: state["emb"], r"state_dict\['x'\] is something else there"),
    "rows": ("x", lambda g, state: state["emb"].weight, r"state_dict\['x'\] is something else there"),
    "of a trainer": ("x", lambda g, state: checkpoint.OfTrainer(torch.zeros(2)), r"\['x'\] is something else there"),
    "list": ("x", lambda g, state: [torch.zeros(2)], r"state_dict\['x'\] is something else there"),
    "length": ("list", lambda g, state: [torch.zeros(2)], r"state_dict\['list'\] has 2 items there, and 1 here"),
    "tuple": ("list", lambda g, state: (torch.zeros(2), 1), r"state_dict\['list'\] is something else there"),
    "sampler": ("loader", lambda g, state: dist.DistNodeDataLoader(g, [1, 2], NeighborSampler([4]), seed=4),
                "seed is .* in the state, and 4 here; number of seeds .*hash of seeds .*; sampler is .*2.*and .*4"),
    "object": ("last", lambda g, state: Counter(5, "b"), r"\['last'\] does not fit: a counter of kind a"),
}  # fmt: skip


def test_a_misfit_is_one_error_that_names_it(job: SharedJob, g: dist.DistGraph, oracle, shared_path: Path) -> None:
    """Also after an earlier one has left other values as they were saved."""
    path = shared_path / "c"
    checkpoint.save(whole_state(g, 1), checkpoint_id=path)
    here = whole_state(g, 2)
    for misfit, (name, make, words) in MISFITS.items():
        fits, here[name] = here.get(name), make(g, here)
        with pytest.raises(InvalidArgumentError, match=words) as caught:
            checkpoint.load(here, checkpoint_id=path)
        assert caught.value.everywhere and str(path) in str(caught.value), misfit
        job.trainers.Barrier()
        here[name] = fits
        if fits is None:
            del here[name]
    checkpoint.load(here, checkpoint_id=path)
    assert here["step"] == 1 and here["counter"].count == 1 and here["dense"].param_groups[0]["lr"] == 1
    assert (here["emb"].weight[:] == 1).all()
    job.open(oracle(2))
    with pytest.raises(InvalidArgumentError, match="of another partitioning of the graph"):
        checkpoint.load({"emb": embedding()}, checkpoint_id=path)
