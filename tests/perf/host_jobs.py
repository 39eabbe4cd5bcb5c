"""Starts one distributed job on hosts made by ``namespaces.py``, of either system, and waits for its result."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import common
import namespaces
from namespaces import INTERFACE

PORT = 30050


def run(hosts, system, what, base, graph, limit=400.0, **options):
    """Run a job on all hosts with one server and one trainer of one thread on each, or as many as the options say.

    Args:
        hosts: :class:`namespaces.Hosts`.
        system: "mpigraph", "dgl" or "graphbolt".
        what: what ``job.py`` does.
        base: the directory of the graph that ``prepare.py`` wrote.
        graph: its name.
        limit: seconds after which the job is ended.
        options: of ``job.py``.

    Returns:
        Of each number that the trainers wrote, the mean over steps and trainers; "start" is the time from the launch to
        the first minibatch where they train.

    Raises:
        RuntimeError: it failed or took too long; with the end of what it printed.
    """
    with tempfile.TemporaryDirectory(prefix="mpig-job-") as directory:
        flags = [f"--{name}={value}" for name, value in options.items()]
        script = [str(common.HERE / "job.py"), what, "--graph", graph, "--out", directory, *flags]
        begin = time.time()
        start = _start_ours if system == common.OURS else _start_dgl
        processes = start(hosts, script, base, graph, Path(directory), system == "graphbolt")
        try:
            _wait(processes, time.monotonic() + float(limit))
        except RuntimeError as error:
            raise RuntimeError(f"{system} {what}: {error}\n{_tails(directory)}") from None
        finally:
            hosts.kill()
            for process in processes:
                process.wait()
        results = [json.loads(path.read_text()) for path in sorted(Path(directory).glob("trainer*.json"))]
    means = {}
    for name in results[0]:
        values = [statistics.mean(result[name]) for result in results if name in result]
        means[name] = statistics.mean(values) - (begin if name == "start" else 0)
    common.say(f"{system} {what}: " + ", ".join(f"{name} {value:.4g}" for name, value in means.items()))
    return means


def in_turn(args, what, sides, rehearse=True):
    """Run jobs in turn on two hosts.

    Args:
        args: of the command line.
        what: what ``job.py`` does.
        sides: name -> system and its options of :func:`run`.
        rehearse: run each once before, which compiles the kernels and warms the page cache.

    Returns:
        What :func:`common.alternate` returns.
    """
    if namespaces.missing():
        sys.exit(f"two hosts are needed: {namespaces.missing()}")
    with namespaces.Hosts(2) as hosts:

        def job(name):
            system, options = sides[name]
            return run(hosts, system, what, args.dir / args.graph, args.graph, **options)

        jobs = {name: partial(job, name) for name in sides}
        for start in jobs.values() if rehearse else ():
            start()
        return common.alternate(jobs, args.rounds, args.quiet)


def _start_ours(hosts, script, base, graph, directory, _):
    flags = ["--system", "mpigraph", "--config", str(base / "parts-2" / f"{graph}.json")]
    counts = {"--num_servers": 1, "--trainers": 1}
    counts |= {name: int(value) for name, _, value in (flag.partition("=") for flag in script) if name in counts}
    command = [*hosts.mpiexec(sum(counts.values())), sys.executable, *script, *flags]
    with open(directory / "ours.log", "w") as log:
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        return [subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, cwd=directory)]


def _start_dgl(hosts, script, base, graph, directory, graphbolt):
    """Servers and trainers as DGL's ``launch.py`` starts them, without ssh."""
    count, config = len(hosts.addresses), str(base / "dgl-2" / f"{graph}.json")
    (directory / "ip_config.txt").write_text("".join(f"{address} {PORT}\n" for address in hosts.addresses))
    env = common.dgl_environment() | {
        "DGL_DIST_MODE": "distributed",
        "DGL_IP_CONFIG": str(directory / "ip_config.txt"),
        "DGL_CONF_PATH": config,
        "DGL_GRAPH_FORMAT": "csc",
        "DGL_NUM_SERVER": "1",
        "DGL_NUM_SAMPLER": "0",
        "DGL_NUM_CLIENT": str(count),
        "DGL_KEEP_ALIVE": "0",
        "MASTER_ADDR": hosts.addresses[0],
        "MASTER_PORT": str(PORT + 900),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "WORLD_SIZE": str(count),
    }
    command = [os.environ["DGL_PYTHON"], *script, "--system", "dgl", "--config", config]
    command += ["--graphbolt"] if graphbolt else []
    processes = []
    for host in range(count):
        for role in ({"DGL_ROLE": "server", "DGL_SERVER_ID": str(host)}, {"DGL_ROLE": "client", "RANK": str(host)}):
            with open(directory / f"{role['DGL_ROLE']}{host}.log", "w") as log:
                options = {"stdout": log, "stderr": subprocess.STDOUT, "cwd": directory}
                processes.append(hosts.popen(host, command, env=env | role | {"LOCAL_RANK": "0"}, **options))
    return processes


def _wait(processes, deadline):
    while any(process.poll() is None for process in processes):
        failed = [process.returncode for process in processes if process.poll() not in (None, 0)]
        if failed:
            raise RuntimeError(f"a process ended with {failed[0]}")
        if time.monotonic() > deadline:
            raise RuntimeError("took too long")
        time.sleep(0.1)
    if any(process.returncode for process in processes):
        raise RuntimeError(f"processes ended with {[process.returncode for process in processes]}")


def _tails(directory):
    logs = sorted(Path(directory).glob("*.log"))
    return "\n".join(f"== {path.name}\n" + "\n".join(path.read_text().splitlines()[-15:]) for path in logs)
