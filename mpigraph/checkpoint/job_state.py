"""The state of a job in every checkpoint: draws outside loaders, epochs of loaders, torch's generators."""

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mpigraph.errors import check_state
from mpigraph.kernels.rng import combine, fingerprint
from mpigraph.log import get_logger
from mpigraph.session.context import OfTrainer, Session


def of_job(session: Session) -> dict[str, Any]:
    """Return the state of a job."""
    state: dict[str, Any] = {
        "trainers": session.num_trainers,
        "draws": session.num_draws,
        "loaders": [[number, *loader.place()] for number, loader in sorted(session.loaders.items())],
        "torch": OfTrainer(torch.get_rng_state()),
        "cuda": OfTrainer(torch.empty(0, dtype=torch.uint8)),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = OfTrainer(torch.cuda.get_rng_state())  # maybe on some trainers alone
    return state


def load_job(session: Session, state: dict[str, Any]) -> None:
    """Restore the state of a job.

    Loaders that exist already, by the order of their creation, continue with the next epoch. On another number of
    trainers torch's generators are seeded from the saved state and the rank.
    """
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
    generators: dict[str, tuple[Callable[[torch.Tensor], object], Callable[[int], object]]] = {
        "torch": (torch.set_rng_state, torch.default_generator.manual_seed)
    }
    if len(state["cuda"].rows) and torch.cuda.is_available():
        generators["cuda"] = torch.cuda.set_rng_state, torch.cuda.manual_seed
    for name, (restore, seed) in generators.items():
        saved = state[name].rows
        if state["trainers"] == session.num_trainers:
            restore(saved)
        else:
            digest = int(fingerprint(saved.numpy().astype(np.int64)))
            seed(int(combine(digest, session.rank, session.num_trainers)))


class RandomState:
    """The default generators of numpy and of Python's ``random``, for scripts that draw from them.

    Put one into a state dict: on the same number of trainers each trainer's generators are restored, else they stay as
    they are. Torch's generators are in every checkpoint anyway.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the generators, as JSON."""
        states = np.random.get_state(legacy=True), random.getstate()  # noqa: NPY002 - what the user draws from
        text = json.dumps(states, default=np.ndarray.tolist).encode()
        return {"text": OfTrainer(torch.tensor([*text], dtype=torch.uint8))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state of :meth:`state_dict`; nothing changes on another number of trainers.

        Raises:
            InvalidArgumentError: the state is not one of :meth:`state_dict`.
        """
        check_state("RandomState", state_dict, {"text": OfTrainer})
        try:
            (name, keys, *place), (version, words, gauss) = json.loads(bytes(state_dict["text"].rows.tolist()))
        except ValueError:  # one trainer's text was divided, or follows another's
            get_logger().warning("the generators of numpy and random stay as they are: the number of trainers differs")
            return
        np.random.set_state((name, np.array(keys, np.uint32), *place))  # noqa: NPY002
        random.setstate((version, tuple(words), gauss))
