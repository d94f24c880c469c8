"""The demo model's vocabulary: byte-level BPE with DeepSeek's way of cutting words and its special tokens, 4096 in all.

Training is the `tokenizers` library's, on generated text. Encoding is a table look-up: the text is almost all ASCII and
made of few different words, so words are cut by one short expression and looked up; a word not seen before goes through
the library once. Ids: BOS, EOS and padding, the 256 bytes, what merges make, then the other special tokens.

    python3 models/train/vocabulary.py --out vocabulary.json
"""

import argparse
import json
import re
import string
from collections import Counter
from itertools import product
from pathlib import Path
from random import Random

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

import text

N_TOKENS = 4096
N_TRAINING_BYTES = 8_000_000
N_WORD_MERGES = 2322  # the rest is for numbers and for words with a space before them
MOST_KNOWN_WORDS = 200_000
SPACE = "Ġ"  # in the alphabet of byte-level BPE

# The three expressions of "deepseek-v3", applied one after the other.
EXPRESSIONS = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)

# The same for ASCII in one: numbers are cut out first, so the end of a piece is the end of the text or a number.
SIGN = r"!-/:-@\[-`{-~"
ASCII_WORD = re.compile(
    rf"[0-9]{{1,3}}|[{SIGN}][A-Za-z]+|[^\r\nA-Za-z0-9{SIGN}]?[A-Za-z]+| ?[{SIGN}]+[\r\n]*"
    rf"|\s*[\r\n]+|\s+(?=[0-9]|\Z)|\s+(?!\S)|\s+|[^\s]", re.ASCII)

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # as in tokenizer.ggml.token_type

FIRST_SPECIAL = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
LAST_SPECIAL = ("<think>", "</think>", "<｜User｜>", "<｜Assistant｜>", "<|EOT|>")


def deepseek_splitter() -> pre_tokenizers.PreTokenizer:
    splits = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in EXPRESSIONS]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def training_texts(seed: int):
    """Conversations of many lengths, about N_TRAINING_BYTES; marks between texts are left out as in encoding."""
    n_bytes, index = 0, 0
    while n_bytes < N_TRAINING_BYTES:
        conversation = text.conversation(Random(f"vocabulary {seed} {index}"), (512, 1024, 4096)[index % 3])
        for turn in conversation.turns:
            for part in (turn.user, turn.answer):
                yield part
                n_bytes += len(part)
        index += 1


def word_merges(texts: list[str]) -> list[str]:
    """The merges that BPE learns from the words of `texts`, without the spaces before them and without numbers."""
    library = Tokenizer(BPE())
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"[ \p{N}]+"), "removed"), deepseek_splitter()])
    library.train_from_iterator(texts, BpeTrainer(
        vocab_size=256 + N_WORD_MERGES, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    merges = json.loads(library.to_str())["model"]["merges"]
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


class MergeList:
    """Merges in order of preference and the tokens they make, in the alphabet of byte-level BPE.

    What is added comes after all that stands there: a word is cut in the same way with a space before it and without,
    but for its first token, so that an answer is made of the tokens of its sentence.
    """

    def __init__(self, merges: list[str]):
        self.merges = merges
        self.tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
        self.tokens += [merge.replace(" ", "") for merge in merges]

    def add(self, left: str, right: str) -> None:
        self.merges.append(f"{left} {right}")
        self.tokens.append(left + right)

    def add_numbers(self) -> None:
        """0 to 99, and 100 to 199 for sums, are one token each."""
        for tens, ones in product(string.digits, repeat=2):
            self.add(tens, ones)
        for number in range(100, 200):
            left, right = self._library().tokenize(str(number))
            self.add(left.value, right.value)

    def add_spaces(self, texts: list[str], n_tokens: int) -> None:
        """The `n_tokens` most frequent beginnings of words with the space before them."""
        library = self._library()
        pieces = (piece for part in texts for piece in ASCII_WORD.findall(part))
        words = Counter(piece[1:] for piece in pieces if len(piece) > 1 and piece[0] == " ")
        starts: Counter[str] = Counter()
        for word, n in sorted(words.items()):
            starts[library.tokenize(word)[0].value] += n
        for start, _ in starts.most_common(n_tokens):
            self.add(SPACE, start)

    def _library(self) -> BPE:
        vocab = {token: i for i, token in enumerate(self.tokens)}
        return BPE(vocab=vocab, merges=[tuple(merge.split(" ")) for merge in self.merges])


class Vocabulary:
    """`tokens` [4096] as a GGUF file states them, `merges` ["left right"], `types` [4096] and the ids of the marks."""

    def __init__(self, tokens: list[str], merges: list[str], types: list[int]):
        self.tokens, self.merges, self.types = tokens, merges, types
        id_of = {token: i for i, token in enumerate(tokens)}
        self.bos, self.eos, self.pad = (id_of[name] for name in FIRST_SPECIAL)
        self.think, self.end_think, self.user, self.assistant, _ = (id_of[name] for name in LAST_SPECIAL)
        normal = {token: i for token, i in id_of.items() if types[i] == NORMAL}
        self.library = Tokenizer(BPE(vocab=normal, merges=[tuple(merge.split(" ")) for merge in merges]))
        self.library.pre_tokenizer = deepseek_splitter()
        self.library.decoder = decoders.ByteLevel()
        self._words: dict[str, list[int]] = {}

    @classmethod
    def train(cls, seed: int) -> "Vocabulary":
        """Seconds; the same seed gives the same vocabulary."""
        texts = list(training_texts(seed))
        merges = MergeList(word_merges(texts))
        merges.add_numbers()
        n_normal = N_TOKENS - len(FIRST_SPECIAL) - len(LAST_SPECIAL)
        merges.add_spaces(texts, n_normal - len(merges.tokens))
        holes = [f"<｜place▁holder▁no▁{i}｜>" for i in range(n_normal - len(merges.tokens))]
        types = [CONTROL] * len(FIRST_SPECIAL) + [NORMAL] * len(merges.tokens) + [UNUSED] * len(holes)
        types += [USER_DEFINED] * 2 + [CONTROL] * (len(LAST_SPECIAL) - 2)
        return cls([*FIRST_SPECIAL, *merges.tokens, *holes, *LAST_SPECIAL], merges.merges, types)

    @classmethod
    def load(cls, path: str | Path) -> "Vocabulary":
        stored = json.loads(Path(path).read_text(encoding="utf-8"))
        return cls(stored["tokens"], stored["merges"], stored["types"])

    def save(self, path: str | Path) -> None:
        stored = {"tokens": self.tokens, "merges": self.merges, "types": self.types}
        Path(path).write_text(json.dumps(stored, ensure_ascii=False, indent=0), encoding="utf-8")

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; a special token spelt out in it is text like any other."""
        if not text.isascii():
            return self.library.encode(text).ids
        words, ids = self._words, []
        for word in ASCII_WORD.findall(text):
            known = words.get(word)
            if known is None:
                known = self.library.encode(word).ids
                if len(words) < MOST_KNOWN_WORDS:  # invented ones come without end
                    words[word] = known
            ids += known
        return ids

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def decode(self, ids: list[int]) -> str:
        """The text of `ids`; special tokens by their names."""
        parts: list[str] = []
        run: list[int] = []
        for i in [*ids, None]:
            if i is not None and self.types[i] == NORMAL:
                run.append(i)
                continue
            parts.append(self.library.decode(run, skip_special_tokens=False))
            run = []
            parts.append("" if i is None else self.tokens[i])
        return "".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains the vocabulary on generated text and writes it.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    Vocabulary.train(options.seed).save(options.out)


if __name__ == "__main__":
    main()
