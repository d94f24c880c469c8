#include "model/stage.h"

#include <algorithm>
#include <cmath>

#include "backend/link_share.h"

namespace dsv32 {

std::vector<float> rope_frequencies(const ModelArgs& args) {
  constexpr double kPi = 3.14159265358979323846;
  const int64_t dim = args.qk_rope_head_dim;
  const float theta = args.rope_theta;
  // The pair index at which a wave turns `n_turns` times over the original context.
  const auto correction_dim = [&](float n_turns) {
    return static_cast<double>(dim) *
           std::log(static_cast<double>(args.original_seq_len) / (static_cast<double>(n_turns) * 2 * kPi)) /
           (2 * std::log(static_cast<double>(theta)));
  };
  std::vector<float> frequencies(static_cast<size_t>(dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = 1.0f / std::pow(theta, static_cast<float>(2 * i) / static_cast<float>(dim));
  if (args.rope_factor == 1.0f) return frequencies;
  const float low = static_cast<float>(std::max(std::floor(correction_dim(args.beta_fast)), 0.0));
  float high =
      static_cast<float>(std::min(std::ceil(correction_dim(args.beta_slow)), static_cast<double>(dim - 1)));
  if (low == high) high += 0.001f;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float ramp = std::clamp((static_cast<float>(i) - low) / (high - low), 0.0f, 1.0f);
    frequencies[i] = frequencies[i] / args.rope_factor * ramp + frequencies[i] * (1 - ramp);
  }
  return frequencies;
}

Stage::Stage(Backend& backend, const Member& member, const ModelArgs& args, const Weights& weights,
             StageCache& cache, const StageSizes& sizes)
    : backend_(backend),
      member_(member),
      args_(args),
      weights_(weights),
      cache_(cache),
      act_(&backend, args, sizes.max_tokens, sizes.max_context, cache.plan().max_seqs, member.n()) {
  const std::vector<float> frequencies = rope_frequencies(args);
  frequencies_ =
      Buffer<float>(backend, Place::device, static_cast<int64_t>(frequencies.size()), "rope frequencies");
  backend.upload(frequencies_.data(), frequencies.data(), frequencies_.n_bytes());
  for (int64_t layer = cache.first_layer(); layer < cache.end_layer(); ++layer) {
    const ExpertWeights& experts = weights.layers[static_cast<size_t>(layer)].experts;
    if (experts.place != Place::host) continue;
    if (backend.link_adds()) n_link_bytes_ = std::max(n_link_bytes_, link_window_bytes(experts.routed));
    if (expert_window_.n() == 0)
      expert_window_ = Buffer<uint8_t>(
          backend, Place::device, static_cast<int64_t>(sizes.expert_window_bytes), "the window of experts");
  }
  if (!is_last()) return;
  decode_logits_ =
      Buffer<float>(backend, Place::device, args.vocab_size * cache.plan().max_step_tokens(), "logits");
  prompt_logits_ = Buffer<float>(backend, Place::device, args.vocab_size, "logits");
  if (!is_alone())
    logit_part_ = Buffer<float>(backend, Place::device,
                                (decode_logits_.n() + prompt_logits_.n()) / member.n(), "logits");
}

// A decode step's largest position, rounded up so that one recording serves thousands of steps: operations
// read the true positions in memory. It stays below topk while every visible row is selected.
int64_t Stage::recordable_max_pos(int64_t max_pos) const {
  constexpr int64_t kStepsOfARecord = 4096;
  const int64_t rounded = max_pos / kStepsOfARecord * kStepsOfARecord + kStepsOfARecord - 1;
  const int64_t last = act_.max_context - 1;
  if (max_pos < args_.topk()) return std::min(args_.topk() - 1, last);
  return std::min(rounded, last);
}

void Stage::begin(const Step& step) {
  backend_.begin_step();
  left_.reset();
  if (laps_) backend_.mark();
  upload(step);
  is_guess_ = step.nth_guess.has_value();
  layer_ = is_guess_ ? args_.n_layers : cache_.first_layer();
  cache_.begin_step(step.sequences, step.n_held, step.n_tokens(), step.role, layer_);
  n_logits_ = step.n_logits;
  if (is_last()) place_logits();
}

// One upload: tokens | positions | sequences | rows of act_.hidden.
void Stage::upload(const Step& step) {
  const auto n = step.tokens.size();
  const bool is_decode = step.role == Role::decode;
  std::vector<int32_t> ints = step.tokens;
  ints.resize(3 * n);
  std::vector<Spot> spots;
  for (size_t i = 0; i < n; ++i) {
    CachedSequence* sequence = step.sequences[is_decode ? i : 0];
    const int64_t first = is_decode ? sequence->n_tokens() + step.nth_guess.value_or(0) : step.n_held;
    spots.push_back({sequence, step.begins_sequence(i) ? first : spots.back().pos + 1});
    ints[n + i] = static_cast<int32_t>(spots.back().pos);
    ints[2 * n + i] = is_decode ? static_cast<int32_t>(i) : 0;
  }
  if (has_block()) {
    const std::vector<int32_t> rows = hidden_rows(step);
    ints.insert(ints.end(), rows.begin(), rows.end());
  }
  spots_ = std::move(spots);
  backend_.upload(act_.step_ints.data(), ints.data(), ints.size() * sizeof(int32_t));
  const int64_t max_pos = *std::ranges::max_element(std::span(ints).subspan(n, n));
  step_ = {static_cast<int64_t>(n),
           std::ssize(step.sequences),
           is_decode ? recordable_max_pos(max_pos) : max_pos,
           act_.step_ints.data(),
           act_.step_ints.data() + n,
           act_.step_ints.data() + 2 * n,
           step.role};
}

void Stage::place_logits() {
  const bool is_decode = step_.role == Role::decode;
  if (!is_decode && prompt_logits_.n() < n_logits_ * args_.vocab_size) {
    prompt_logits_ = {};  // freed first: there is room for only one
    prompt_logits_ = Buffer<float>(backend_, Place::device, n_logits_ * args_.vocab_size, "logits");
  }
  if (const int64_t n = n_logits_ * args_.vocab_size / member_.n(); !is_alone() && logit_part_.n() < n) {
    logit_part_ = {};
    logit_part_ = Buffer<float>(backend_, Place::device, n, "logits");
  }
  logits_ = is_decode ? decode_logits_.data() : prompt_logits_.data();
}

bool Stage::advance() {
  const bool is_watched = observer_ || laps_;
  if (step_.role == Role::decode && !is_watched)
    replay();
  else if (run_layer())
    return true;
  if (has_block() && !is_guess_) keep_last();
  lap("other");
  return false;
}

// Replays the recording for this step's key; makes it first if there is none. Recordings hold addresses of
// this stage's memory. If the backend does not record, the layers run directly.
void Stage::replay() {
  // A long answer needs a few keys, because positions are rounded; a small batch whose sequences end one by
  // one needs eight; and guesses make steps of several numbers of tokens.
  constexpr size_t kMostRecorded = 32;
  const auto run_all = [this] {
    while (run_layer()) continue;
  };
  const RecordKey key{step_.n_tokens, step_.max_pos, forced(), cache_.has_buffers(), is_guess_};
  auto known = std::ranges::find(recorded_, key, [](const auto& recorded) { return recorded.first; });
  if (known == recorded_.end()) {
    std::unique_ptr<Recording> recording = backend_.record(run_all);
    if (!recording) return run_all();
    if (recorded_.size() == kMostRecorded) recorded_.pop_back();
    recorded_.emplace_back(key, std::move(recording));
    known = recorded_.end() - 1;
  }
  std::rotate(recorded_.begin(), known, known + 1);
  recorded_.front().second->replay();
}

// Whether a layer only has to store rows and keys, because its h is not read: the block for drafts, unless it
// guesses; without a block the model's last layer in a step without logits.
bool Stage::leaves_rows_only(int64_t layer) const {
  if (layer == args_.n_layers) return !is_guess_;
  return layer + 1 == args_.n_all_layers() && n_logits_ == 0 && !observer_;
}

// h += MLA(RMSNorm(h));  h += FFN(RMSNorm(h)).  False: it was the last layer.
bool Stage::run_layer() {
  LeftSum left = std::exchange(left_, {});
  if (is_in_block()) {
    enter_block(std::exchange(left, {}));
  } else if (layer_ == cache_.first_layer()) {
    announce_host_experts();
    if (is_first()) backend_.embed({step_, weights_.embed, act_.h.data()});
  }
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer_)];
  const CacheView cache = cache_.enter(layer_);
  const bool rows_only = leaves_rows_only(layer_);
  const std::vector<Piece> pieces = this->pieces();
  for (const Piece& p : pieces) {
    norm(p, w.attn_norm, "attn_norm", std::exchange(left, {}));
    project(p, w);
    store(p, w, cache);
    if (rows_only) claim_slots(p.tokens, cache);
    if (rows_only) continue;
    norm(p, w.ffn_norm, "ffn_norm", attention(p, w, cache));
    gather_owned(p, by_tokens(p, x(p), args_.dim));
    if (w.is_dense)
      left = mlp(p, w.mlp, nullptr, out(p));
    else
      route(p, w.experts);
  }
  if (!is_alone()) cache_.save_rows(cache);
  if (!w.is_dense && !rows_only) routed_experts(w.experts);
  for (const Piece& p : pieces) {
    if (rows_only) break;
    if (!w.is_dense) {
      left = shared_expert(p, w.experts);
      lap("experts");
    }
    if (layer_ + 1 == cache_.end_layer() || leaves_rows_only(layer_ + 1))
      gather_owned(p, by_tokens(p, h(p), args_.dim));
    observe(p, "h", h(p), args_.dim);
  }
  left_ = left;
  if (++layer_ < cache_.end_layer()) return true;
  if (is_guess_) run_head(weights_.draft.norm, weights_.draft.head, left);
  if (is_last() && !has_block() && n_logits_ > 0) run_head(weights_.norm, weights_.head, left);
  return false;
}

