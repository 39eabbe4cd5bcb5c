"""``report.html``: one file for any browser, without any address in it and without a script.

Its charts are inline SVG: rows of bars that fill the width of the page, and matrices. Text is escaped here; numbers are
limited to what the page shows. A chart has a title and a description for readers who do not see it, and says with words
or heights what it says with colours.
"""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpigraph.memory import in_units
from mpigraph.reports.summary import PAGE, Rank, Summary, replacing
from mpigraph.reports.verdict import SLOW, STAGES, StepTable, Verdict, duration, judge, main_thread

_F64 = NDArray[np.float64]

_MOST_ROWS = 160
"""Rows of a chart; more ranks than these are left out, the slowest kept."""
_MOST_CELLS = 128  # of a matrix, on each side
_MOST_COLUMNS = 240  # of a strip
_LEVELS = 8
_HEAD = (
    '<!doctype html><html lang="en"><meta charset="utf-8">'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    '<meta name="viewport" content="width=device-width, initial-scale=1"><title>mpigraph report</title>'
)


class _Bar(NamedTuple):
    """A piece of a row: ends as shares of the width."""

    stage: str
    begin: float
    end: float
    words: str = ""


def _short(text: str, most: int = 22) -> str:
    """Return text that is cut and escaped."""
    return escape(text if len(text) <= most else f"{text[: most - 1]}…")


def _rows(title: str, about: str, names: Sequence[tuple[str, bool]], height: float, plot: str) -> str:
    """Return names beside a plot that is as wide as the page.

    Args:
        title: of the chart.
        about: the chart in words.
        names: of the rows, and whether each is emphasized.
        height: of a row, in pixels; of thin rows only the emphasized and some others have their names.
        plot: SVG, with x in percent and y in pixels.
    """
    texts: dict[float, str] = {}
    often = int(np.ceil(14 / height))
    for i, (name, strong) in sorted(enumerate(names), key=lambda row: not row[1][1]):
        y = max((i + 0.5) * height + 4, 10)
        if (strong or i % often == 0) and all(abs(y - other) >= 12 for other in texts):
            texts[y] = f'<text class="{"slow" if strong else ""}" y="{y:.1f}">{_short(name)}</text>'
    size = f'height="{height * len(names) + 2:.0f}"'
    drawn = _svg(f'class="plot" {size}', title, about, plot)
    return (
        f'<div class="chart"><svg class="names" {size} aria-hidden="true">{"".join(texts.values())}</svg>{drawn}</div>'
    )


