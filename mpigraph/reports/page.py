"""``report.html``: one file for any browser, without any address in it and without a script.

Its charts are rows of bars that fill the width of the page, rows of columns (inline SVG), and tables with darker cells.
Text is escaped here; numbers are limited to what the page shows. A chart has a description for readers who do not see
it, and says with words or heights what it says with colours.
"""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path

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
_DARKEST = 70  # percent of the colour of a matrix, on which its text can be read
_MOST_TEXTS = 12  # cells of a matrix with text in them, on each side
_HEAD = (
    '<!doctype html><html lang="en"><meta charset="utf-8">'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    '<meta name="viewport" content="width=device-width, initial-scale=1"><title>mpigraph report</title>'
)


def _short(text: str, most: int = 22) -> str:
    """Return text that is cut and escaped."""
    return escape(text if len(text) <= most else f"{text[: most - 1]}…")


def _chart(about: str, rows: Iterable[str]) -> str:
    """Return rows of a chart, and ``about``, the same in words."""
    return f'<div class="chart" role="img" aria-label="{escape(about)}">{"".join(rows)}</div>'


def _row(name: tuple[str, bool], *plots: str) -> str:
    """Return a row of a chart: its name, and whether that is emphasized; and what is beside it, from top to bottom."""
    text, strong = name
    kind = "slow" if strong else ""
    return f'<div class="row"><span class="{kind}">{_short(text)}</span><div>{"".join(plots)}</div></div>'


