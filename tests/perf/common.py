"""What the comparisons share: alternating runs, quiet machines, ratios, tables."""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(1, str(HERE.parent / "support"))  # scripts find what the tests share, such as namespaces.py
OURS = "mpigraph"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else torch is compiled anew in each start, as pip may not have
FANOUTS = ("10,25", "15,10,5")  # neighbours per layer, outermost hop first
BUSY = 0.15  # cores that others may use on a machine that is called quiet


class Row(NamedTuple):
    """One line of a result.

    Attributes:
        what: the work.
        unit: of the values.
        values: median of each side, by name.
        ratio: median over the rounds of the peer's value divided by ours.
        spread: smallest and largest ratio of a round.
        rounds: the values of each round, by name.
    """

    what: str
    unit: str
    values: dict
    ratio: float | None = None
    spread: tuple | None = None
    rounds: dict | None = None


def parser(doc, graphs=("S", "products")):
    """The options that every script has; ``graphs`` are those that it can work on, the first by default."""
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dir", type=lambda text: Path(text).resolve(), metavar="DIR", help="what prepare.py wrote")
    p.add_argument("--graph", choices=graphs, default=graphs[0])
    p.add_argument("--rounds", type=int, default=3, help="how often each side runs (%(default)s)")
    p.add_argument("--out", type=Path, metavar="FILE.json", help="write the result there, too")
    p.add_argument("--quiet", type=float, default=60.0, help="seconds to wait for a quiet machine (%(default)s)")
    return p


def open_graph(args):
    """The graph in this process, every part of it."""
    import mpigraph.distributed as dist  # here: DGL's processes import this module, too

    dist.initialize()
    return dist.DistGraph(args.graph, part_config=str(args.dir / args.graph / "parts-2" / f"{args.graph}.json"))


def dgl_python():
    """The Python that has DGL, or None after saying that DGL is left out."""
    path = os.environ.get("DGL_PYTHON", "")
    why = "DGL_PYTHON is not set" if not path else ""
    if not why and not shutil.which(path):
        why = f"DGL_PYTHON={path} does not exist"
    if not why:
        check = subprocess.run(
            [path, "-c", "import dgl.graphbolt"], env=dgl_environment(), capture_output=True, text=True
        )
        why = f"{path}: {check.stderr.strip().splitlines()[-1]}" if check.returncode else ""
    if why:
        say(f"DGL is left out: {why}")
        return None
    os.environ["DGL_PYTHON"] = os.path.abspath(shutil.which(path))  # jobs run in directories of their own
    return os.environ["DGL_PYTHON"]


def dgl_environment(threads=1):
    """The environment of a DGL process."""
    return os.environ | {"DGLBACKEND": "pytorch", "OMP_NUM_THREADS": str(threads)}


def say(text):
    """Progress, to stderr."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _busy_and_mine():
    """Seconds that all cores were busy so far, and those that were ours."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:8]
    user, nice, system, _, _, irq, soft = (int(field) / os.sysconf("SC_CLK_TCK") for field in fields)
    t = os.times()
    return user + nice + system + irq + soft, t.user + t.system


def load_of_others(span=1.0):
    """How many cores other processes used during ``span`` seconds; children of this one that are idle count as none."""
    busy, mine = _busy_and_mine()
    time.sleep(span)
    busy_after, mine_after = _busy_and_mine()
    return max(0.0, (busy_after - busy) - (mine_after - mine)) / span


def wait_for_quiet(limit):
    """Wait until others use less than :data:`BUSY` cores, ``limit`` seconds at most; return what they use."""
    end, load = time.monotonic() + limit, load_of_others()
    while load >= BUSY and time.monotonic() < end:
        load = load_of_others()
    return load


