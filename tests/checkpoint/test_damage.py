"""Damaged checkpoints: the one before is taken, or one error names the file; never wrong values."""

import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gradients import MAKE, embedding, everything, train
from layouts import SharedJob, alone
from oracle import open_graph

import mpigraph.distributed as dist
from mpigraph import checkpoint
from mpigraph.checkpoint.state_tree import Decoder, Leaves, encode
from mpigraph.dataloading import NeighborSampler
from mpigraph.errors import InvalidArgumentError, MPIGraphError, ShardFormatError
from mpigraph.log import get_logger

Draw = random.Random


def flip(draw: Draw, data: bytes) -> bytes:
    bits = np.unpackbits(np.frombuffer(data, np.uint8))
    for _ in range(draw.choice([1, 1, 5])):
        bits[draw.randrange(len(bits))] ^= 1
    return np.packbits(bits).tobytes()


def overwrite(draw: Draw, data: bytes) -> bytes:
    at = draw.randrange(len(data))
    size = min(draw.choice([1, 64, 4096]), len(data) - at)
    return data[:at] + (bytes(size) if draw.random() < 0.5 else draw.randbytes(size)) + data[at + size :]


CHANGES: dict[str, Callable[[Draw, bytes], bytes]] = {  # of the bytes of a file
    "truncate": lambda draw, data: data[: draw.randrange(len(data))],
    "flip": flip,
    "flip again": flip,
    "overwrite": overwrite,
    "lengthen": lambda draw, data: data + draw.randbytes(draw.choice([1, 512])),
    "empty": lambda draw, data: b"",
}
REPLACEMENTS: dict[str, Callable[[Draw, Path, Path], object]] = {  # of a file: by nothing, or the other save's, ...
    "remove": lambda draw, path, other: None,
    "mix": lambda draw, path, other: shutil.copy(other, path),
    "folder": lambda draw, path, other: path.mkdir(),
    "link": lambda draw, path, other: path.symlink_to(draw.choice([other, path, Path("/dev/zero")])),
}


def damage(draw: Draw, path: Path, other: Path) -> str:
    kind = draw.choice([*CHANGES, *REPLACEMENTS])
    data = path.read_bytes()
    path.unlink()
    if kind in CHANGES:
        path.write_bytes(CHANGES[kind](draw, data))
    else:
        REPLACEMENTS[kind](draw, path, other)
    return kind


def state(g: dist.DistGraph, steps: int) -> dict[str, Any]:
    emb = embedding()
    optimizer = MAKE["adam"]([emb])
    train(emb, optimizer, range(steps))
    loader = dist.DistNodeDataLoader(g, range(20), NeighborSampler([2]), batch_size=3)
    loader.set_epoch(steps)
    torch.manual_seed(steps)
    return {"emb": emb, "optimizer": optimizer, "dense": torch.rand(50), "loader": loader, "steps": steps}


def values(state: dict[str, Any]) -> Any:
    rows = {name: rows.tolist() for name, rows in everything(state["emb"]).items()}
    return rows, state["dense"].tolist(), state["loader"].epoch, state["steps"]


def try_all(path: str, work: Path, variants: int, seed: int) -> Counter[str]:
    """Damage the newer of two checkpoints in many ways; count what came of it."""
    g = open_graph(path)
    expected = {}
    here = state(g, 0)
    for steps in (1, 2):
        saved = state(g, steps)
        expected[f"step-{steps}"] = values(saved)
        checkpoint.save(saved, checkpoint_id=work / "whole" / f"step-{steps}")
        del saved
    outcomes: Counter[str] = Counter()
    around = work / "tried"
    for number in range(variants):
        draw = Draw(f"{seed} {number}")
        shutil.rmtree(around, ignore_errors=True)
        shutil.copytree(work / "whole", around)
        newer, older = (sorted((around / f"step-{steps}").iterdir(), reverse=True) for steps in (2, 1))
        which = draw.randrange(2)  # the manifest comes first
        kind = damage(draw, newer[which], older[which])
        if kind == "mix" and which == 0:
            for file in newer[1:]:  # else it is the older one, whole
                file.unlink()
        what = f"variant {number}: {kind} of {newer[which].name}"
        result = checkpoint.latest(around)
        assert result is not None, what
        checkpoint.load(here, checkpoint_id=result)
        assert values(here) == expected[result.name], what
        outcomes[result.name] += 1
        if result.name == "step-1":
            with pytest.raises(ShardFormatError, match=re.escape(str(around / "step-2"))):
                checkpoint.load(here, checkpoint_id=around / "step-2")
    return outcomes


@pytest.mark.parametrize("variants", [20, pytest.param(1000, marks=pytest.mark.study)])
@pytest.mark.filterwarnings("ignore")
def test_the_one_before_is_taken(oracle, tmp_path: Path, variants: int) -> None:
    outcomes = alone(lambda: try_all(oracle(2), tmp_path, variants, seed=variants))
    print(outcomes)
    assert outcomes["step-1"] > variants / 2  # or the bytes that were changed mean nothing


def test_what_is_saved_is_not_too_deep_to_be_read() -> None:
    for kind in (lambda x: [x], lambda x: (x,), lambda x: {(x if x == 0 else "a"): x}):
        deep: Any = 0
        for depth in range(202):
            if depth < 201:
                tree = encode(deep, Leaves())
                assert Decoder(torch.empty, "").decode(tree, "") == deep
            else:
                with pytest.raises(InvalidArgumentError, match="nested more than"):
                    encode(deep, Leaves())
            deep = kind(deep)


def test_a_damaged_one_is_one_error_on_every_trainer(
    job: SharedJob, g: dist.DistGraph, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = job.one_has(lambda: tmp_path / "saved")
    for steps in (1, 2, 3):
        checkpoint.save(state(g, steps), checkpoint_id=around / f"step-{steps}")
    g.barrier()
    monkeypatch.setattr(get_logger(), "propagate", True)
    if g.rank() == 0:
        last = max((around / "step-3").glob("*.h5"))
        last.write_bytes(flip(Draw(3), last.read_bytes()))
        (around / "step-2" / "manifest.json").unlink()  # the save was killed
    g.barrier()
    here = state(g, 0)
    with pytest.raises(ShardFormatError, match="step-3/.*h5.*") as caught:
        checkpoint.load(here, checkpoint_id=around / "step-3")
    assert caught.value.everywhere
    with pytest.raises(ShardFormatError, match="step-2/manifest.json: cannot read the manifest"):
        checkpoint.load(here, checkpoint_id=around / "step-2")
    assert checkpoint.latest(around) == around / "step-1"
    said = caplog.text
    assert (g.rank() > 0) or ("step-3 is passed over" in said and "step-3" in said)
    checkpoint.load(here, checkpoint_id=around / "step-1")
    assert here["steps"] == 1
    assert (f"resumes from checkpoint {around}/step-1\n" in caplog.text) == (g.rank() == 0)
    checkpoint.save(here, checkpoint_id=around / "step-4", keep=2)  # removes the rest of the save that was killed
    g.barrier()
    assert sorted(path.name for path in around.iterdir() if path.is_dir()) == ["step-1", "step-3", "step-4"]
    assert checkpoint.latest(around / "nothing") is None
    g.barrier()
    with pytest.raises(MPIGraphError):
        checkpoint.load(here, checkpoint_id=around / "nothing")