def _strip(values: _F64, waits: _F64, slow: NDArray[np.bool_], height: float) -> str:
    """Return a row of columns for each trainer: its own time, dark or in the colour of slow steps, below its waits."""
    count = values.shape[1]
    width = -(-count // _MOST_COLUMNS)
    firsts = np.arange(0, count, width)
    values, waits = (np.maximum.reduceat(array, firsts, axis=1) for array in (values, values + waits))
    slow = np.logical_or.reduceat(slow, firsts, axis=1)
    highest = max(float(np.quantile(waits, 0.98)) * 1.05, 1e-12)
    heights = np.minimum(np.stack([values, waits]) / highest, 1)
    parts = []
    for i in range(len(values)):
        drawn = ""
        for name, up, chosen in (
            ("pale", heights[1, i], np.ones(len(firsts), bool)),
            ("usual", heights[0, i], ~slow[i]),
            ("slow", heights[0, i], slow[i]),
        ):
            columns = "".join(f"M{x} 100V{100 - 100 * up[x]:.0f}h.9V100" for x in np.flatnonzero(chosen))
            drawn += f'<path class="{name}" d="{columns}"/>'
        y = f'y="{i * height:.1f}" height="{max(height - (3 if height > 12 else 1), 2):.1f}"'
        parts.append(f'<svg viewBox="0 0 {len(firsts)} 100" preserveAspectRatio="none" width="100%" {y}>{drawn}</svg>')
    return "".join(parts)


def _bars(y: float, height: float, pieces: Iterable[_Bar]) -> str:
    """Return bars that lie side by side; the text of a bar is cut where the bar ends."""
    parts = []
    for stage, begin, end, words in pieces:
        text = f'<text class="in" x="4" y="{height / 2 + 4:.0f}">{escape(words)}</text>' if height >= 10 else ""
        parts.append(
            f'<svg class="cell" x="{100 * begin:.2f}%" y="{y:.1f}" '
            f'width="{max(100 * (end - begin), 0.05):.2f}%" height="{height:.1f}">'
            f'<rect class="{_class(stage)}" width="100%" height="100%"/>{text}<title>{escape(words)}</title></svg>'
        )
    return "".join(parts)


def _legend(stages: Iterable[str]) -> str:
    """Return the colours of stages, and what each is."""
    names = sorted(set(stages), key=lambda name: (name not in STAGES, name in STAGES and list(STAGES).index(name)))
    return _key((_class(name), f"{name}: {STAGES[name]}" if name in STAGES else name) for name in names[:24])


def _key(colours: Iterable[tuple[str, str]]) -> str:
    """Return the meaning of colours, as pairs of a class and words."""
    items = (
        f'<li><svg aria-hidden="true"><rect class="{name}" width="12" height="12"/></svg>{_short(words, 60)}</li>'
        for name, words in colours
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def _matrix(
    title: str,
    about: str,
    names: Sequence[str],
    columns: Sequence[str],
    entries: Iterable[tuple[int, int, float]],
    show: Callable[[float], str],
) -> str:
    """Return a matrix of sums; from 129 rows or columns on, neighbours share a cell.

    Args:
        title: of the chart.
        about: the chart in words.
        names: of the rows.
        columns: names of the columns.
        entries: (row, column, value), each added.
        show: a value as text.
    """
    down = min(len(names), _MOST_CELLS)
    across = min(len(columns), _MOST_CELLS)
    values = np.zeros((down, across))
    for row, column, value in entries:
        values[row * down // len(names), column * across // len(columns)] += value
    left = 96.0
    top = 22.0
    cell = 264 / max(down, across)
    level = np.ceil(values / (values.max() or 1.0) * _LEVELS).astype(int)
    size = f"h{cell * 0.96:.2f}v{cell * 0.96:.2f}h-{cell * 0.96:.2f}"
    parts = []
    for k in range(1, _LEVELS + 1):
        cells = "".join(f"M{left + c * cell:.1f} {top + r * cell:.1f}{size}" for r, c in np.argwhere(level == k))
        parts.append(f'<path class="heat" fill-opacity="{k / _LEVELS:.2f}" d="{cells}"/>' if cells else "")
    parts.append(f'<rect class="grid" x="{left}" y="{top}" width="{across * cell:.1f}" height="{down * cell:.1f}"/>')
    for r in range(0, down, int(np.ceil(13 / cell))):
        name = names[-(-r * len(names) // down)]
        parts.append(_text(left - 4, top + (r + 0.5) * cell + 4, _short(name, 17), "end"))
    for c in range(0, across, int(np.ceil(26 / cell))):
        name = columns[-(-c * len(columns) // across)]
        parts.append(_text(left + (c + 0.5) * cell, top - 6, _short(name, 8), "middle"))
    for r, c in np.argwhere(values > 0) if max(down, across) <= 6 else ():
        middle = (left + (c + 0.5) * cell, top + (r + 0.5) * cell + 4)
        parts.append(_text(*middle, escape(show(values[r, c])), "middle", "strong" if level[r, c] > 5 else ""))
    box = f'class="square" viewBox="0 0 364 {top + down * cell + 2:.0f}"'
    return _svg(box, title, about, "".join(parts))


def _svg(attributes: str, title: str, about: str, content: str) -> str:
    return f'<svg {attributes} role="img"><title>{escape(title)}</title><desc>{escape(about)}</desc>{content}</svg>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    return f'<text class="small {kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _class(stage: str) -> str:
    return stage if stage in STAGES else "other"


def write_page(folder: Path, summary: Summary) -> None:
    """Write ``report.html`` to a folder. Raises StorageError."""
    with replacing(folder / PAGE) as temporary:
        temporary.write_text(render(summary), encoding="utf-8", errors="replace")


def render(summary: Summary) -> str:
    """Return the page of a report."""
    table = StepTable(summary)
    verdict = judge(summary)
    job = summary.job
    servers = len(summary.ranks) - len(summary.trainers)
    counts = {"trainer": len(summary.trainers), "server": servers, "node": len(summary.nodes), "step": table.count}
    sizes = [f"{number} {name}{'s' if number > 1 else ''}" for name, number in counts.items() if number]
    facts = [job.began, *sizes, duration(job.seconds)]
    named = "named" if verdict.ranks else ""
    parts = [
        f"{_HEAD}<style>{_style()}</style><main><h1>mpigraph report</h1>",
        f'<p class="soft">{escape(" · ".join(filter(None, facts)))}</p>',
        f'<section class="verdict {named}" aria-label="Verdict"><p>{escape(verdict.text)}</p>'
        f'<p class="soft">{escape(verdict.remedy)}</p></section>',
        _steps(summary, table, verdict),
        f'<div class="two">{_waits(summary, table)}{_bytes(summary)}</div>',
        _stages(summary, verdict),
        _settings(summary),
        "</main></html>",
    ]
    return "\n".join(filter(None, parts))


def _style() -> str:
    return Path(__file__).with_name("page.css").read_text(encoding="utf-8")


def _section(title: str, how: str, *content: str) -> str:
    return f'<section><h2>{title}</h2><p class="soft">{how}</p>{"".join(content)}</section>'


def _names(summary: Summary, ranks: Iterable[Rank], verdict: Verdict | None = None) -> list[tuple[str, bool]]:
    named = verdict.ranks if verdict else ()
    return [(f"{rank.name} · {summary.node_of(rank)}", rank.rank in named) for rank in ranks]


def _step_strip(summary: Summary, table: StepTable, verdict: Verdict) -> str:
    chosen = np.sort(np.argsort(-table.clean.mean(axis=1), kind="stable")[:_MOST_ROWS])
    height = float(np.clip(520 / len(chosen), 4, 34))
    trainers = [table.trainers[i] for i in chosen.tolist()]
    slow = table.slow()
    about = "; ".join(
        f"{trainer.name}: {slow[i].sum()} slow steps" for i, trainer in zip(chosen, trainers, strict=True)
    )
    waits = table.seconds - table.clean
    plot = _strip(table.clean[chosen], waits[chosen], slow[chosen], height)
    return _rows("Steps of all trainers", about, _names(summary, trainers, verdict), height, plot)


def _steps(summary: Summary, table: StepTable, verdict: Verdict) -> str:
    if not table.count:
        return _section("Steps of all trainers", "The times of single steps are not known.")
    how = (
        "A column is a step. Below: the trainer's own time; faint, above it: waits for other ranks. The second colour "
        f"marks steps of {SLOW} times the median and more. Median step: {duration(table.step)}."
    )
    axis = f'<div class="axis"><span>step 0</span><span>{table.count - 1}</span></div>'
    colours = _key([("usual", "own time"), ("slow", "own time of a slow step"), ("pale", "waiting for others")])
    return _section("Steps of all trainers", how, colours, _step_strip(summary, table, verdict), axis, _numbers(table))


def _numbers(table: StepTable) -> str:
    head = ["trainer", "median step", "own time", "waits: minibatch", "waits: trainers", "slow steps", "input nodes"]
    columns = [np.median(values, axis=1) for values in (table.seconds, table.clean, table.wait, table.meet)]
    slow = table.slow().sum(axis=1)
    inputs = np.median(table.column("inputs"), axis=1)
    lines = [
        [str(rank.number), *(duration(float(column[i])) for column in columns), f"{slow[i]}", f"{inputs[i]:,.0f}"]
        for i, rank in enumerate(table.trainers)
    ]
    return _details("as numbers", _table(head, lines, numbers=True))


def _details(title: str, content: str) -> str:
    return f'<details><summary>{title}</summary><div class="wide">{content}</div></details>'


def _table(head: Sequence[str], lines: Sequence[Sequence[str]], numbers: bool = False) -> str:
    kind = ' class="n"' if numbers else ""
    top = "".join(f"<th{kind}>{escape(name)}" for name in head)
    body = "".join("<tr>" + "".join(f"<td{kind}>{escape(cell)}" for cell in line) for line in lines)
    return f"<table><tr>{top}{body}</table>" if head else f"<table>{body}</table>"


def _waits(summary: Summary, table: StepTable) -> str:
    trainers = table.trainers
    entries = _waits_by_step(table)
    title = "Which trainer waits for which"
    if not entries:
        return _section(title, "No trainer waited for another.")
    by_cause = np.bincount([column for _, column, _ in entries], [seconds for *_, seconds in entries])
    most = [c for c in np.argsort(-by_cause, kind="stable")[:3].tolist() if by_cause[c]]
    worst = ", ".join(f"{trainers[c].name} ({summary.node_of(trainers[c])}) {duration(by_cause[c])}" for c in most)
    names = [name for name, _ in _names(summary, trainers)]
    chart = _matrix(title, worst, names, [str(t.number) for t in trainers], entries, duration)
    how = f"A row waits for the column, the trainer that came last in a step. Most waited for: {escape(worst)}."
    return _section(title, how, chart)


def _waits_by_step(table: StepTable) -> list[tuple[int, int, float]]:
    """Return who waited how long for the trainer that came last in each step."""
    if len(table.trainers) < 2 or not table.count or not table.meet.any():
        return []
    last = table.meet.argmin(axis=0)
    waited = table.meet - table.meet.min(axis=0)
    return [
        (row, int(column), float(waited[row, last == column].sum()))
        for row in range(len(waited))
        for column in np.unique(last)
        if waited[row, last == column].any()
    ]


def _bytes(summary: Summary) -> str:
    met = {to.trainer_number for rank in summary.ranks for to in rank.to_trainers}
    hosts = [rank for rank in summary.ranks if rank.hosts or (rank.role == "trainer" and rank.number in met)]
    place = {host.rank: i for i, host in enumerate(hosts)}
    of_trainer = {rank.number: rank.rank for rank in summary.trainers}
    readers = [rank for rank in summary.ranks if rank.to_hosts or rank.to_trainers]
    entries = []
    for i, rank in enumerate(readers):
        sizes = [(to.host_rank, to.bytes_sent + to.bytes_received) for to in rank.to_hosts]
        for to in rank.to_trainers:
            sizes.append((of_trainer.get(to.trainer_number, -1), to.bytes_sent + to.bytes_received))
        entries += [(i, place[other], size) for other, size in sizes if other in place]
    title = "Bytes between ranks and hosts"
    if not entries:
        return _section(title, "No rank exchanged messages with a host.")
    names = [name for name, _ in _names(summary, readers)]
    columns = [host.name[0] + str(host.number) for host in hosts]
    total = f"{in_units(sum(size for *_, size in entries))} in all"
    chart = _matrix(title, total, names, columns, entries, lambda size: in_units(int(size)))
    how = f"Row: the rank that asks. Column: the host (t: trainer, s: server). Both ways, {total}."
    more = " Tensors of torch's process group over MPI are among them." if met else ""
    return _section(title, how + more, chart)


def _stage_rows(summary: Summary, ranks: Sequence[Rank], verdict: Verdict) -> str:
    height = 30.0
    longest = max([rank.seconds for rank in ranks] + [1e-9])
    plot = []
    for row, rank in enumerate(ranks):
        main = main_thread(rank)
        threads = [main, *(thread for thread in rank.threads if thread is not main)][:3]
        top = 0.0
        for thread in threads:
            seconds = {name: stage.own for name, stage in thread.stages.items()}
            seconds["rest"] = max(thread.rest or 0.0, 0.0)
            pieces = []
            at = 0.0
            for name in sorted(seconds, key=lambda name: (name in ("meet", "own", "rest"), name)):
                words = f"{name} {duration(seconds[name])}" + ("" if thread is main else f" ({thread.name[:40]})")
                if seconds[name] > 0.001 * longest:
                    pieces.append(_Bar(name, min(at / longest, 1), min((at + seconds[name]) / longest, 1), words))
                at += seconds[name]
            thick = 16.0 if thread is main else 5.0
            plot.append(_bars(row * height + top, thick, pieces))
            top += thick
    about = "; ".join(f"{rank.name}: {duration(rank.seconds)}" for rank in ranks)
    return _rows("Stages by rank", about, _names(summary, ranks, verdict), height, "".join(plot))


def _busy(rank: Rank) -> tuple[bool, float]:
    """Order ranks: trainers first, by the time without waits."""
    stages = main_thread(rank).stages.items()
    return rank.role == "server", -sum(stage.own for name, stage in stages if name not in ("wait", "meet", "own"))


def _stages(summary: Summary, verdict: Verdict) -> str:
    ranks = sorted((rank for rank in summary.ranks if rank.threads), key=_busy)
    if not ranks:
        return _section("Stages by rank", "No spans were recorded.")
    how = (
        "Thick: the thread that trains, or a server's; thin: other threads, such as the one that makes minibatches. "
        "Sorted by the time without waits. Each stage is without the stages inside it."
    )
    stages = [name for rank in ranks for thread in rank.threads for name in thread.stages]
    head = ranks[:24]
    tail = ranks[24 : 24 + _MOST_ROWS]
    more = _details(f"{len(tail)} more ranks", _stage_rows(summary, tail, verdict)) if tail else ""
    return _section("Stages by rank", how, _legend([*stages, "rest"]), _stage_rows(summary, head, verdict), more)


def _settings(summary: Summary) -> str:
    job = summary.job
    facts = {
        "command": " ".join(job.command),
        "began": job.began,
        "transport": job.transport,
        "exchange of sampling requests": job.exchange,
        "process group": job.process_group,
    }
    facts |= {f"graph {graph.name}": f"{graph.nodes:,} nodes, {graph.edges:,} edges" for graph in job.graphs}
    facts |= {f"version of {name}": text for name, text in job.versions.items()}
    facts |= {f"argument {name}": text for name, text in job.arguments.items()} | job.settings
    lines = [[name, text] for name, text in facts.items() if text]
    head = ["rank", "role", "node", "process", "rows", "wall time", "processor", "run delay", "major faults"]
    layout = [
        [
            str(rank.rank),
            rank.name,
            summary.node_of(rank),
            str(rank.pid),
            "hosts" if rank.hosts else "",
            duration(rank.seconds),
            *("?" if seconds is None else duration(seconds) for seconds in (rank.cpu.seconds, rank.cpu.run_delay)),
            "?" if rank.cpu.major_faults is None else f"{rank.cpu.major_faults:,}",
        ]
        for rank in summary.ranks
    ]
    return _section(
        "Settings, versions and layout",
        "",
        f'<div class="wide">{_table([], lines)}</div>',
        _details("ranks", _table(head, layout)),
    )