def alternate(sides, rounds, quiet=0.0):
    """Run the sides in turn, A B B A: each comes first as often as last.

    Args:
        sides: name -> function without arguments that returns a number or a dict of numbers.
        rounds: how often each runs.
        quiet: seconds to wait for a quiet machine before each side.

    Returns:
        Name -> the results in the order of the rounds, and the cores that others used before each.
    """
    found, loads = {name: [] for name in sides}, []
    for round_number in range(rounds):
        for name in list(sides)[:: -1 if round_number % 2 else 1]:
            loads.append(round(wait_for_quiet(quiet), 2) if quiet else 0.0)
            found[name].append(sides[name]())
        say(f"round {round_number + 1} of {rounds}; others used {loads[-len(sides) :]} cores")
    return found, loads


def compare(what, unit, rounds, peer, ours=OURS):
    """Make a :class:`Row` of two sides of the rounds (name -> numbers); the ratio says how much less ours needs."""
    sides = {name: rounds[name] for name in (ours, peer)}
    ratios = [theirs / mine for mine, theirs in zip(sides[ours], sides[peer], strict=True)]
    values = {name: statistics.median(numbers) for name, numbers in sides.items()}
    return Row(what, unit, values, statistics.median(ratios), (min(ratios), max(ratios)), sides)


def alone(what, unit, rounds):
    """A :class:`Row` without a ratio: the medians of all sides."""
    return Row(what, unit, {name: statistics.median(numbers) for name, numbers in rounds.items()}, rounds=rounds)


def beside(what, unit, rounds):
    """Rows of a measure: this library beside each other side, then all sides."""
    peers = [name for name in rounds if name != OURS]
    return [*(compare(f"{what}, beside {peer}", unit, rounds, peer) for peer in peers), alone(what, unit, rounds)]


def pick(rounds, key, scale=1.0):
    """Of results that are dicts, one number: name -> numbers."""
    return {name: [result[key] * scale for result in results] for name, results in rounds.items()}


def markdown(rows):
    """The rows as a Markdown table."""
    lines = ["| work | values | ratio (range) |", "|---|---|---|"]
    for row in rows:
        values = ", ".join(f"{name} {value:.4g}" for name, value in row.values.items())
        ratio = f"{row.ratio:.2f} ({row.spread[0]:.2f}-{row.spread[1]:.2f})" if row.ratio is not None else ""
        lines.append(f"| {row.what} | {values} {row.unit} | {ratio} |")
    return "\n".join(lines)


def report(args, rows, **more):
    """Print the table and write the JSON file that ``--out`` names."""
    print(markdown(rows), flush=True)
    if args.out is not None:
        content = {"at": time.strftime("%Y-%m-%dT%H:%M:%S"), "graph": args.graph, "cores": os.cpu_count(), **more}
        content["rows"] = [row._asdict() for row in rows]
        args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


class Stopwatch:
    """Wall and CPU seconds of each pass through a ``with`` block."""

    def __init__(self):
        self.wall, self.cpu = [], []

    def __enter__(self):
        self._start = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *error):
        self.wall.append(time.perf_counter() - self._start[0])
        self.cpu.append(time.process_time() - self._start[1])

    def medians(self):
        """Of what was timed."""
        return {"wall": statistics.median(self.wall), "cpu": statistics.median(self.cpu)}


class Worker:
    """A process that stays alive and does one thing at a time, told by lines of JSON."""

    def __init__(self, command, env=None):
        self._process = subprocess.Popen(
            list(map(str, command)), env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ask("ready")

    def ask(self, do, **arguments):
        """Tell it to do something; return what it answers.

        Raises:
            RuntimeError: it has ended.
        """
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self.close()
        raise RuntimeError(f"{' '.join(self._process.args)} ended with {self._process.returncode}")

    def close(self):
        """End it."""
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def answer(**what):
    """The other end of a :class:`Worker`: do what each line of stdin says; ``what`` is name -> function."""
    for line in sys.stdin:
        order = json.loads(line)
        do = order.pop("do")
        print(json.dumps({} if do == "ready" else what[do](**order)), flush=True)
