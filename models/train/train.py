"""Trains the demonstration model: the stages, the loop, the log.

    python3 models/train/train.py --vocabulary models/vocabulary.json --out RUN --minutes 9
    torchrun --nproc-per-node 2 models/train/train.py ... --resume RUN

The stages are those of the V3.2 report, small: dense attention over growing lengths; then the indexer alone learns
what the attention looks at; then everything with sparse attention, at last with the file's and the cache's rounding.
A run ends by its clock between two steps and is gone on with by --resume. With several GPUs each computes its share
of a step's rows, and gradients are averaged.
"""

import argparse
import json
import os
import random
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Thread

import torch
import torch.distributed as dist
from torch import Tensor

import checkpoint as checkpoints
from checkpoint import Checkpoint, Progress
from model import ModelArgs, Pass, Transformer
from muon import make_optimizers, set_rate
from quantize import Format, format_of


@dataclass(frozen=True)
class Stage:
    name: str
    how: Pass
    seq_lens: tuple[int, ...]  # taken in turns, step by step
    n_steps: int
    rates: tuple[float, float]  # learning rate at the first and the last step, linear between
    round_weights: bool = False  # compute with the weights as the file will hold them


DENSE = Pass("dense")
WARM_UP = Pass("dense", kl_queries=512, train_main=False)
SPARSE = Pass("sparse", kl_queries=256)
AS_STORED = Pass("sparse", kl_queries=256, round_cache=True)

STAGES = (
    Stage("dense_512", DENSE, (512,), 6500, (4e-3, 3e-3)),
    Stage("dense_2k", DENSE, (2048,), 2200, (3e-3, 2e-3)),
    Stage("dense_8k", DENSE, (8192,), 560, (2e-3, 1.5e-3)),
    Stage("dense_16k", DENSE, (16384, 4096), 320, (1.5e-3, 1e-3)),
    Stage("indexer", WARM_UP, (4096, 16384), 260, (4e-3, 2e-3)),
    Stage("sparse", SPARSE, (4096, 16384), 400, (1e-3, 6e-4)),
    Stage("as_stored", AS_STORED, (4096, 16384), 620, (6e-4, 1e-4), round_weights=True),
)
STEP_TOKENS = 65536  # of all GPUs together
WARM_UP_STEPS = 40  # of each stage: the learning rate rises to the stage's first
EVALUATED_LENGTHS = (512, 2048, 4096, 8192, 16384)
EVALUATE_EVERY, LOG_EVERY = 500, 20
BALANCE_RATE = 1e-3
LARGEST_GRADIENT = 1.0  # norm over all parameters

TINY = ModelArgs(dim=64, inter_dim=96, moe_inter_dim=32, n_layers=2, n_heads=2, q_lora_rank=64, kv_lora_rank=128,
                 index_topk=64)  # to try the program on a CPU
TINY_STEP_TOKENS = 2048


# ---------------------------------------------------------------- where it runs


@dataclass(frozen=True)
class World:
    rank: int
    n_ranks: int
    device: torch.device

    @staticmethod
    def join() -> "World":
        rank, n_ranks = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if n_ranks > 1:
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        return World(rank, n_ranks, device)

    def average(self, tensors: list[Tensor]) -> None:
        """Each tensor becomes its mean over the ranks."""
        if self.n_ranks == 1:
            return
        flat = torch.cat([t.flatten() for t in tensors])
        dist.all_reduce(flat)
        flat /= self.n_ranks
        parts = flat.split([t.numel() for t in tensors])
        torch._foreach_copy_(tensors, [part.view_as(t) for part, t in zip(parts, tensors)])

    def any(self, is_true: bool) -> bool:
        """Whether it is true on some rank."""
        if self.n_ranks == 1:
            return is_true
        flag = torch.tensor(float(is_true), device=self.device)
        dist.all_reduce(flag)
        return bool(flag > 0)


# ---------------------------------------------------------------- batches


