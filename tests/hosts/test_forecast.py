"""Messages and bytes of a simulated job are those of a real one on as many hosts."""

import json
from collections import Counter
from pathlib import Path

import namespaces
import pytest
from jobs import clean_environment, generated, needs, run_job, warm_python

from mpigraph.cli.forecast.traffic import Cluster, Graph, Workload, simulate
from mpigraph.rows.row_cache import cache_memory
from mpigraph.storage.contents import PartFiles
from mpigraph.storage.part_config import PartConfig

pytestmark = needs("hosts", namespaces.missing())
COUNTED = ("sent_messages", "sent_bytes", "received_bytes", "requests")
NODES, EPOCHS, SLOTS = 4000, 3, 400
SCRIPT = """
import json, sys
import mpigraph as mg
folder, config, servers, *caches = sys.argv[1:]
mg.distributed.initialize(num_servers=int(servers))
g = mg.distributed.DistGraph("S", part_config=config)
seeds = mg.distributed.node_split(g.ndata["train_mask"])
for number, cache in enumerate(caches):
    sampler = mg.dataloading.NeighborSampler([4, 6])
    loader = mg.distributed.DistNodeDataLoader(
        g, seeds, sampler, batch_size=100, shuffle=True, features=["feat"], cache=int(cache) or None, seed=0
    )
    for _ in range(EPOCHS):
        for batch in loader:
            pass
    counts = [[*key, count] for key, count in loader.stats().totals.counts.items() if isinstance(key, tuple)]
    json.dump([counts, loader.stats().fetched_rows], open(f"{folder}/{g.rank()}-{number}.json", "w"))
    loader.close()
"""


@pytest.mark.parametrize(("hosts", "servers"), [(2, 0), (3, 0), (4, 0), (2, 1)])
def test_traffic_is_that_of_real_hosts(hosts: int, servers: int, tmp_path: Path) -> None:
    sizes = f"--nodes {NODES} --edges 60000 --feat-dim 16 --classes 4"
    config = generated(tmp_path, sizes, f"--parts {hosts} --method metis")
    (tmp_path / "script.py").write_text(SCRIPT.replace("EPOCHS", str(EPOCHS)))
    env = clean_environment() | {"MPIGRAPH_TRANSPORT": "packed", "MPIGRAPH_TIMEOUT": "120"}
    caches = [0, cache_memory(NODES, SLOTS, 64)]
    with namespaces.Hosts(hosts, shm="256m") as made:
        words = [*made.mpiexec(1 + servers), *warm_python(), tmp_path / "script.py", tmp_path, config, servers]
        done = run_job([*words, *caches], env)
    assert done.status == 0, done.output
    with PartFiles(PartConfig.read(str(config))) as files:
        graph = Graph(files)
    for number, slots in enumerate((None, SLOTS)):
        made_here = simulate(graph, Cluster(hosts, 1, servers), Workload([4, 6], 100, slots), epochs=EPOCHS)
        for trainer in range(hosts):
            own = [minibatch for minibatch in made_here if minibatch.trainer == trainer]
            expected: Counter[tuple[str, int]] = Counter()
            for one in (one for minibatch in own for hop in minibatch.asked for one in hop):
                counts = (1, one.request, sum(one.replies), 1)
                expected.update({(name, one.host): count for name, count in zip(COUNTED, counts, strict=True)})
            real, fetched = json.loads((tmp_path / f"{trainer}-{number}.json").read_text())
            counted = {(name, rank // (1 + servers)): count for name, rank, count in real if name in COUNTED}
            assert counted == expected
            assert fetched == sum(minibatch.fetched for minibatch in own) > 0
            assert len(expected) == len(COUNTED) * (hosts - 1)
