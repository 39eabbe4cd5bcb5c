"""Training runs that are killed again and again, and go on: on the same trainers bit for bit, on others seed for seed.

A run trains an embedding and a model with dropout on two loaders, and saves every few steps, in turn at once and in the
background. It is killed by SIGKILL at a random moment, or at a random write to a file of a checkpoint. What it said of
steps behind the checkpoint from which the next run goes on does not count.
"""

import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jobs import clean_environment, mpiexec, run_job, warm_python
from oracle import NUM_NODES

SCRIPT = """
import json, os, random, signal, sys, threading, time
import numpy as np
import torch
import torch.nn.functional as F
import mpigraph as mg
import mpigraph.distributed as dist
from mpigraph import checkpoint
from mpigraph.dataloading import NeighborSampler
from mpigraph.dataloading.negative_sampler import Uniform
from mpigraph.storage import files

folder, path, servers, backend, kill, run, epochs = sys.argv[1:]
dist.initialize(num_servers=int(servers), seed=3)
torch.distributed.init_process_group(backend, init_method="mpi4py://" if backend == "mpi4py" else None)
g = dist.DistGraph("oracle", part_config=path)
rank, trainers = g.rank(), torch.distributed.get_world_size()
loader = dist.DistNodeDataLoader(
    g, dist.node_split(np.ones(g.num_nodes())), NeighborSampler([3, 3]), batch_size=-(-12 // trainers), shuffle=True
)
edges = dist.DistEdgeDataLoader(
    g, dist.edge_split(np.ones(g.num_edges(), bool)), NeighborSampler([2]), batch_size=9, shuffle=True,
    negative_sampler=Uniform(1),
)
emb = dist.DistEmbedding(g.num_nodes(), 8, "emb", init_func=lambda shape, dtype: torch.randn(shape, dtype=dtype))
torch.manual_seed(0)
layers = torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.ReLU(), torch.nn.Linear(16, 7)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
dense = torch.optim.Adam(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.MultiStepLR(dense, [3, 9])
sparse = dist.SparseAdam([emb], 0.05)
torch.manual_seed(100 + rank)
state = {"model": model, "dense": dense, "schedule": schedule, "sparse": sparse, "emb": emb,
         "loader": loader, "edges": edges, "step": 0}
found = checkpoint.latest(folder + "/saved")
if found:
    checkpoint.load(state, checkpoint_id=found)
log = open(f"{folder}/log-{int(run):03d}-{rank}", "w")
print(json.dumps({"from": state["step"], "trainers": trainers}), file=log, flush=True)

def die():
    open(f"{folder}/kill-{run}", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)

how, who, when = kill.split()
if int(who) % trainers == rank:
    if how == "time":
        threading.Timer(float(when), die).start()
    writes = 0
    if how == "write":
        write, publish = files.NewFile.write, files.NewFile.publish
        def counted(call):
            def inner(*args):
                global writes
                writes += 1
                if writes == int(when):
                    die()
                return call(*args)
            return inner
        files.NewFile.write, files.NewFile.publish = counted(write), counted(publish)

pairs = iter(edges)
for epoch in range(loader.epoch, int(epochs)):
    for _, seeds, blocks in loader:
        batch = next(pairs, None)
        if batch is None:
            pairs = iter(edges)
            batch = next(pairs)
        drawn = dist.sample_neighbors(g, seeds[:2], 2).edges()[0].tolist()
        dense.zero_grad()
        sparse.zero_grad()
        scores = model(emb(seeds))
        loss = F.cross_entropy(scores, g.ndata["label"][seeds]) + 0.01 * emb(batch[0]).mean()
        loss.backward()
        dense.step()
        sparse.step()
        schedule.step()
        said = [state["step"], epoch, seeds.tolist(), [loss.item().hex(), batch[1].edata[mg.EID].tolist(), drawn]]
        print(json.dumps(said), file=log, flush=True)
        state["step"] += 1
        if state["step"] % 3 == 0:
            save = checkpoint.async_save if state["step"] % 2 else checkpoint.save
            save(state, checkpoint_id=f"{folder}/saved/step-{state['step']}", keep=2)
torch.distributed.destroy_process_group()
"""


