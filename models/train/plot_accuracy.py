"""Draws the accuracy over the length of the passage, a line for each chooser of positions, as SVG.

    build/lab answers -m models/demo.gguf --chooser all --json models/eval/*k.jsonl > answers.json
    python3 models/train/plot_accuracy.py answers.json [more.json ...] --out models/eval/accuracy.svg

Files may hold parts of what is measured; of the same length and chooser the one with more questions counts. Answers given
after thinking (--think) are passed over.
"""

import argparse
import json
from pathlib import Path

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 60, 150, 20, 50
COLOURS = {"indexer": "#1f77b4", "dense": "#000000", "recent": "#d95f02", "random": "#b22222"}


def read(paths: list[Path]) -> dict[str, list[dict]]:
    """-> points of each chooser, ascending in tokens."""
    best: dict[tuple[str, str], dict] = {}
    for path in paths:
        for point in json.loads(path.read_text()):
            if point.get("thinking"):
                continue
            key = point["chooser"], Path(point["file"]).stem
            if key not in best or point["questions"] > best[key]["questions"]:
                best[key] = point
    lines = {name: [p for (chooser, _), p in best.items() if chooser == name] for name in COLOURS}
    return {name: sorted(points, key=lambda p: p["prompt_tokens"]) for name, points in lines.items() if points}


def draw(lines: dict[str, list[dict]]) -> str:
    tokens: dict[str, int] = {}  # of the longest prompt in each file
    for point in (p for points in lines.values() for p in points):
        name = Path(point["file"]).stem
        tokens[name] = max(point["prompt_tokens"], tokens.get(name, 0))
    files = sorted(tokens, key=tokens.get)

    def x(name: str) -> float:  # files evenly apart: each is two or four times as long as the one before
        return LEFT + files.index(name) * (WIDTH - LEFT - RIGHT) / max(1, len(files) - 1)

    def y(share: float) -> float:
        return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
           f'font-size="13">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for percent in (0, 25, 50, 75, 100):
        at = y(percent / 100)
        out.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}" stroke="#dddddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{percent} %</text>')
    for name in files:
        out.append(f'<text x="{x(name):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{tokens[name]:,}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{HEIGHT - 8}" text-anchor="middle">tokens of the '
               'longest prompt</text>')
    for number, (name, points) in enumerate(lines.items()):
        at = [(x(Path(p["file"]).stem), y(p["right"] / p["questions"])) for p in points]
        dashes = ' stroke-dasharray="6 4"' if name == "dense" else ""
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in at)
        out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[name]}" stroke-width="2.5"{dashes}/>')
        out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{COLOURS[name]}"/>' for a, b in at]
        row = TOP + 20 + 22 * number
        out.append(f'<line x1="{WIDTH - RIGHT + 20}" y1="{row - 4}" x2="{WIDTH - RIGHT + 45}" y2="{row - 4}" '
                   f'stroke="{COLOURS[name]}" stroke-width="2.5"{dashes}/>')
        out.append(f'<text x="{WIDTH - RIGHT + 52}" y="{row}">{name}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws accuracy over the length of the passage.")
    parser.add_argument("answers", type=Path, nargs="+", help="what `build/lab answers --json` printed")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.write_text(draw(read(options.answers)), encoding="utf-8")


if __name__ == "__main__":
    main()