def _columns(values: _F64, waits: _F64, slow: NDArray[np.bool_]) -> list[str]:
    """Return a row of columns for each trainer: its work, dark or in the colour of slow steps, below its waits."""
    count = values.shape[1]
    firsts = np.arange(0, count, -(-count // _MOST_COLUMNS))
    values, waits = (np.maximum.reduceat(array, firsts, axis=1) for array in (values, values + waits))
    slow = np.logical_or.reduceat(slow, firsts, axis=1)
    highest = max(float(np.quantile(waits, 0.98)) * 1.05, 1e-12)
    heights = np.minimum(np.stack([values, waits]) / highest, 1)
    rows = []
    for i in range(len(values)):
        drawn = ""
        for name, up, chosen in (
            ("pale", heights[1, i], np.ones(len(firsts), bool)),
            ("usual", heights[0, i], ~slow[i]),
            ("slow", heights[0, i], slow[i]),
        ):
            columns = "".join(f"M{x} 100V{100 - 100 * up[x]:.0f}h.9V100" for x in np.flatnonzero(chosen))
            drawn += f'<path class="{name}" d="{columns}"/>'
        rows.append(f'<svg viewBox="0 0 {len(firsts)} 100" preserveAspectRatio="none">{drawn}</svg>')
    return rows


def _bar(pieces: Iterable[tuple[str, float, str]], kind: str) -> str:
    """Return pieces side by side: the stage, the share of the width, and words, which are cut where the piece ends."""
    drawn = (
        f'<i class="{_class(stage)}" style="width:{100 * share:.2f}%" title="{escape(words)}">{escape(words)}</i>'
        for stage, share, words in pieces
    )
    return f'<div class="bar {kind}">{"".join(drawn)}</div>'


def _legend(stages: Iterable[str]) -> str:
    """Return the colours of stages, and what each is."""
    names = sorted(set(stages), key=lambda name: (name not in STAGES, name in STAGES and list(STAGES).index(name)))
    return _key((_class(name), f"{name}: {STAGES[name]}" if name in STAGES else name) for name in names[:24])


def _key(colours: Iterable[tuple[str, str]]) -> str:
    """Return the meaning of colours, as pairs of a class and words."""
    items = (f'<li><i class="{name}"></i>{_short(words, 60)}' for name, words in colours)
    return f'<ul class="legend">{"".join(items)}</ul>'


def _matrix(
    names: Sequence[str],
    columns: Sequence[str],
    entries: Iterable[tuple[int, int, float]],
    show: Callable[[float], str],
) -> str:
    """Return a table of sums whose cells are the darker the larger; from 129 rows or columns on neighbours share one.

    Args:
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
    shares = _DARKEST * values / (values.max() or 1.0)
    text = max(down, across) <= _MOST_TEXTS

    def cell(row: int, column: int) -> str:
        if not values[row, column]:
            return "<td>"
        words = escape(show(values[row, column]))
        share = f'style="--share:{shares[row, column]:.0f}%"'
        return f"<td {share}>{words}" if text else f'<td {share} title="{words}">'

    head = "".join(f"<th>{_short(columns[-(-c * len(columns) // across)], 8)}" for c in range(across))
    lines = (
        f"<tr><th>{_short(names[-(-r * len(names) // down)])}{''.join(cell(r, c) for c in range(across))}"
        for r in range(down)
    )
    return f'<div class="wide"><table class="heat"><tr><th>{head}{"".join(lines)}</table></div>'


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


def _step_rows(summary: Summary, table: StepTable, verdict: Verdict) -> str:
    chosen = np.sort(np.argsort(-table.clean.mean(axis=1), kind="stable")[:_MOST_ROWS])
    trainers = [table.trainers[i] for i in chosen.tolist()]
    slow = table.slow()[chosen]
    counts = zip(trainers, slow.sum(axis=1).tolist(), strict=True)
    about = "; ".join(f"{trainer.name}: {count} slow steps" for trainer, count in counts)
    plots = _columns(table.clean[chosen], (table.seconds - table.clean)[chosen], slow)
    return _chart(about, map(_row, _names(summary, trainers, verdict), plots))


def _steps(summary: Summary, table: StepTable, verdict: Verdict) -> str:
    if not table.count:
        return _section("Steps of all trainers", "The times of single steps are not known.")
    how = (
        "A column is a step. Below: the trainer's work; faint, above it: waits for other ranks. The second colour "
        f"marks steps of {SLOW} times the median and more. Median step: {duration(table.step)}."
    )
    axis = f'<div class="axis"><span>step 0</span><span>{table.count - 1}</span></div>'
    colours = _key([("usual", "work"), ("slow", "work in a slow step"), ("pale", "waiting for others")])
    return _section("Steps of all trainers", how, colours, _step_rows(summary, table, verdict), axis, _numbers(table))


def _numbers(table: StepTable) -> str:
    head = ["trainer", "median step", "work", "waits: minibatch", "waits: trainers", "slow steps", "input nodes"]
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
    chart = _matrix(names, [str(t.number) for t in trainers], entries, duration)
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
    chart = _matrix(names, columns, entries, lambda size: in_units(int(size)))
    how = f"Row: the rank that asks. Column: the host (t: trainer, s: server). Both ways, {total}."
    more = " Tensors of torch's process group over MPI are among them." if met else ""
    return _section(title, how + more, chart)


def _stage_rows(summary: Summary, ranks: Sequence[Rank], verdict: Verdict) -> str:
    longest = max([rank.seconds for rank in ranks] + [1e-9])
    rows = []
    for name, rank in zip(_names(summary, ranks, verdict), ranks, strict=True):
        main = main_thread(rank)
        bars = []
        for thread in [main, *(thread for thread in rank.threads if thread is not main)][:3]:
            seconds = {name: stage.own for name, stage in thread.stages.items()}
            seconds["rest"] = max(thread.rest or 0.0, 0.0)
            where = "" if thread is main else f" ({thread.name[:40]})"
            pieces = (
                (stage, seconds[stage] / longest, f"{stage} {duration(seconds[stage])}{where}")
                for stage in sorted(seconds, key=lambda stage: (stage in ("meet", "own", "rest"), stage))
                if seconds[stage] > 0.001 * longest
            )
            bars.append(_bar(pieces, "thick" if thread is main else "thin"))
        rows.append(_row(name, *bars))
    return _chart("; ".join(f"{rank.name}: {duration(rank.seconds)}" for rank in ranks), rows)


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
