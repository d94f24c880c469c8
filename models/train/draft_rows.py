"""The rows that the block for drafts learns from: text, and the model's hidden values at every token of it.

    python3 models/train/draft_rows.py --model models/demo.gguf --out RUN/rows --rows 0:600 [--program build/lab]

A row is made as those of the training are (batches.py), mostly with reasoning, and by its number: several processes may
make rows side by side. What the model thinks of it comes from the engine itself, so the block learns from just the
values that it will be given: `lab logits` writes head . h for every token, and h, with 256 values behind 4096, is
solved from it. A row's file has ids [n] int16, weights [n] f32 as batches.py gives them, and h [n, dim] f16, after the
model's output norm.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path
from random import Random

import gguf
import numpy as np

import batches
import text
from gguf_model import tensor_of, vocabulary_of
from text import Conversation, Count
from vocabulary import Vocabulary
from words import pick

# Of every 32 rows. The long ones are a passage each, for the block's indexer; the short ones have many conversations.
LENGTHS = (512,) * 26 + (2048,) * 4 + (4096,) * 2
LONGEST_OF_MANY = 512
SHARE_THINKING = 0.9


def conversations(rng: Random, n_tokens: int, count: Count) -> list[Conversation]:
    """What fits into `n_tokens`: the more of it is answers, the more there is to learn from it."""
    if n_tokens > LONGEST_OF_MANY:
        return [text.conversation(rng, n_tokens, count)]
    found: list[Conversation] = []
    left = n_tokens
    while True:
        makers = (text.own_conversation, text.short_conversation,
                  lambda rng: text.conversation(rng, rng.randint(128, 320), count))
        new = pick(rng, makers)(rng)
        new.thinking = rng.random() < SHARE_THINKING
        left -= 1 + count(new.system)
        left -= sum(text.n_turn_tokens(turn, count, new.thinking and turn is new.turns[-1]) for turn in new.turns)
        if left < 0:
            return found
        found.append(new)


def make_row(vocabulary: Vocabulary, kind: str, number: int) -> tuple[np.ndarray, np.ndarray]:
    """ids and weights, without the padding at the end."""
    rng, n_tokens = Random(f"{kind} {number}"), LENGTHS[number * 7 % len(LENGTHS)]
    ids, weights = batches.row_of(conversations(rng, n_tokens, vocabulary.count), vocabulary, n_tokens)
    n = int(np.flatnonzero(weights)[-1]) + 1
    return ids[:n], weights[:n]


class Engine:
    """Runs the program on a file for each row."""

    def __init__(self, program: Path, model: Path, folder: Path, backend: str, threads: int):
        reader = gguf.GGUFReader(model)
        head = next(tensor_of(t) for t in reader.tensors if t.name == "output.weight").double().numpy()
        self.from_logits = np.linalg.pinv(head).T.astype(np.float32)  # [vocab_size, dim]
        self.command = [program, "logits", "-m", model, "--backend", backend, "-t", str(threads)]
        self.ids, self.logits = folder / "ids", folder / "logits"

    def hidden(self, ids: np.ndarray) -> np.ndarray:
        """-> [n, dim] f32"""
        self.ids.write_text(" ".join(map(str, ids)))
        subprocess.run([*self.command, "--tokens", f"@{self.ids}", "--out", self.logits], check=True)
        return np.fromfile(self.logits, np.float32).reshape(len(ids), -1) @ self.from_logits


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes rows of text with the model's hidden values.")
    parser.add_argument("--model", type=Path, default=Path("models/demo.gguf"))
    parser.add_argument("--program", type=Path, default=Path("build/lab"))
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--kind", default="draft", help="begins the rows' seeds: no text of the training begins so")
    parser.add_argument("--rows", required=True, help="FIRST:END[:STRIDE]")
    options = parser.parse_args()
    vocabulary = vocabulary_of(gguf.GGUFReader(options.model))
    text.SHARE_THINKING = SHARE_THINKING
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(options.program, options.model, Path(folder), options.backend, options.threads)
        for number in range(*map(int, options.rows.split(":"))):
            ids, weights = make_row(vocabulary, options.kind, number)
            h = engine.hidden(ids).astype(np.float16)
            partial = options.out / f"{options.kind}.{number:05}.partial.npz"
            np.savez(partial, ids=ids, weights=weights, h=h)
            partial.rename(options.out / f"{options.kind}.{number:05}.npz")


if __name__ == "__main__":
    main()
