"""Draw rows of results as bars, the time of each system beside the others', for README.md.

    python tests/perf/picture.py loader.json "minibatch" "minibatches on two hosts" \\
        training.json "training step" "training step, two hosts" -o examples/beside.svg

Three words for each group of bars: a JSON file that ``--out`` of a script wrote, the begin of a row's name in it that
has all systems, and a label. Bars of a group are shares of its longest one.
"""

import argparse
import json
from html import escape
from pathlib import Path

NAMES = {"mpigraph": "mpigraph", "dgl": "DGL 2.1", "graphbolt": "DGL with GraphBolt"}
COLOURS = {"mpigraph": "#2f6fab", "dgl": "#9a9a9a", "graphbolt": "#bdbdbd"}
LEFT, WIDTH, BAR, GAP = 230, 640, 15, 24


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("groups", nargs="+", metavar="FILE.json ROW LABEL")
    p.add_argument("-o", "--out", type=Path, required=True, metavar="FILE.svg")
    args = p.parse_args()
    if len(args.groups) % 3:
        p.error("give three words for each group: FILE.json ROW LABEL")
    triples = zip(*[iter(args.groups)] * 3, strict=True)
    args.out.write_text(
        picture([(label, row_of(Path(path), begin)) for path, begin, label in triples]), encoding="utf-8"
    )


def row_of(path, begin):
    """The row whose name begins so, and that has all systems."""
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        if row["what"].startswith(begin) and row["values"].keys() >= NAMES.keys():
            return row
    raise SystemExit(f"{path}: no row {begin!r} with the values of {', '.join(NAMES)}")


def picture(groups):
    """An SVG, readable on light and on dark pages."""
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
