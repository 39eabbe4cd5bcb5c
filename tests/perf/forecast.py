"""Forecast steps of jobs on 2 to 4 hosts and nine networks, then measure them.

    python tests/perf/forecast.py prepare DIR                 # two graphs, each in 2, 3 and 4 parts
    python tests/perf/forecast.py measure DIR --calibration -o known.json
    python tests/perf/forecast.py calibrate DIR known.json -o machine.json
    python tests/perf/forecast.py forecast DIR --machine machine.json -o forecast.json
    python tests/perf/forecast.py measure DIR -o measured.json
    python tests/perf/forecast.py compare forecast.json measured.json

Every host has a trainer and a server, and the network is ``tests/support/wire.py``: all of them share the cores of this
machine, which the forecast is told. A step waits for a minibatch with its rows, sleeps for as long as a model on a
device would take, and sums gradients. ``measure --calibration`` measures on two and four hosts and four networks, none
of them among the nine, and ``calibrate`` fits the processor time of messages, requests, bytes and minibatches.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

HOSTS = (2, 3, 4)
LATENCIES = (0.0003, 0.0015, 0.004)  # seconds
RATES = (8e7, 2.5e8, 8e8)  # bits a second
NETWORKS = tuple(itertools.product(LATENCIES, RATES))
CALIBRATED_HOSTS = (2, 4)
CALIBRATION = ((0.0002, 2e9), (0.001, 6e8), (0.003, 2e8), (0.008, 1.5e8))
GENERATED = "--nodes 20000 --edges 300000 --feat-dim 64 --classes 16 --train-fraction 0.8"
"""The graph; with fewer nodes to train on, an epoch of four trainers is too short to make minibatches ahead."""
GRAPHS = {"generated": 300, "computers": 200}  # and seeds of a minibatch
CACHES = {"none": 0, "cache": 0.2}  # share of all rows
FANOUTS, MODEL, GRADIENTS = (10, 25), 0.005, 100_000
WARM_EPOCHS, EPOCHS = 3, 4  # that are simulated
WARM, SKIPPED, STEPS = 30, 6, 36  # and whole epochs, of so many steps at least
PAYLOAD = 1448 / 1514  # of a frame: the rest are headers of Ethernet, IP and TCP


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("prepare", "calibrate", "forecast", "measure", "compare", "rank"))
    p.add_argument("paths", nargs="+", type=Path)
    p.add_argument("--machine", type=Path)
    p.add_argument("--calibration", action="store_true", help="measure the networks to calibrate by")
    p.add_argument("-o", "--out", type=Path)
    args = p.parse_args()
    result = globals()[args.what](args)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def prepare(args):
    """Write the graphs; ``computers`` is Amazon Computers, an npz file with dense features, given as second path."""
    folder = args.paths[0]
    mpigraph("generate", *GENERATED.split(), "-o", folder / "generated")
    inputs = {"generated": folder / "generated"} | {path.stem: path for path in args.paths[1:]}
    for (name, source), hosts in itertools.product(inputs.items(), HOSTS):
        mpigraph("partition", source, "--parts", hosts, "--name", name, "-o", folder / f"{name}-{hosts}")


def mpigraph(*words):
    subprocess.run([sys.executable, "-m", "mpigraph", *map(str, words)], check=True)


def config_of(folder, graph, hosts):
    return folder / f"{graph}-{hosts}" / f"{graph}.json"


def slots_of(config, share):
    """The rows in the cache of a node, and its bytes; none without a share."""
    from mpigraph.rows.row_cache import cache_memory
    from mpigraph.storage.part_config import PartConfig

    known = PartConfig.read(str(config))
    rows, width = known.book.num_nodes(0), 4 * known.node_features[known.schema.ntypes[0]]["feat"].shape[0]
    slots = int(share * rows)
    return slots or None, cache_memory(rows, slots, width) if slots else 0


def forecast(args):
    """Milliseconds of a step by hosts, graph, cache and network, with the range of single steps."""
    from mpigraph.cli.forecast.timing import Machine

    return forecasts(args.paths[0], Machine.read(str(args.machine), 1.0), HOSTS, NETWORKS)


def forecasts(folder, machine, all_hosts, networks, made=None, epochs=8):
    keys = sorted(itertools.product(all_hosts, GRAPHS, CACHES), reverse=True)
    made = made or {key: simulated(folder, *key) for key in keys}
    with ProcessPoolExecutor() as pool:
        parts = pool.map(partial(forecast_one, machine, networks, epochs), keys, [made[key] for key in keys])
        return dict(sorted(one for part in parts for one in part.items()))


def forecast_one(machine, networks, epochs, key, made):
    """The forecast of one graph with one cache on some hosts: so many epochs on each network."""
    from mpigraph.cli.forecast.timing import Model, steps
    from mpigraph.cli.forecast.traffic import Cluster

    (hosts, graph, cache), (minibatches, row_bytes) = key, made
    model, count = Model([MODEL], False, GRADIENTS, asks=True), len(minibatches) // hosts // EPOCHS
    result = {}
    for latency, rate in networks:
        node = replace(machine, latency=latency, bandwidth=PAYLOAD * rate / 8, receive=0.0)
        drawn = [
            steps(node, Cluster(hosts, 1, 1), model, minibatches, row_bytes, count, seed) for seed in range(epochs)
        ]
        each = 1e3 * np.concatenate(drawn)
        name = f"{hosts} {graph} {cache} {latency * 1e3:g} {rate / 1e6:g}"
        result[name] = [float(each.mean()), *np.quantile(each, (0.1, 0.9)).tolist()]
    return result


def simulated(folder, hosts, graph, cache):
    """Minibatches of all trainers in whole epochs, once their caches are full, and the bytes of a row."""
    from mpigraph.cli.forecast.traffic import Cluster, Graph, Workload, simulate
    from mpigraph.storage.contents import PartFiles
    from mpigraph.storage.part_config import PartConfig

    path = config_of(folder, graph, hosts)
    with PartFiles(PartConfig.read(str(path))) as files:
        topology = Graph(files)
    work = Workload(FANOUTS, GRAPHS[graph], slots_of(path, CACHES[cache])[0], drop_last=True)
    simulate(topology, Cluster(hosts, 1, 1), work, minibatches=1)
    made = simulate(topology, Cluster(hosts, 1, 1), work, epochs=WARM_EPOCHS + EPOCHS)
    return [m for m in made if m.epoch >= WARM_EPOCHS], sum(nbytes for _, _, nbytes in topology.features)


def calibrate(args):
    """Fit the machine to four networks of two and of four hosts; its network sends in order, and asks nobody first."""
    from mpigraph.cli.forecast.timing import Machine

    folder, path = args.paths
    known = json.loads(path.read_text())
    made = {key: simulated(folder, *key) for key in itertools.product(CALIBRATED_HOSTS, GRAPHS, CACHES)}
    best, machine = np.inf, Machine(cores=os.cpu_count(), shared_cores=True, handshake=1e12, segment=1e12)
    machine = replace(machine, message=1e-4, request=4e-4, byte=6e-10, minibatch=1e-3, speed=0.5)
    tried = {
        "message": (3e-5, 6e-5, 1e-4, 1.5e-4, 2.2e-4),
        "request": (0.0, 2e-4, 4e-4, 7e-4, 1e-3),
        "byte": (3e-10, 6e-10, 1e-9, 1.5e-9),
        "minibatch": (0.0, 1e-3, 2e-3, 4e-3, 7e-3),
        "rows": (1e9, 2e9, 4e9),
        "speed": (0.25, 0.35, 0.5, 0.7),
        "polling": (0.0, 0.05, 0.1, 0.15),
    }
    for _ in range(2):  # one field after the other
        for name, values in tried.items():
            for value in values:
                node = replace(machine, **{name: value})
                guessed = forecasts(folder, node, CALIBRATED_HOSTS, CALIBRATION, made, epochs=1)
                wrong = float(np.mean([abs(np.log(guessed[k][0] / known[k][0])) for k in known]))
                if wrong < best:
                    best, machine = wrong, node
            print(name, getattr(machine, name), f"{best:.1%}", flush=True)
    return asdict(machine)


def measure(args):
    """Milliseconds of a step, as :func:`forecast`."""
    all_hosts, networks = (CALIBRATED_HOSTS, CALIBRATION) if args.calibration else (HOSTS, NETWORKS)
    result = {}
    for hosts in all_hosts:
        result |= measured(args.paths[0], hosts, networks)
        if args.out:  # what a later job that fails does not take along
            args.out.write_text(json.dumps(result), encoding="utf-8")
    return result


def measured(folder, hosts, networks):
    import namespaces

    delay, rate = networks[0]
    with tempfile.TemporaryDirectory() as out, namespaces.Hosts(hosts, "512m", delay, rate) as made:
        words = [*made.mpiexec(2), sys.executable, __file__, "rank", folder.absolute(), out]
        env = os.environ | {"MPIGRAPH_TRANSPORT": "packed", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "mpig"}
        job = subprocess.Popen(list(map(str, words)), env=env)
        for delay, rate in networks:
            wait_for(Path(out) / "waits", job)
            made.change(delay, rate)
            (Path(out) / "waits").unlink()
            tell(out, f"{hosts} {delay * 1e3:g} {rate / 1e6:g}")
        wait_for(Path(out) / "waits", job)
        (Path(out) / "waits").unlink()
        tell(out, "")
        wait_for(Path(out) / "times.json", job)
        result = json.loads((Path(out) / "times.json").read_text())
        made.kill()
        job.wait()
    return result


def tell(out, text):
    """Write the whole file at once."""
    (Path(out) / "going").write_text(text)
    (Path(out) / "going").rename(Path(out) / "go")


def wait_for(path, job):
    while not path.exists():
        if job.poll() is not None:
            raise RuntimeError(f"the job ended with {job.returncode}")
        time.sleep(0.02)


def rank(args):
    """One rank: on each network that it is told of, so many steps of each graph with and without a cache."""
    import torch

    import mpigraph as mg

    folder, out = args.paths
    mg.distributed.initialize(num_servers=1)
    torch.distributed.init_process_group("gloo")
    number, count = torch.distributed.get_rank(), torch.distributed.get_world_size()
    gradients = torch.zeros(GRADIENTS // 4)
    loops, steps = {}, {}
    for graph, cache in itertools.product(GRAPHS, CACHES):
        config = config_of(folder, graph, count)
        g = mg.distributed.DistGraph(graph, part_config=str(config))
        seeds = mg.distributed.node_split(g.ndata["train_mask"], g.get_partition_book())
        nbytes = slots_of(config, CACHES[cache])[1]
        loader = mg.distributed.DistNodeDataLoader(
            g,
            seeds,
            mg.dataloading.NeighborSampler(list(FANOUTS)),
            batch_size=GRAPHS[graph],
            shuffle=True,
            drop_last=True,
            features=["feat"],
            cache=nbytes or None,
            seed=0,
        )
        loops[f"{graph} {cache}"] = itertools.chain.from_iterable(itertools.repeat(loader))
        steps[f"{graph} {cache}"] = -(-STEPS // len(loader)) * len(loader)
        take(loops[f"{graph} {cache}"], WARM, gradients)
    times = {}
    while (told := next_network(out, number)) != "":
        hosts, *network = told.split()
        for name, loop in loops.items():
            seconds = take(loop, SKIPPED + steps[name], gradients)[SKIPPED:]
            each = 1e3 * np.array(seconds)
            times[" ".join([hosts, name, *network])] = [float(each.mean()), *np.quantile(each, (0.1, 0.9)).tolist()]
    if number == 0:
        (out / "written").write_text(json.dumps(times))
        (out / "written").rename(out / "times.json")
    torch.distributed.barrier()
    time.sleep(60)  # whoever started it ends it, in the middle of endless loops


def take(loop, count, gradients):
    """Seconds of steps."""
    import torch

    seconds, begin = [], time.perf_counter()
    for _ in itertools.islice(loop, count):
        time.sleep(MODEL)
        torch.distributed.all_reduce(gradients)
        end = time.perf_counter()
        seconds.append(end - begin)
        begin = end
    return seconds


def next_network(out, number):
    """Wait until the network is another one; trainer 0 tells the others its name."""
    import torch

    torch.distributed.barrier()
    if number == 0:
        (out / "waits").touch()
        while not (out / "go").exists() or (out / "waits").exists():
            time.sleep(0.02)
        time.sleep(0.1)
    words = [(out / "go").read_text()] if number == 0 else [""]
    if number == 0:
        (out / "go").unlink()
    torch.distributed.broadcast_object_list(words)
    return words[0]


def compare(args):
    """Print the errors of a forecast."""
    guessed, known = (json.loads(path.read_text()) for path in args.paths)
    rows = [(name, guessed[name][0], known[name][0], guessed[name][0] / known[name][0] - 1) for name in known]
    for name, expected, seen, error in rows:
        print(f"{name:40} {expected:8.1f} {seen:8.1f} {error:+7.1%}")
    errors = np.abs([row[-1] for row in rows])
    print(f"median {np.median(errors):.1%}, 90 % below {np.quantile(errors, 0.9):.1%}, largest {errors.max():.1%}")
    return [list(row) for row in rows]


if __name__ == "__main__":
    main()
