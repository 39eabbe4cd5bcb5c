"""The state of a job in every checkpoint: draws outside loaders, epochs of loaders, random number generators."""

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from mpigraph.kernels.rng import combine, fingerprint
from mpigraph.log import get_logger
from mpigraph.session.context import OfTrainer, Session


class Generator(NamedTuple):
    """A random number generator that scripts draw from by default."""

    get: Callable[[], torch.Tensor]
    """Return its state, uint8[n]."""
    restore: Callable[[torch.Tensor], object]
    """Restore a state."""
    seed: Callable[[int], object]
    """Seed it with a number below 2**64."""


def _numpy_state() -> torch.Tensor:
    return _as_rows(np.random.get_state(legacy=True))  # noqa: NPY002 - what the user draws from


def _restore_numpy(state: torch.Tensor) -> None:
    name, keys, *place = _of_rows(state)
    np.random.set_state((name, np.array(keys, np.uint32), *place))  # noqa: NPY002


def _python_state() -> torch.Tensor:
    return _as_rows(random.getstate())


def _restore_python(state: torch.Tensor) -> None:
    version, words, gauss = _of_rows(state)
    random.setstate((version, tuple(words), gauss))


def _as_rows(state: Any) -> torch.Tensor:
    return torch.tensor([*json.dumps(state, default=np.ndarray.tolist).encode()], dtype=torch.uint8)


def _of_rows(rows: torch.Tensor) -> Any:
    return json.loads(bytes(rows.tolist()))


def _cuda_state() -> torch.Tensor:
    """Return the state of the GPU's generator, which only some trainers may have; else nothing."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.cuda.get_rng_state()
    return torch.empty(0, dtype=torch.uint8)


_GENERATORS = {
    "torch": Generator(torch.get_rng_state, torch.set_rng_state, torch.default_generator.manual_seed),
    "numpy": Generator(_numpy_state, _restore_numpy, lambda seed: np.random.seed(seed % 2**32)),  # noqa: NPY002
    "python": Generator(_python_state, _restore_python, random.seed),
    "cuda": Generator(_cuda_state, lambda state: torch.cuda.set_rng_state(state), torch.cuda.manual_seed),
}


def of_job(session: Session) -> dict[str, Any]:
    """Return the state of a job."""
    return {
        "trainers": session.num_trainers,
        "draws": session.num_draws,
        "loaders": [[number, *loader.place()] for number, loader in sorted(session.loaders.items())],
        "generators": {name: OfTrainer(generator.get()) for name, generator in _GENERATORS.items()},
    }


def load_epochs(session: Session, state: dict[str, Any]) -> None:
    """Restore the number of draws; loaders that exist already, by the order of their creation, get their epoch."""
    session.num_draws = int(state["draws"])
    for number, epoch, kind in state["loaders"]:
        loader = session.loaders.get(number)
        if loader is None:
            continue
        if loader.place()[1] == kind:
            loader.set_epoch(epoch)
        else:
            text = "loader %d was %s when the checkpoint was written, and is %s: it begins with epoch %d"
            get_logger().warning(text, number, kind, loader.place()[1], loader.place()[0])


def load_generators(session: Session, state: dict[str, Any]) -> None:
    """Restore the generators; on another number of trainers seed them from the saved state and the rank."""
    for name, generator in _GENERATORS.items():
        saved = state["generators"][name].rows
        if name == "cuda" and not (len(saved) and torch.cuda.is_available()):
            continue
        if state["trainers"] == session.num_trainers:
            generator.restore(saved)
        else:
            digest = int(fingerprint(saved.numpy().astype(np.int64)))
            generator.seed(int(combine(digest, session.rank, session.num_trainers)))
