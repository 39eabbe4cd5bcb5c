"""Measure what README.md shows, and write its table and its picture: one command, 40 minutes with DGL on two cores.

    DGL_PYTHON=... python tests/perf/all.py DATA                  # as root, for two hosts
    python tests/perf/all.py DATA --only sampling loader -o OUT

Prepares the graph S (``prepare.py``), runs each script in turn with its peers, each round when the cores are quiet, and
writes ``OUT/NAME.json`` for each (OUT is ``DATA/results``), ``OUT/table.md`` and ``OUT/beside.svg``. With ``--only``
and no name it writes the table and the picture of what is in OUT. What cannot run (no DGL, no root) is named; the exit
status is then 1.
"""

import json
import subprocess
import sys
from html import escape
from pathlib import Path

import common

RUNS = {  # name -> (words of the table, script and its options)
    "sampling": ("sample and renumber 1000 seeds, one process", ["sampling.py"]),
    "gather": ("100,000 local rows", ["gather.py"]),
    "loader": ("minibatches without a model, two hosts", ["two_hosts.py", "loader"]),
    "no-cache": ("the same without a cache", ["two_hosts.py", "loader", "cache=none"]),
    "train": ("training on two hosts, fanouts 10,25", ["two_hosts.py", "train"]),
    "train-3": ("training on two hosts, fanouts 15,10,5", ["two_hosts.py", "train", "fanouts=15,10,5", "steps=12"]),
    "partition": ("partitioning", ["partition.py", "--rounds", "1"]),
}
BARS = [  # of the picture: the run, how its row begins, a label
    ("loader", "minibatch", "minibatches, two hosts"),
    ("train", "training step", "training step, fanouts 10,25"),
    ("train-3", "training step", "training step, fanouts 15,10,5"),
    ("train", "start", "start to the first minibatch"),
]
NAMES = {"mpigraph": "mpigraph", "dgl": "DGL 2.1", "graphbolt": "DGL with GraphBolt"}
COLOURS = {"mpigraph": "#2f6fab", "dgl": "#9a9a9a", "graphbolt": "#bdbdbd"}
LEFT, WIDTH, BAR, GAP = 230, 640, 15, 24


def main():
    p = common.parser(__doc__, graphs=("S",))
    p.add_argument("--only", nargs="*", choices=tuple(RUNS), default=tuple(RUNS), help="these; none: write the table")
    p.add_argument("-o", "--output", type=Path, metavar="OUT", help="folder of the results (DATA/results)")
    args = p.parse_args()
    out = args.output or args.dir / "results"
    out.mkdir(parents=True, exist_ok=True)
    failed = [name for name in args.only if not measured(name, args, out / f"{name}.json")]
    results = read(out)
    (out / "table.md").write_text(table(results), encoding="utf-8")
    print(table(results), end="")
    if groups := [(label, row) for run, begin, label in BARS if (row := of_all(results, run, begin))]:
        (out / "beside.svg").write_text(picture(groups), encoding="utf-8")
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


def measured(name, args, result):
    """Run a script; return whether it has written its result."""
    words, (script, *options) = RUNS[name]
    common.say(f"{name}: {words}")
    once = ["--graph", args.graph, "--rounds", args.rounds, "--quiet", args.quiet, "--out", result]
    prepare = [sys.executable, common.HERE / "prepare.py", args.dir, "--graph", args.graph]
    measure = [sys.executable, common.HERE / script, args.dir, *once, *options]
    return all(subprocess.run(list(map(str, words)), stdout=sys.stderr).returncode == 0 for words in (prepare, measure))


def read(folder):
    """The rows of each script that ran, by name."""
    results = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}
    return {name: results[name]["rows"] for name in RUNS if name in results}


def table(results):
    """A Markdown table: a line for each ratio."""
    lines = ["| work | ratio (range) | here |", "|---|---|---|"]
    for run, rows in results.items():
        for row in rows:
            if row["ratio"] is not None:
                low, high = row["spread"]
                here = f"{row['values'][common.OURS]:.3g} {row['unit']}"
                lines.append(
                    f"| {RUNS[run][0]}: {row['what']} | **{row['ratio']:.2f}** ({low:.2f}-{high:.2f}) | {here} |"
                )
    return "\n".join([*lines, ""])


def of_all(rows, run, begin):
    """The row of a run whose name begins so, and that has all systems; None if there is none."""
    found = [row for row in rows.get(run, []) if row["what"].startswith(begin)]
    return next((row for row in found if row["values"].keys() >= NAMES.keys()), None)


def picture(groups):
    """An SVG of bars, readable on light and on dark pages; the bars of a group are shares of its longest."""
    height = len(groups) * (len(NAMES) * BAR + GAP)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-family="sans-serif" '
        'font-size="12"><title>Time beside DGL: shorter is better</title>',
        "<style>text{fill:#24292f}@media(prefers-color-scheme:dark){text{fill:#e6e6e6}}</style>",
    ]
    for number, (label, row) in enumerate(groups):
        y = number * (len(NAMES) * BAR + GAP) + GAP / 2
        longest = max(row["values"][side] for side in NAMES)
        lines.append(f'<text x="0" y="{y + 12:.0f}" font-weight="bold">{escape(label)}</text>')
        for place, (side, name) in enumerate(NAMES.items()):
            value, top = row["values"][side], y + place * BAR
            width = (WIDTH - LEFT - 190) * value / longest
            lines.append(
                f'<rect x="{LEFT}" y="{top:.0f}" width="{width:.1f}" height="{BAR - 3}" fill="{COLOURS[side]}"/>'
                f'<text x="{LEFT + width + 6:.1f}" y="{top + 10:.0f}">{name} {value:.3g} {escape(row["unit"])}</text>'
            )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    main()
