#!/usr/bin/env python3
"""Draw a part of a trace as an SVG figure: a row for each track, so that gaps of disk and processor are seen.

    spillway bench opt-1.3b --dummy-weights ... --trace trace.json
    python scripts/draw_trace.py trace.json --from 40 --seconds 6 --tracks "disk -> host" compute --output trace.svg

Times are seconds from the trace's first event. Without --tracks all are drawn. Beside each row stands the share of the
time in which it has a span. The standard library is enough.
"""

import argparse
import html
import json
from pathlib import Path

WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 960, 150, 64, 62, 34, 22
COLOURS = ("#0b6e99", "#b3541e", "#5b8c2a", "#7a4fa3", "#a08300", "#8a8a8a")


def tracks_of(trace):
    """{name of a track: [(start, end, name of the span)]} in seconds from the first event; rows of one name together."""
    names, spans = {}, {}
    for event in trace["traceEvents"]:
        if event["ph"] == "M" and event["name"] == "thread_name":
            names[event["tid"]] = event["args"]["name"]
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    first = min((event["ts"] for event in complete), default=0)
    for event in complete:
        start = (event["ts"] - first) / 1e6
        name = names.get(event["tid"], str(event["tid"]))
        spans.setdefault(name, []).append((start, start + event.get("dur", 0) / 1e6, event["name"]))
    return spans


def joined(spans, start, end):
    """Disjoint intervals in order that cover these spans within [start, end]."""
    found = []
    for low, high, _ in sorted(spans):
        low, high = max(low, start), min(high, end)
        if low >= high:
            continue
        if found and low <= found[-1][1]:
            found[-1][1] = max(found[-1][1], high)
        else:
            found.append([low, high])
    return found


def draw(tracks, names, start, seconds, title):
    """The SVG document, and {name: share of the time in which the track has a span}."""
    end = start + seconds
    place = lambda at: LEFT + (WIDTH - LEFT - RIGHT) * (at - start) / seconds
    height = TOP + ROW * len(names) + 40
    marks, shares = [], {}

    def text(x, y, words, style=""):
        marks.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}>{html.escape(str(words))}</text>')

    text(LEFT, 24, title, 'font-size="13" font-weight="bold"')
    text(WIDTH - RIGHT + 8, TOP - 8, "busy", 'fill="#555"')
    for number, name in enumerate(names):
        y = TOP + ROW * number
        busy = joined(tracks[name], start, end)
        shares[name] = sum(high - low for low, high in busy) / seconds
        marks.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="{BAR}" fill="#f2f2f2"/>')
        # What is closer than a pixel's third is drawn as one.
        drawn = joined([(low, high + seconds / 3 / (WIDTH - LEFT - RIGHT), "") for low, high in busy], start, end)
        for low, high in drawn:
            marks.append(f'<rect x="{place(low):.2f}" y="{y}" width="{max(0.2, place(high) - place(low)):.2f}" '
                         f'height="{BAR}" fill="{COLOURS[number % len(COLOURS)]}"/>')
        text(LEFT - 10, y + 16, name, 'text-anchor="end"')
        text(WIDTH - RIGHT + 8, y + 16, f"{100 * shares[name]:.0f} %")
    bottom = TOP + ROW * len(names)
    for tick in range(6):
        at = start + seconds * tick / 5
        text(place(at), bottom + 14, f"{at:.2f} s", 'text-anchor="middle" fill="#555"')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>', *marks, "</svg>"]) + "\n", shares


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="what --trace wrote")
    parser.add_argument("--from", dest="start", type=float, default=0, help="seconds from the first event (0)")
    parser.add_argument("--seconds", type=float, help="how long (to the end)")
    parser.add_argument("--tracks", nargs="*", help="names, in the order of the rows")
    parser.add_argument("--title", default="", help="a line above")
    parser.add_argument("--output", type=Path, required=True, help="the SVG file to write")
    options = parser.parse_args()
    tracks = tracks_of(json.loads(options.trace.read_text()))
    if not tracks:
        parser.error(f"{options.trace} has no spans")
    names = options.tracks or sorted(tracks)
    if unknown := [name for name in names if name not in tracks]:
        parser.error(f"{options.trace} has no track {unknown[0]!r}; it has {', '.join(map(repr, sorted(tracks)))}")
    last = max(end for spans in tracks.values() for _, end, _ in spans)
    seconds = options.seconds or last - options.start
    if not 0 < seconds or options.start >= last:
        parser.error(f"the trace ends after {last:.2f} s: nothing is left from {options.start:g} s on")
    document, shares = draw(tracks, names, options.start, seconds, options.title)
    options.output.write_text(document)
    print(", ".join(f"{name}: {100 * share:.0f} % busy" for name, share in shares.items()))


if __name__ == "__main__":
    main()
