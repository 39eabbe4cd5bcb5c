"""A long life: epochs, loaders and tensors come and go, and what a job holds does not grow."""

import re
from pathlib import Path

import pytest
from jobs import run_script

EPOCHS, TENSORS, SETTLED = 300, 3000, 50  # each epoch has a loader of its own
GROWTH = 0.01  # of each rank's memory after the first epochs
STARTS = {
    "one node": {"ranks": 3},
    "two nodes": {"ranks": 4, "MPIGRAPH_RANKS_PER_NODE": "2"},
    "no servers": {"ranks": 2, "servers": 0},
    "packed": {"ranks": 4, "MPIGRAPH_RANKS_PER_NODE": "2", "MPIGRAPH_TRANSPORT": "packed"},
}
BODY = f"""
from collections import Counter
from mpigraph.session.context import current
pids = current().world.pids.tolist()  # of all ranks: nodes are simulated
trains = dist.node_split(torch.ones(g.num_nodes(), dtype=torch.bool))
sampler = NeighborSampler([3, 3])
emb = dist.DistEmbedding(g.num_nodes(), 4, "soaked")
optimizer = dist.optim.SparseAdagrad([emb], lr=0.1)
def held(pid):
    with open(f"/proc/{{pid}}/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    with open(f"/proc/{{pid}}/maps") as maps:
        segments = sum("mpich_shm" in line for line in maps)
    return [int(fields["VmRSS"].split()[0]), len(os.listdir(f"/proc/{{pid}}/fd")), int(fields["Threads"]), segments]
def report(epoch):
    g.barrier()
    if rank == 0:
        for number, pid in enumerate(pids):
            print("held", epoch, number, *held(pid), flush=True)
    g.barrier()
made = Counter()
for epoch in range({EPOCHS}):
    if epoch in ({SETTLED}, {EPOCHS} - 1):
        report(epoch)
    loader = dist.DistNodeDataLoader(g, trains, sampler, batch_size=16, shuffle=True, num_prefetch=epoch % 3)
    made["loaders"] += 1
    for step, (inputs, seeds, blocks) in enumerate(loader):
        (emb(inputs) * g.ndata["feat"][inputs][:, :1]).sum().backward()
        optimizer.step()
        if epoch % 7 == 6 and step == 1:
            break
    for number in range({TENSORS // EPOCHS}):
        tensor = dist.DistTensor((g.num_nodes(), 1 + number), torch.float32, f"soak{{number}}" if number % 2 else None)
        tensor[trains[:5]] = torch.full((len(trains[:5]), 1 + number), float(epoch))
        assert bool((tensor[trains[:5]] == epoch).all())
        made["tensors"] += 1
        del tensor
    made["epochs"] += 1
print(f"trainer {{rank}} made {{dict(made)}}", flush=True)
"""


@pytest.mark.study
@pytest.mark.parametrize("start", STARTS)
def test_a_long_life_holds_no_more_than_a_short_one(tmp_path: Path, oracle, start: str) -> None:
    status, output, _ = run_script(tmp_path, oracle(2), BODY, **STARTS[start])
    assert status == 0, output
    assert output.count(f"made {{'loaders': {EPOCHS}, 'tensors': {TENSORS}, 'epochs': {EPOCHS}}}") >= 2, output
    lines = [list(map(int, numbers)) for numbers in re.findall(r"held (\d+) (\d+) (\d+) (\d+) (\d+) (\d+)", output)]
    before = {rank: values for epoch, rank, *values in lines if epoch == SETTLED}
    after = {rank: values for epoch, rank, *values in lines if epoch == EPOCHS - 1}
    assert before.keys() == after.keys() == set(range(STARTS[start]["ranks"]))
    for rank, (kib, *counts) in before.items():
        assert after[rank][0] < kib * (1 + GROWTH), f"rank {rank} grows: {kib} kB, {after[rank][0]} kB"
        assert after[rank][1:] == counts, f"rank {rank} holds more files, threads or segments"
