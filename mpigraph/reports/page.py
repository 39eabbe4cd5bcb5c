"""``report.html``: one file for any browser, without any address in it and without a script."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np

from mpigraph.memory import in_units
from mpigraph.reports.charts import MOST_ROWS, Bar, bars, key, legend, matrix, rows, strip
from mpigraph.reports.summary import Rank, Summary, Timeline, TimelineEvent, replacing
from mpigraph.reports.verdict import SLOW, StepTable, Verdict, duration, judge, main_thread

_MOST_EVENTS = 12_000
_HEAD = (
    '<!doctype html><html lang="en"><meta charset="utf-8">'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    '<meta name="viewport" content="width=device-width, initial-scale=1"><title>mpigraph report</title>'
)


def write_page(folder: Path, summary: Summary) -> None:
    """Write ``report.html`` to a folder. Raises StorageError."""
    with replacing(folder / "report.html") as temporary:
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
        f'<section class="verdict {named}" aria-label="Verdict"><p>{escape(verdict.text)}</p></section>',
        _steps(summary, table, verdict),
        f'<div class="two">{_waits(summary, table)}{_bytes(summary)}</div>',
        _stages(summary, verdict),
        _timeline(summary, verdict),
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


def _strip(summary: Summary, table: StepTable, verdict: Verdict) -> str:
    chosen = np.sort(np.argsort(-table.clean.mean(axis=1), kind="stable")[:MOST_ROWS])
    height = float(np.clip(520 / len(chosen), 4, 34))
    trainers = [table.trainers[i] for i in chosen.tolist()]
    slow = table.slow()
    about = "; ".join(
        f"{trainer.name}: {slow[i].sum()} slow steps" for i, trainer in zip(chosen, trainers, strict=True)
    )
    waits = table.seconds - table.clean
    plot = strip(table.clean[chosen], waits[chosen], slow[chosen], height)
    return rows("Steps of all trainers", about, _names(summary, trainers, verdict), height, plot)


def _steps(summary: Summary, table: StepTable, verdict: Verdict) -> str:
    if not table.count:
        return _section("Steps of all trainers", "The times of single steps are not known.")
    first = summary.job.window.first_step if summary.job.window else 0
    how = (
        "A column is a step. Below: the trainer's own time; faint, above it: waits for other ranks. The second colour "
        f"marks steps of {SLOW} times the median and more. Median step: {duration(table.step)}."
    )
    axis = f'<div class="axis"><span>step {first}</span><span>{first + table.count - 1}</span></div>'
    colours = key([("usual", "own time"), ("slow", "own time of a slow step"), ("pale", "waiting for others")])
    return _section("Steps of all trainers", how, colours, _strip(summary, table, verdict), axis, _numbers(table))


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
    chart = matrix(title, worst, names, [str(t.number) for t in trainers], entries, duration)
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
    chart = matrix(title, total, names, columns, entries, lambda size: in_units(int(size)))
    how = f"Row: the rank that asks. Column: the host (t: trainer, s: server). Both ways, {total}."
    more = " Tensors of torch's process group over MPI are among them." if met else ""
    return _section(title, how + more, chart)


def _stage_rows(summary: Summary, ranks: Sequence[Rank], verdict: Verdict | None, height: float = 30.0) -> str:
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
                    pieces.append(Bar(name, min(at / longest, 1), min((at + seconds[name]) / longest, 1), words))
                at += seconds[name]
            thick = 16.0 if thread is main else 5.0
            plot.append(bars(row, height, pieces, top, thick))
            top += thick
    about = "; ".join(f"{rank.name}: {duration(rank.seconds)}" for rank in ranks)
    return rows("Stages by rank", about, _names(summary, ranks, verdict), height, "".join(plot))


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
    tail = ranks[24 : 24 + MOST_ROWS]
    more = _details(f"{len(tail)} more ranks", _stage_rows(summary, tail, verdict)) if tail else ""
    return _section("Stages by rank", how, legend([*stages, "rest"]), _stage_rows(summary, head, verdict), more)


def _timeline(summary: Summary, verdict: Verdict) -> str:
    timeline = summary.timeline
    if timeline is None or not timeline.events or timeline.end <= timeline.begin:
        return ""
    ranks = {rank.rank: rank for rank in summary.ranks}
    events = [event for event in timeline.events if event.rank in ranks]
    events = sorted(events, key=lambda event: event.begin - event.end)[:_MOST_EVENTS]  # the longest
    tracks: dict[tuple[int, str], list[TimelineEvent]] = {}
    for event in sorted(events, key=lambda event: (event.rank, event.thread, event.begin, -event.end)):
        tracks.setdefault((event.rank, event.thread), []).append(event)
    if len(tracks) > MOST_ROWS:  # of most ranks the thread that trains alone
        whole = {*verdict.ranks, *list(ranks)[:4]}
        tracks = {
            key: track for key, track in tracks.items() if key[0] in whole or key[1] == main_thread(ranks[key[0]]).name
        }
    shown = list(tracks)[:MOST_ROWS]
    height = 22.0 if len(shown) <= 40 else 12.0
    plot = "".join(bars(row, height, _nested(tracks[key], timeline, height)) for row, key in enumerate(shown))
    names = [
        (f"{ranks[rank].name} {thread.removeprefix('mpigraph-').removesuffix('Thread')}", rank in verdict.ranks)
        for rank, thread in shown
    ]
    about = f"{len(events)} spans of {len(tracks)} threads"
    length = duration(timeline.end - timeline.begin)
    axis = f'<div class="axis"><span>0</span><span>{length}</span></div>'
    left_out = f" {len(tracks) - len(shown)} more threads are in trace.json.gz." if len(shown) < len(tracks) else ""
    how = f"Spans of each thread; those inside others are drawn inside them.{left_out} All steps: trace.json.gz."
    drawn = [event.name for key in shown for event in tracks[key]]
    return _section(
        f"Step {timeline.step} on all ranks", how, legend(drawn), rows("One step", about, names, height, plot), axis
    )


def _nested(track: Sequence[TimelineEvent], timeline: Timeline, height: float) -> Iterator[Bar]:
    length = timeline.end - timeline.begin
    ends: list[float] = []
    for event, following in zip(track, [*track[1:], None], strict=True):
        while ends and ends[-1] <= event.begin:
            ends.pop()
        begin, end = ((min(max(at, timeline.begin), timeline.end) - timeline.begin) / length for at in event[3:])
        leaf = following is None or following.begin >= event.end
        if end > begin:
            words = f"{event.name} {duration(event.end - event.begin)}" if height > 12 else ""
            yield Bar(event.name, begin, end, words, len(ends), leaf)
        ends.append(event.end)


def _settings(summary: Summary) -> str:
    job = summary.job
    facts = {
        "command": " ".join(job.command),
        "began": job.began,
        "steps": f"{job.window.first_step} to {job.window.last_step}" if job.window else "",
        "transport": job.transport,
        "exchange of sampling requests": job.exchange,
        "process group": job.process_group,
        "largest error of clocks": duration(summary.clock_error) if summary.clock_error is not None else "",
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
    last = [f"{rank.name} ({summary.node_of(rank)}): {rank.last_spans}" for rank in summary.ranks if rank.last_spans]
    ended = f"<h3>The end of the job</h3><pre>{escape(summary.ended)}</pre>" if summary.ended else ""
    ended += f"<h3>Last spans</h3><pre>{escape(chr(10).join(last))}</pre>" if last else ""
    return _section(
        "Settings, versions and layout",
        "",
        ended,
        f'<div class="wide">{_table([], lines)}</div>',
        _details("ranks", _table(head, layout)),
    )
