"""Batches of token ids with loss weights, made ahead of the training by worker processes.

A row is a conversation in the chat format, or several short ones behind each other. Its seed is made of the run's
seed, the stage, the batch's index and the row, so what a batch holds does not depend on who makes it, or when.
Batches not asked for yet are made in the expectation that indices and shapes go on as they did.
"""

from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from random import Random

import numpy as np

import text
from text import Conversation
from vocabulary import Vocabulary

AHEAD = 8  # batches
TASK_TOKENS = 16384  # what a worker makes at a time
TEXT_WEIGHT = 0.1  # at most; a row's text together weighs no more than its answers


@dataclass(frozen=True)
class Request:
    stage: str
    index: int
    batch: int
    seq_len: int


def encode(conversation: Conversation, vocabulary: Vocabulary) -> tuple[list[int], list[bool]]:
    """Its ids in the chat format, and which of them the model has to say: reasoning, answers and the EOS after them."""
    ids = [vocabulary.bos, *vocabulary.encode(conversation.system)]
    is_answer = [False] * len(ids)
    for i, turn in enumerate(conversation.turns):
        thinks = conversation.thinking and i + 1 == len(conversation.turns)
        asked = [vocabulary.user, *vocabulary.encode(turn.user), vocabulary.assistant,
                 vocabulary.think if thinks else vocabulary.end_think]
        reasoning = [*vocabulary.encode(turn.reasoning), vocabulary.end_think] if thinks else []
        answer = [*reasoning, *vocabulary.encode(turn.answer), vocabulary.eos]
        ids += asked + answer
        is_answer += [False] * len(asked) + [True] * len(answer)
    return ids, is_answer


def make_row(vocabulary: Vocabulary, rng: Random, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    return row_of(text.row(rng, seq_len, vocabulary.count), vocabulary, seq_len)


def row_of(conversations: list[Conversation], vocabulary: Vocabulary, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    """-> ids [seq_len] int16, padded with EOS, and weights [seq_len] f32, 0 for the padding and the first id."""
    ids: list[int] = []
    is_answer: list[bool] = []
    for conversation in conversations:
        more_ids, more_answers = encode(conversation, vocabulary)
        ids += more_ids
        is_answer += more_answers
    if len(ids) > seq_len:
        raise ValueError(f"a row of {len(ids)} tokens was made for {seq_len}")
    row, weights = np.full(seq_len, vocabulary.eos, np.int16), np.zeros(seq_len, np.float32)
    row[:len(ids)] = ids
    n_answer = sum(is_answer)
    weights[:len(ids)] = np.where(is_answer, 1, min(TEXT_WEIGHT, n_answer / (len(ids) - n_answer)))
    weights[0] = 0
    return row, weights


_vocabulary: Vocabulary  # of a worker process


def _start_worker(tokens: list[str], merges: list[str], types: list[int]) -> None:
    global _vocabulary
    _vocabulary = Vocabulary(tokens, merges, types)


def _make_rows(seed: int, request: Request, first: int, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    rows = [make_row(_vocabulary, Random(f"{seed} {request.stage} {request.index} {row}"), request.seq_len)
            for row in range(first, first + n_rows)]
    return np.stack([ids for ids, _ in rows]), np.stack([weights for _, weights in rows])


class Batches:
    """One thread may take from it at a time. The processes are started afresh (not forked): the main module must be
    importable without running."""

    def __init__(self, vocabulary: Vocabulary, seed: int, workers: int):
        self.seed = seed
        self.pool = ProcessPoolExecutor(workers, get_context("spawn"), _start_worker,
                                        (vocabulary.tokens, vocabulary.merges, vocabulary.types))
        self.last: Request | None = None
        self.stride = 1
        self.shape_after: dict[tuple[int, int], tuple[int, int]] = {}
        self.tasks: dict[Request, list[Future]] = {}

    def take(self, stage_name: str, index: int, batch: int, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
        """-> ids [batch, seq_len] int64 and weights [batch, seq_len] f32: of the loss at predicting ids[i]. Answers
        weigh 1, other text less. Waits for the workers where they have not been ahead."""
        request = Request(stage_name, index, batch, seq_len)
        self._learn(request)
        wanted = [request, *self._expected(request)]
        for stale in self.tasks.keys() - set(wanted):
            for task in self.tasks.pop(stale):
                task.cancel()
        for one in wanted:
            if one not in self.tasks:
                self.tasks[one] = self._submit(one)
        parts = [task.result() for task in self.tasks.pop(request)]
        return np.concatenate([ids for ids, _ in parts]).astype(np.int64), np.concatenate([w for _, w in parts])

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)

    def _submit(self, request: Request) -> list[Future]:
        n_rows = max(1, TASK_TOKENS // request.seq_len)
        return [self.pool.submit(_make_rows, self.seed, request, first, min(n_rows, request.batch - first))
                for first in range(0, request.batch, n_rows)]

    def _learn(self, request: Request) -> None:
        """Indices go on in equal steps; a shape is followed by the shape that followed it before."""
        last, self.last = self.last, request
        if last is None or last.stage != request.stage:
            self.shape_after.clear()
        else:
            self.stride = request.index - last.index
            self.shape_after[last.batch, last.seq_len] = (request.batch, request.seq_len)

    def _expected(self, request: Request) -> list[Request]:
        expected = []
        for _ in range(AHEAD):
            shape = (request.batch, request.seq_len)
            batch, seq_len = self.shape_after.get(shape, shape)
            request = replace(request, index=request.index + self.stride, batch=batch, seq_len=seq_len)
            expected.append(request)
        return expected
