#!/usr/bin/env python3
"""Draw the plans that none beats in both throughput and latency, as an SVG figure over logarithmic axes.

    spillway plan opt-30b --hardware t4-16gb --frontier --json > frontier.json
    python scripts/draw_frontier.py frontier.json --output frontier.svg

Reads the member "frontier" of that JSON; without a file, standard input. The standard library is enough.
"""

import argparse
import html
import json
import math
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 500, 84, 28, 74, 62


def axis(values, low_pixel, high_pixel):
    """Maps values to pixels by their logarithms, with a margin at both ends; and the ticks 1, 2 and 5 of each power of ten."""
    low, high = math.log10(min(values)) - 0.25, math.log10(max(values)) + 0.25
    ticks = [digit * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for digit in (1, 2, 5)]
    if high - low > 3:
        ticks = ticks[::3]  # Powers of ten alone
    place = lambda value: low_pixel + (high_pixel - low_pixel) * (math.log10(value) - low) / (high - low)
    return place, [tick for tick in ticks if low <= math.log10(tick) <= high]


def draw(found):
    """The SVG document of one answer of `spillway plan --frontier --json`."""
    plans = found["frontier"]
    x, x_ticks = axis([plan["latency_seconds"] for plan in plans], LEFT, WIDTH - RIGHT)
    y, y_ticks = axis([plan["tokens_per_second"] for plan in plans], HEIGHT - BOTTOM, TOP)
    marks = []

    def text(at_x, at_y, words, style=""):
        marks.append(f'<text x="{at_x:.1f}" y="{at_y:.1f}" {style}>{html.escape(str(words))}</text>')

    def line(*ends):
        marks.append('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="#ddd"/>'.format(*ends))

    text(LEFT, 28, f"{found['plan']['model']} on {found['hardware']['name']}", 'font-size="13" font-weight="bold"')
    text(LEFT, 50, "Predicted; no plan found beats one of these in both throughput and latency", 'fill="#555"')
    for tick in x_ticks:
        line(x(tick), TOP, x(tick), HEIGHT - BOTTOM)
        text(x(tick), HEIGHT - BOTTOM + 18, f"{tick:g}", 'text-anchor="middle"')
    for tick in y_ticks:
        line(LEFT, y(tick), WIDTH - RIGHT, y(tick))
        text(LEFT - 8, y(tick) + 4, f"{tick:g}", 'text-anchor="end"')
    text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16, "latency of a full block (seconds)", 'text-anchor="middle"')
    text(-HEIGHT / 2, 22, "throughput (generated tokens per second)", 'text-anchor="middle" transform="rotate(-90)"')
    points = [(x(plan["latency_seconds"]), y(plan["tokens_per_second"]), plan) for plan in plans]
    path = " ".join(f"{at_x:.1f},{at_y:.1f}" for at_x, at_y, _ in points)
    marks.append(f'<polyline points="{path}" fill="none" stroke="#0b6e99"/>')
    for at_x, at_y, plan in points:
        title = html.escape(f"{plan['flags']}\n{plan['bottleneck']} limits it")
        marks.append(f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="4" fill="#0b6e99"><title>{title}</title></circle>')
        text(at_x - 8, at_y - 8, f"block {plan['block']}", 'text-anchor="end"')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>', *marks, "</svg>"]) + "\n"


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answer", nargs="?", type=Path, help="what `spillway plan --frontier --json` printed")
    parser.add_argument("--output", type=Path, required=True, help="the SVG file to write")
    options = parser.parse_args()
    found = json.loads(options.answer.read_text() if options.answer else sys.stdin.read())
    if not found.get("frontier"):
        parser.error("there is no frontier in it; was it printed by `spillway plan --frontier --json`?")
    options.output.write_text(draw(found))


if __name__ == "__main__":
    main()
