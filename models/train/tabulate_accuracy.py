"""Tabulates the accuracy over the length of the passage, a column for each chooser of positions, for docs/plots/draw.py.

    build/lab answers -m models/demo.gguf --chooser all --json models/eval/*k.jsonl > answers.json
    python3 models/train/tabulate_accuracy.py answers.json [more.json ...] > models/eval/accuracy.csv
    python3 docs/plots/draw.py models/eval/accuracy.csv --out models/eval/accuracy.svg

Files may hold parts of what is measured; of the same length and chooser the one with more questions counts. Answers given
after thinking (--think) are passed over.
"""

import argparse
import json
from pathlib import Path

CHOOSERS = {"indexer": "indexer", "dense": "dense", "recent": "the latest rows", "random": "random rows"}


def read(paths: list[Path]) -> dict[tuple[str, str], dict]:
    """-> points by the name of the file of questions, and the chooser."""
    best: dict[tuple[str, str], dict] = {}
    for point in (point for path in paths for point in json.loads(path.read_text())):
        key = Path(point["file"]).stem, point["chooser"]
        if not point.get("thinking") and (key not in best or point["questions"] > best[key]["questions"]):
            best[key] = point
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description="Tabulates accuracy over the length of the passage.")
    parser.add_argument("answers", type=Path, nargs="+", help="what `build/lab answers --json` printed")
    points = read(parser.parse_args().answers)
    tokens: dict[str, int] = {}  # of the longest prompt in each file
    for (name, _), point in points.items():
        tokens[name] = max(point["prompt_tokens"], tokens.get(name, 0))
    print("# right answers, per cent\n# tokens of the longest prompt")
    print("," + ",".join(CHOOSERS.values()))
    for name in sorted(tokens, key=tokens.get):
        shares = (points.get((name, chooser)) for chooser in CHOOSERS)
        print(f"{tokens[name]:,}".replace(",", " "),
              *(f"{100 * p['right'] / p['questions']:.1f}" if p else "" for p in shares), sep=",")


if __name__ == "__main__":
    main()