class Run(NamedTuple):
    ranks: int
    servers: int = 0
    ranks_per_node: int = 0
    backend: str = "gloo"


NEVER = "never 0 0"
LONG = (pytest.mark.study, pytest.mark.slow)  # the second for a longer deadline
LAYOUTS = [Run(1), Run(2), Run(2, 1), Run(2, 0, 1), Run(3, 1), Run(3, 0, 2), Run(4, 2), Run(4, 0, 2), Run(4, 1, 2)]
Said = dict[tuple[int, int], list[Any]]  # by step and trainer: epoch, seeds, and what else came of it


def start(folder: Path, path: str, run: Run, epochs: int, kill: str = NEVER, number: int = 999) -> bool:
    folder.mkdir(exist_ok=True)
    script = folder / "train.py"
    script.write_text(SCRIPT)
    env = clean_environment() | {"MPIGRAPH_RANKS_PER_NODE": str(run.ranks_per_node)}
    words = [folder, path, run.servers, run.backend, kill, number, epochs]
    done = run_job([*mpiexec(run.ranks), *warm_python(), script, *words], env)
    assert done.status == 0 or (folder / f"kill-{number}").exists(), done.output
    return done.status == 0


def counting(folder: Path) -> Said:
    """Return the results that count: a run that resumes at a step replaces those of later steps."""
    result: Said = {}
    for log in sorted(folder.glob("log-*")):
        lines = []
        for line in log.read_text().splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:  # the last one of a run that was killed
                break
        if not lines:
            continue
        if log.name.endswith("-0"):  # the first trainer's
            result = {key: what for key, what in result.items() if key[0] < lines[0]["from"]}
        result |= {(step, int(log.name.rpartition("-")[2])): what for step, *what in lines[1:]}
    return result


def kills(seed: int, count: int, seconds: float) -> list[str]:
    """Random moments: times, and writes to the files of checkpoints, dozens for each save of a trainer."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        when = f"{draw.uniform(0, seconds):.2f}" if draw.random() < 0.4 else draw.randrange(1, 400)
        made.append(f"{'time' if isinstance(when, str) else 'write'} {draw.randrange(4)} {when}")
    return made


@pytest.mark.parametrize(
    "run, count, epochs",
    [
        pytest.param(Run(3, 1), 1, 5, marks=pytest.mark.slow),
        pytest.param(Run(2, 0, 1, "mpi4py"), 4, 20, marks=LONG),
        *(pytest.param(Run(*how), 20, 60, marks=LONG) for how in [(3, 1, 0, "gloo"), (4, 1, 2, "mpi4py")]),
    ],
    ids=str,
)
def test_the_same_trainers_go_on_bit_for_bit(tmp_path: Path, oracle, run: Run, count: int, epochs: int) -> None:
    path = oracle(3)
    assert start(tmp_path / "undisturbed", path, run, epochs)
    expected = counting(tmp_path / "undisturbed")
    for number, kill in enumerate(kills(count, count, 1.5)):
        assert not start(tmp_path / "killed", path, run, epochs, kill, number), "it came to its end"
    assert start(tmp_path / "killed", path, run, epochs)
    result = counting(tmp_path / "killed")
    different = [key for key in expected if result.get(key) != expected[key]]
    assert not different, f"{len(different)} of {len(expected)}: {sorted(different)[:5]}"
    assert result.keys() == expected.keys()


@pytest.mark.parametrize(
    "count, epochs", [pytest.param(3, 15, marks=pytest.mark.slow), pytest.param(20, 60, marks=LONG)]
)
def test_other_trainers_use_each_seed_once(tmp_path: Path, oracle, count: int, epochs: int) -> None:
    path = oracle(3)
    draw = random.Random(count)
    for number, kill in enumerate(kills(count + 1, count, 1.0)):
        assert not start(tmp_path / "killed", path, draw.choice(LAYOUTS), epochs, kill, number), "it came to its end"
    assert start(tmp_path / "killed", path, Run(2, 1), epochs)
    lists: dict[int, list[int]] = {}
    for epoch, seeds, _ in counting(tmp_path / "killed").values():
        lists.setdefault(epoch, []).extend(seeds)
    assert sorted(lists) == list(range(epochs))
    assert all(sorted(seeds) == list(range(NUM_NODES)) for seeds in lists.values())
