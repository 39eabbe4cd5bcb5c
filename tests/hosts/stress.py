"""Start the example's job again and again on two hosts, and report each that does not end well.

    python tests/hosts/stress.py CONFIG --graph_name S --jobs 15                # as root

A wait that lasts 25 s counts as a hang: the watchdog then prints every rank's stacks, and so does this.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
import namespaces  # noqa: E402

TIMEOUT, LIMIT = 25, 90  # seconds of a wait, and of a job


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("config")
    p.add_argument("--graph_name", default="S")
    p.add_argument("--jobs", type=int, default=15)
    p.add_argument("--ranks", type=int, default=2, help="on each host")
    p.add_argument("--script", default=str(HERE.parents[1] / "examples/node_classification.py"))
    args, flags = p.parse_known_args()
    flags = flags or "--num_epochs 4 --eval_every 4 --batch_size 200".split()
    script = [sys.executable, args.script, "--graph_name", args.graph_name, "--part_config", args.config, *flags]
    failed = 0
    with namespaces.Hosts(2) as hosts:
        for number in range(args.jobs):
            begin = time.monotonic()
            said = run(hosts, [*hosts.mpiexec(args.ranks), *script])
            failed += bool(said)
            print(f"job {number}: {time.monotonic() - begin:.1f} s {said or 'ok'}", flush=True)
    sys.exit(failed > 0)


def run(hosts, command):
    """Return the error of a job, or an empty string."""
    env = os.environ | {"MPIGRAPH_TIMEOUT": str(TIMEOUT), "OMP_NUM_THREADS": "1"}
    job = subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output = job.communicate(timeout=LIMIT)[0]
    except subprocess.TimeoutExpired:
        hosts.kill()
        return f"took more than {LIMIT} s\n{job.communicate()[0]}"
    left = hosts.processes()
    hosts.kill()
    return f"status {job.returncode}, processes left {left}\n{output}" if job.returncode or left else ""


if __name__ == "__main__":
    main()