@dataclass
class Batch:
    ids: Tensor  # [batch, seq_len] int64
    targets: Tensor  # [batch * seq_len]: the id that follows each
    weights: Tensor  # [batch * seq_len] f32: of the loss at that target

    @staticmethod
    def of(ids: Tensor, weights: Tensor) -> "Batch":
        """weights [batch, seq_len] as the batches give them: of predicting ids[i]."""
        after = weights.roll(-1, 1)
        after[:, -1] = 0
        return Batch(ids, ids.roll(-1, 1).flatten(), after.flatten())

    @property
    def is_real(self) -> Tensor:
        """[batch, seq_len] f32: 0 where nothing of the row is left to predict."""
        return (self.weights > 0).float().view(self.ids.shape)


class Feed:
    """A stage's batches of this rank on the device, in order, made and copied ahead by a thread."""

    def __init__(self, batches, stage: Stage, first_step: int, step_tokens: int, world: World):
        self.queue: Queue = Queue(maxsize=3)
        self.is_wanted = True
        self.thread = Thread(target=self.fill, args=(batches, stage, first_step, step_tokens, world), daemon=True)
        self.thread.start()

    def fill(self, batches, stage: Stage, first_step: int, step_tokens: int, world: World) -> None:
        try:
            for step in range(first_step, stage.n_steps):
                seq_len = stage.seq_lens[step % len(stage.seq_lens)]
                n_rows = max(1, step_tokens // world.n_ranks // seq_len)
                ids, weights = batches.take(stage.name, step * world.n_ranks + world.rank, n_rows, seq_len)
                if not self.is_wanted:
                    return
                self.queue.put(on_device(ids, weights, world.device))
        except Exception as error:  # told where next() waits, or the run would hang
            self.queue.put(error)

    def next(self) -> Batch:
        batch = self.queue.get()
        if isinstance(batch, Exception):
            raise batch
        return batch

    def stop(self) -> None:
        self.is_wanted = False
        while not self.queue.empty():
            self.queue.get_nowait()


def on_device(ids, weights, device: torch.device) -> Batch:
    tensors = [torch.as_tensor(ids), torch.as_tensor(weights)]
    if device.type == "cuda":
        tensors = [t.pin_memory().to(device, non_blocking=True) for t in tensors]
    return Batch.of(*tensors)


# ---------------------------------------------------------------- measures

MEASURES = ("answer_loss", "answer_tokens", "text_loss", "text_tokens", "right", "answers", "kl", "steps")


@torch.no_grad()
def measure(loss: Tensor, is_right: Tensor, weights: Tensor, kl: Tensor) -> Tensor:
    """Sums by MEASURES, on the device. An answer is a run of targets of weight 1; it is right when all of it is."""
    is_answer = weights > 0.5
    is_text = (weights > 0) & ~is_answer
    begins = is_answer & ~is_answer.roll(1)
    number = begins.cumsum(0) * is_answer  # 0: no answer
    n_wrong = torch.zeros(len(loss) + 1, device=loss.device)
    n_wrong.scatter_add_(0, number, (is_answer & ~is_right).float())
    n_answers = begins.sum()
    n_failed = (n_wrong[1:] > 0).sum()
    sums = ((loss * is_answer).sum(), is_answer.sum(), (loss * is_text).sum(), is_text.sum(), n_answers - n_failed,
            n_answers, kl, torch.ones_like(kl))
    return torch.stack([s.float() for s in sums])


def summary(sums: Tensor) -> dict[str, float]:
    s = dict(zip(MEASURES, sums.tolist()))
    return {"answer_loss": s["answer_loss"] / max(s["answer_tokens"], 1),
            "text_loss": s["text_loss"] / max(s["text_tokens"], 1),
            "accuracy": s["right"] / max(s["answers"], 1), "kl": s["kl"] / max(s["steps"], 1)}


class Log:
    """Lines on standard output, the same as objects in log.jsonl; silent on all ranks but the first."""

    def __init__(self, folder: Path, world: World):
        self.file = open(folder / "log.jsonl", "a") if world.rank == 0 else None

    def write(self, **values) -> None:
        if self.file is None:
            return
        shown = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
        print("  ".join(shown), flush=True)
        self.file.write(json.dumps(values) + "\n")
        self.file.flush()


# ---------------------------------------------------------------- training


class RoundedWeights:
    """While entered, the model's weights are what the file would hold; gradients then apply to the true ones, which
    come back at the end. All tensors of a format are rounded together."""

    def __init__(self, model: Transformer):
        self.of_format: dict[Format, list[Tensor]] = {}
        for name, p in model.named_parameters():
            if form := format_of(name):
                self.of_format.setdefault(form, []).append(p)

    @torch.no_grad()
    def __enter__(self) -> None:
        self.kept = {}
        for form, params in self.of_format.items():
            flat = torch.cat([p.flatten() for p in params])
            rounded = form.round(flat.view(-1, form.block_values)).flatten()
            parts, kept = (t.split([p.numel() for p in params]) for t in (rounded, flat))
            torch._foreach_copy_(params, [part.view_as(p) for part, p in zip(parts, params)])
            self.kept[form] = [part.view_as(p) for part, p in zip(kept, params)]

    @torch.no_grad()
    def __exit__(self, *_) -> None:
        for form, params in self.of_format.items():
            torch._foreach_copy_(params, self.kept[form])


class Trainer:
    def __init__(self, model: Transformer, world: World, seed: int):
        self.model, self.world = model, world
        self.optimizers = make_optimizers(model)
        self.rounded = RoundedWeights(model)
        self.random = random.Random(seed)  # the same on all ranks

    def autocast(self):
        is_gpu = self.world.device.type == "cuda"
        return torch.autocast("cuda", torch.bfloat16) if is_gpu else nullcontext()

    def run(self, batch: Batch, how: Pass) -> tuple[Tensor, Tensor, list[Tensor]]:
        """-> loss to minimise, sums for the log, loads of the expert layers."""
        seq_len = batch.ids.shape[1]
        begin = self.random.randrange(max(1, seq_len - how.kl_queries + 1)) if how.kl_queries else 0
        with self.autocast():
            hidden = self.model(batch.ids, batch.is_real, how, begin)
            with torch.set_grad_enabled(how.train_main and torch.is_grad_enabled()):
                losses, is_right = self.model.score(hidden.h, batch.targets)
        sums = measure(losses, is_right, batch.weights, hidden.kl)
        loss = hidden.kl
        if how.train_main:
            loss = loss + (losses * batch.weights).sum() / batch.weights.sum().clamp_min(1)
        return loss, sums, hidden.loads

    def step(self, batch: Batch, stage: Stage, rate: float) -> Tensor:
        """One update -> sums for the log."""
        with self.rounded if stage.round_weights else nullcontext():
            loss, sums, loads = self.run(batch, stage.how)
            loss.backward()
        params = [p for p in self.model.parameters() if p.grad is not None]
        self.world.average([p.grad for p in params])
        torch.nn.utils.clip_grad_norm_(params, LARGEST_GRADIENT)
        set_rate(self.optimizers, rate)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if stage.how.train_main:
            self.world.average(loads)
            layers = (layer.experts for layer in self.model.layers if layer.experts is not None)
            for experts, load in zip(layers, loads):
                experts.balance(load, BALANCE_RATE)
        return sums

    @torch.no_grad()
    def evaluate(self, held_out: dict[int, Batch], stage: Stage) -> dict[str, float]:
        """Accuracy by length, as the stage attends; answers are predicted from the true ones before them."""
        how = Pass(stage.how.attention, round_cache=stage.how.round_cache)
        accuracy = {}
        with self.rounded if stage.round_weights else nullcontext():
            for length, batch in held_out.items():
                sums = self.run(batch, how)[1]
                self.world.average([sums])
                accuracy[f"at_{length}"] = summary(sums)["accuracy"]
        return accuracy


def rate_at(stage: Stage, step: int) -> float:
    first, last = stage.rates
    rise = min(1.0, (step + 1) / WARM_UP_STEPS)
    return rise * (first + (last - first) * step / stage.n_steps)


class Run:
    """Goes through the stages until they are done or the time is up."""

    def __init__(self, options: argparse.Namespace, world: World):
        from batches import Batches
        from vocabulary import Vocabulary

        self.options, self.world, self.begin = options, world, time.monotonic()
        torch.manual_seed(options.seed)
        kept = checkpoints.load(options.resume, str(world.device)) if options.resume else None
        args = kept.args if kept else TINY if options.tiny else ModelArgs()
        model = Transformer(args, is_compiled=world.device.type == "cuda")
        if kept:
            model.load_state_dict(kept.weights)
        self.trainer = Trainer(model.to(world.device), world, options.seed)
        if kept and kept.optimizers:
            for optimizer, state in zip(self.trainer.optimizers, kept.optimizers):
                optimizer.load_state_dict(state)
        self.progress = kept.progress if kept else Progress()
        self.step_tokens = TINY_STEP_TOKENS if options.tiny else STEP_TOKENS
        options.out.mkdir(parents=True, exist_ok=True)
        self.log = Log(options.out, world)
        vocabulary = Vocabulary.load(options.vocabulary)
        n_workers = options.workers or max(1, ((os.cpu_count() or 2) - 2) // world.n_ranks)
        self.batches = Batches(vocabulary, options.seed, n_workers)
        self.held_out = self.take_held_out()

    def take_held_out(self) -> dict[int, Batch]:
        """A batch of each length, of a stage that is not trained on."""
        n_tokens = self.step_tokens // self.world.n_ranks
        taken = {}
        for length in EVALUATED_LENGTHS:
            if length <= n_tokens:
                ids, weights = self.batches.take("held_out", self.world.rank, n_tokens // length, length)
                taken[length] = on_device(ids, weights, self.world.device)
        return taken

    def is_over(self) -> bool:
        return self.world.any(time.monotonic() - self.begin > 60 * self.options.minutes)

    def save(self) -> None:
        if self.world.rank != 0:
            return
        model, optimizers = self.trainer.model, self.trainer.optimizers
        states = [optimizer.state_dict() for optimizer in optimizers]
        checkpoints.save(self.options.out, Checkpoint(model.args, model.state_dict(), self.progress, states),
                         self.options.split_mib)

    def go(self) -> None:
        while self.progress.stage < len(STAGES):
            stage = STAGES[self.progress.stage]
            if not self.run_stage(stage):
                break
            self.progress.stage, self.progress.step = self.progress.stage + 1, 0
        self.save()
        self.batches.close()

    def run_stage(self, stage: Stage) -> bool:
        """-> whether it was done before the time was up."""
        feed = Feed(self.batches, stage, self.progress.step, self.step_tokens, self.world)
        progress, n_logged, since = self.progress, self.progress.n_tokens, time.monotonic()
        sums = torch.zeros(len(MEASURES), device=self.world.device)
        is_last = progress.step == stage.n_steps
        while not is_last:
            batch = feed.next()
            sums += self.trainer.step(batch, stage, rate_at(stage, progress.step))
            progress.step += 1
            progress.n_tokens += batch.ids.numel() * self.world.n_ranks
            is_last = progress.step == stage.n_steps
            if progress.step % LOG_EVERY == 0 or is_last:
                self.world.average([sums])
                values = summary(sums)  # waits for the device
                now = time.monotonic()
                speed = (progress.n_tokens - n_logged) / (now - since)
                self.log.write(stage=stage.name, step=progress.step, **values, rate=rate_at(stage, progress.step),
                               tokens=progress.n_tokens, tokens_per_s=round(speed),
                               minutes=round((now - self.begin) / 60, 2))
                sums.zero_()
                n_logged, since = progress.n_tokens, now
                if self.is_over():
                    break
            if progress.step % EVALUATE_EVERY == 0 or is_last:
                accuracy = self.trainer.evaluate(self.held_out, stage)
                self.log.write(stage=stage.name, step=progress.step, **accuracy)
                since = time.monotonic()
        feed.stop()
        return is_last


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains the demonstration model.")
    parser.add_argument("--vocabulary", type=Path, required=True, help="as models/train/vocabulary.py writes it")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint and log.jsonl")
    parser.add_argument("--resume", type=Path, help="folder of the checkpoint to go on from")
    parser.add_argument("--minutes", type=float, default=1e9, help="end and save after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, help="processes that make text for each GPU (default: cores - 2)")
    parser.add_argument("--split-mib", type=float, default=15, help="size of a part of the weights alone")
    parser.add_argument("--tiny", action="store_true", help="a much smaller model, to try the program on a CPU")
    return parser.parse_args()


def main() -> None:
    world = World.join()
    Run(read_options(), world).go()
    if world.n_ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