// The step's tokens in consecutive parts, each as long as the activations allow.
std::vector<Stage::Piece> Stage::pieces() const {
  std::vector<Piece> pieces;
  for (int64_t first = 0; first < step_.n_tokens; first += pieces.back().tokens.n_tokens) {
    const int64_t n = std::min(act_.piece_tokens, step_.n_tokens - first);
    pieces.push_back({some_of(step_, first, n), first, share_of(n)});
  }
  return pieces;
}

// All of a piece's attention, or the member's share of it. Who observes sees all.
Stage::Share Stage::share_of(int64_t n_tokens) const {
  Share share{Division::none, 0, n_tokens, args_.n_heads};
  if (is_alone() || leaves_rows_only(layer_) || observer_) return share;
  share.division = choose_division(step_.role == Role::decode, n_tokens, member_.n());
  if (share.division == Division::heads) share.n_heads /= member_.n();
  if (share.division == Division::tokens)
    share.first = member_.begin(n_tokens), share.n_tokens = member_.end(n_tokens) - share.first;
  return share;
}

void Stage::norm(const Piece& p, const Vector& weight, const char* name, LeftSum left) {
  const int64_t first = p.share.first * args_.dim;
  const RmsNorm op{h(p) + first, args_.dim,        weight.data(), args_.norm_eps,
                   x(p) + first, p.share.n_tokens, args_.dim};
  if (left)
    left->norm = op, backend_.gather(*left);
  else
    backend_.rms_norm(op);
  observe(p, name, x(p), args_.dim);
}

