"""Reports of real jobs with a fault name its rank and stage; those of balanced jobs name no rank.

A step is a sleep, as the script of an accelerator waits for it, and a small model of real gradients. So faults are seen
on a machine with fewer processors than trainers, too.
"""

from pathlib import Path

import pytest
from jobs import clean_environment, generated, mpiexec, needs, run_job, warm_python

from mpigraph.reports import summary, verdict

SCRIPT = """
import ctypes, os, sys, threading, time
from pathlib import Path
import torch
import mpigraph as mg
from mpigraph.config import launcher_rank
kind, at, config = sys.argv[1], int(sys.argv[2]), sys.argv[3]
trains = Path("trains")
def stop():  # a thread that sleeps with Python's lock
    while not trains.exists():
        time.sleep(0.05)
    while True:
        ctypes.PyDLL(None).usleep(360_000)
        time.sleep(0.04)
if kind == "stopped" and launcher_rank() == at:
    threading.Thread(target=stop, daemon=True).start()
torch.set_num_threads(1)
mg.distributed.initialize(num_servers=int("MPIGRAPH_RANKS_PER_NODE" in os.environ), seed=1)
torch.distributed.init_process_group("gloo")
g = mg.distributed.DistGraph("S", part_config=config)
own = kind if launcher_rank() == at else ""
size = 300 if own == "seeds" else 100
seeds = torch.arange(g.num_nodes()).reshape(-1, 4)[:, g.rank()][: 20 * size]
cache = {"cache": None} if kind == "stopped" else {}
sampler = mg.dataloading.NeighborSampler([50])
loader = mg.distributed.DistNodeDataLoader(
    g, seeds, sampler, batch_size=size, shuffle=True, features=["feat"], **cache
)
model = torch.nn.parallel.DistributedDataParallel(mg.nn.SAGEConv(64, 16, "mean"))
trains.touch()
step = 0
for epoch in range(2 if kind == "stopped" else 3):
    for inputs, seeds, blocks in loader:
        loss = model(blocks[0], blocks[0].srcdata["feat"]).pow(2).mean()
        seconds = 0.03 + len(seeds) * 1e-4
        time.sleep(1.5 * seconds if own == "model" else seconds + 0.4 * (own == "sudden" and step % 10 == 9))
        loss.backward()
        step += 1
del model  # before its group: torch may hang where the model is the last to hold a Gloo group
torch.distributed.destroy_process_group()
"""

TWO_NODES = {"MPIGRAPH_RANKS_PER_NODE": "3"}  # of two trainers and a server each, which is the last rank
FAULTS = {  # what is wrong, with which rank, in which layout; the kind and the reason of the verdict, and its stage
    "model": ("model", 2, {}, ("trainer", "stage", "step")),
    "model, two nodes": ("model", 0, TWO_NODES, ("trainer", "stage", "step")),
    "sudden": ("sudden", 3, {}, ("trainer", "sudden", "step")),
    "sudden, two nodes": ("sudden", 1, TWO_NODES, ("trainer", "sudden", "step")),
    "seeds": ("seeds", 2, {}, ("trainer", "seeds", "")),
    "seeds, two nodes": ("seeds", 4, TWO_NODES, ("trainer", "seeds", "")),
    "stopped, two nodes": ("stopped", 5, TWO_NODES, ("host", "requests", "fetch")),
    **{f"balanced, {number}": ("", -1, {}, ("balanced", "", "")) for number in range(4)},
    **{f"balanced, two nodes, {number}": ("", -1, TWO_NODES, ("balanced", "", "")) for number in range(4)},
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = "--nodes 40000 --edges 800000 --feat-dim 64 --classes 8"
    return generated(tmp_path_factory.mktemp("graph"), sizes, "--parts 2 --method random")


@needs("hosts", "")  # without other tests beside it
@pytest.mark.study
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(config: Path, tmp_path: Path, fault: str) -> None:
    kind, at, layout, (verdict_of, reason, stage) = FAULTS[fault]
    (tmp_path / "script.py").write_text(SCRIPT)
    env = clean_environment() | layout | {"MPIGRAPH_REPORT": str(tmp_path / "report"), "MPIGRAPH_TOPOLOGY": "owners"}
    words = [*mpiexec(6 if layout else 4), *warm_python(), tmp_path / "script.py", kind, at, config]
    done = run_job(words, env, cwd=tmp_path)
    assert done.status == 0, done.output
    found = verdict.judge(summary.read(tmp_path / "report"))
    assert (found.kind, found.ranks) == (verdict_of, (at,) if kind else ()), found.text
    assert found.reason == reason or (not kind and found.reason == "processor"), found.text  # on a busy machine
    assert not stage or stage in found.stages, found.text
