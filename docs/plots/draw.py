"""Draws tables as lines, one panel for each table, side by side, as SVG. Any Python 3; no packages.

    python3 docs/plots/draw.py docs/plots/decode.csv --out docs/plots/decode.svg
    python3 docs/plots/draw.py docs/plots/held.csv docs/plots/rate.csv --out docs/plots/sequences.svg

A table: lines "# what the columns are" and "# what the rows are", then names, of which the first is passed over, then
for each row its label and a value for each name. Nothing where there is none. Rows are evenly apart.
"""

import argparse
import csv
import math
from pathlib import Path

WIDTH, HEIGHT = 460, 320  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 60, 40, 40, 50
COLOURS = ["#1f77b4", "#d95f02", "#000000", "#b22222"]


class Table:
    def __init__(self, path: Path):
        lines = path.read_text().splitlines()
        self.title, self.rows_are = (line.removeprefix("# ") for line in lines[:2])
        names, *rows = csv.reader(lines[2:])
        self.labels = [row[0] for row in rows]
        self.lines = {name: [float(row[i]) if row[i] else None for row in rows]
                      for i, name in enumerate(names) if i > 0}


def round_step(largest: float) -> float:
    """-> the least of 1, 2, 5, 10, 20 ... of which seven reach the largest value."""
    step, factors = 1.0, [2.0, 2.5, 2.0]
    while 7 * step < largest:
        step *= factors[0]
        factors = factors[1:] + factors[:1]
    return step


def draw_panel(table: Table, left: float) -> list[str]:
    largest = max(value for values in table.lines.values() for value in values if value is not None)
    step = round_step(largest)
    n_steps = math.ceil(largest / step)
    begin, end = left + LEFT, left + WIDTH - RIGHT

    def x(row: int) -> float:
        return begin + row * (end - begin) / max(1, len(table.labels) - 1)

    def y(value: float) -> float:
        return TOP + (1 - value / (n_steps * step)) * (HEIGHT - TOP - BOTTOM)

    out = [f'<text x="{begin}" y="20">{table.title}</text>']
    for i in range(n_steps + 1):
        at = y(i * step)
        out.append(f'<line x1="{begin}" y1="{at:.1f}" x2="{end}" y2="{at:.1f}" stroke="#dddddd"/>')
        out.append(f'<text x="{begin - 8}" y="{at + 4:.1f}" text-anchor="end">{i * step:,.0f}</text>')
    for row, label in enumerate(table.labels):
        out.append(f'<text x="{x(row):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{label}</text>')
    out.append(f'<text x="{(begin + end) / 2:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{table.rows_are}</text>')
    for colour, values in zip(COLOURS, table.lines.values()):
        at = [(x(row), y(value)) for row, value in enumerate(values) if value is not None]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in at)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{colour}"/>' for a, b in at]
    return out


def draw(tables: list[Table]) -> str:
    names = list(dict.fromkeys(name for table in tables for name in table.lines))
    width, height = WIDTH * len(tables), HEIGHT + 22 * len(names) + 8
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
           'font-size="13">', f'<rect width="{width}" height="{height}" fill="white"/>']
    for i, table in enumerate(tables):
        out += draw_panel(table, i * WIDTH)
    for i, (colour, name) in enumerate(zip(COLOURS, names)):
        row = HEIGHT + 14 + 22 * i
        out.append(f'<line x1="{LEFT}" y1="{row - 4}" x2="{LEFT + 25}" y2="{row - 4}" stroke="{colour}" '
                   'stroke-width="2.5"/>')
        out.append(f'<text x="{LEFT + 32}" y="{row}">{name}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws tables as lines.")
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.write_text(draw([Table(path) for path in options.tables]), encoding="utf-8")


if __name__ == "__main__":
    main()