// logits = head RMSNorm(h), of the last n_logits_ tokens. The block for drafts needs RMSNorm(h) of all
// tokens.
void Stage::run_head(const Vector& norm, const WeightMatrix& head, const LeftSum& left) {
  if (left) backend_.gather(*left);
  const int64_t n_before = step_.n_tokens - n_logits_, first = has_block() ? 0 : n_before;
  backend_.rms_norm({act_.h.data() + first * args_.dim, args_.dim, norm.data(), args_.norm_eps, act_.out(),
                     step_.n_tokens - first, args_.dim});
  if (n_logits_ == 0) return;
  const bool is_share = head.n_rows < args_.vocab_size;  // else each member has all of it
  float* y = is_share ? logit_part_.data() : logits_;
  backend_.matmul({head, act_.out() + (n_before - first) * args_.dim, args_.dim, y, n_logits_, step_.role});
  if (is_share) backend_.gather(columns(y, logits_, n_logits_, args_.vocab_size));
}

Stage::BufferTally Stage::buffer_tally() const {
  int64_t counts[2] = {};
  backend_.download(counts, act_.tally.data(), sizeof counts);
  return {counts[0], counts[1]};
}

// y = weight @ x for the piece's tokens; x and y are dense.
Matmul Stage::product(const Piece& p, const WeightMatrix& weight, const float* x, float* y) const {
  return {weight, x, weight.n_cols, y, p.tokens.n_tokens, step_.role};
}

bool Stage::is_observed(const char* name) const {
  return observer_ && member_.number == 0 &&
         (observed_names_.empty() || std::ranges::count(observed_names_, name) > 0);
}

void Stage::lap(const char* name) {
  if (!laps_) return;
  backend_.mark();
  laps_->push_back(name);
}

void Stage::observe(const Piece& p, const char* name, const float* values, int64_t width) {
  if (!is_observed(name)) return;
  Observation seen{name, layer_, p.tokens.n_tokens, width, {}, {}};
  seen.values.resize(static_cast<size_t>(p.tokens.n_tokens * width));
  backend_.download(seen.values.data(), values, seen.values.size() * sizeof(float));
  observer_(seen);
}

void Stage::observe_ints(const Piece& p, const char* name, int32_t* ints, int64_t width) {
  if (!is_observed(name)) return;
  Observation seen{name, layer_, p.tokens.n_tokens, width, {}, {}, ints};
  seen.ints.resize(static_cast<size_t>(p.tokens.n_tokens * width));
  backend_.download(seen.ints.data(), ints, seen.ints.size() * sizeof(int32_t));
  observer_(seen);
}

}  // namespace dsv32
