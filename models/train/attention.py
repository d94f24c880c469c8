"""Attention over the rows of a batch: dense, sparse over what the indexer selects, and the indexer's loss.

The selection takes a chunk of queries at a time, since it needs a score for every pair of positions. The loss compares
the indexer's scores, as probabilities, with the main attention's, averaged over its heads; it is taken on a run of
queries only, which says the same on average.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from sparse_attention import gathered_scores, sparse_mla

UNSEEN = -1e9  # added to the score of a position that is not attended; finite, so that no 0 * inf appears
N_CHUNK = 1024  # queries of a row whose scores are kept at a time

# q [batch, seq_len, heads, dim], k [batch, seq_len, dim], w [batch, seq_len, heads]
Index = tuple[Tensor, Tensor, Tensor]


def weighted_sum(products: Tensor, w: Tensor) -> Tensor:
    """I = sum over heads of w * ReLU(q . k). products [..., heads, m], w [..., heads] -> [..., m] f32."""
    return (products.relu().float() * w.unsqueeze(-1)).sum(-2)


def index_scores(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    """Of n queries and m keys of each row: [batch, n, m] f32."""
    products = (q.flatten(1, 2) @ k.transpose(1, 2)).unflatten(1, q.shape[1:3])
    return weighted_sum(products, w)


def ranked_scores(q: Tensor, k: Tensor, w: Tensor, begin: int) -> Tensor:
    """index_scores of the queries from position `begin`, -inf for later positions. Scores of exactly zero are common
    and tie: they give way to minute ones that fall with the position, so that the lower position wins."""
    scores = index_scores(q, k, w)
    key = torch.arange(k.shape[1], device=k.device)
    query = torch.arange(begin, begin + q.shape[1], device=k.device).unsqueeze(-1)
    return torch.where(key > query, -torch.inf, torch.where(scores == 0, key * -1e-30, scores))


def dense_target(q: Tensor, k: Tensor, bias: Tensor, scale: float) -> Tensor:
    """q [batch, heads, n, dim], k [batch, heads, m, dim], bias [n, m] -> mean probabilities [batch, n, m]."""
    return ((q @ k.transpose(-1, -2)).float() * scale + bias).softmax(-1).mean(1)


def kl_divergence(p: Tensor, scores: Tensor, bias: Tensor) -> Tensor:
    """KL(p || softmax(scores + bias)), mean over queries; p and scores [batch, n, m]."""
    log_q = (scores + bias).log_softmax(-1)
    return (p * (p.clamp_min(1e-30).log() - log_q)).sum(-1).mean()


def causal_bias(begin: int, end: int, device: torch.device) -> Tensor:
    """[end - begin, end]: 0 where the query at begin + i sees the key, else UNSEEN."""
    query = torch.arange(begin, end, device=device).unsqueeze(-1)
    return torch.where(torch.arange(end, device=device) > query, UNSEEN, 0.0)


class Attention:
    """Knows the sizes and the compiled functions; otherwise without state."""

    def __init__(self, args, is_compiled: bool):
        self.args = args
        wrap = (lambda f: torch.compile(f, dynamic=True)) if is_compiled else (lambda f: f)
        self.index_scores, self.ranked_scores = wrap(index_scores), wrap(ranked_scores)
        self.dense_target, self.kl_divergence = wrap(dense_target), wrap(kl_divergence)

    def dense(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v [batch, heads, seq_len, dim] of one width -> likewise."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.args.softmax_scale)

    def sparse(self, q: Tensor, kv: Tensor, positions: Tensor) -> Tensor:
        """q [n_tokens, heads, width], kv [n_tokens, width], positions as select() gives them
        -> [n_tokens, heads, rank]."""
        return sparse_mla(q, kv, positions.flatten(0, 1), self.args.kv_lora_rank, self.args.softmax_scale)

    @torch.no_grad()
    def select(self, index: Index) -> Tensor:
        """-> [batch, seq_len, min(index_topk, seq_len)] int32: the positions with the best scores, as rows of the
        batch's flat list of tokens; -1 for none, where a query sees fewer."""
        q, k, w = index
        batch, seq_len = q.shape[:2]
        topk = min(self.args.index_topk, seq_len)
        chunks = []
        for begin in range(0, seq_len, N_CHUNK):
            end = min(begin + N_CHUNK, seq_len)
            visible = max(end, topk)
            scores = self.ranked_scores(q[:, begin:end], k[:, :visible], w[:, begin:end], begin)
            best = scores.topk(topk, sorted=False)
            chunks.append(torch.where(best.values == -torch.inf, -1, best.indices))
        first = torch.arange(batch, device=q.device).view(-1, 1, 1) * seq_len
        selected = torch.cat(chunks, 1)
        return torch.where(selected < 0, selected, selected + first).int()

    def dense_loss(self, q: Tensor, k: Tensor, index: Index, begin: int, end: int) -> Tensor:
        """The indexer's loss over all that the queries begin..end see. q, k as for dense(), without gradient."""
        bias = causal_bias(begin, end, q.device)
        with torch.no_grad():
            p = self.dense_target(q[:, :, begin:end], k[:, :, :end], bias, self.args.softmax_scale)
        scores = self.index_scores(index[0][:, begin:end], index[1][:, :end], index[2][:, begin:end])
        return self.kl_divergence(p, scores, bias)

    def sparse_loss(self, q: Tensor, kv: Tensor, index: Index, positions: Tensor, begin: int, end: int) -> Tensor:
        """The same over what was selected for them. q, kv as for sparse(), without gradient."""
        at = positions[:, begin:end].flatten(0, 1)
        rows = at.clamp_min(0)
        with torch.no_grad():
            q = q.unflatten(0, positions.shape[:2])[:, begin:end].flatten(0, 1)
            p = gathered_scores(q, kv[rows], at, self.args.softmax_scale).softmax(-1).mean(1)
        index_q, index_w = (t[:, begin:end].flatten(0, 1) for t in (index[0], index[2]))
        scores = weighted_sum(index_q @ index[1].flatten(0, 1)[rows].transpose(1, 2), index_w)
        return self.kl_divergence(p.unsqueeze(0), scores.unsqueeze(0), torch.where(at < 0, UNSEEN, 0.0))
