// Placement against a table of machines, against all borders and counts gone through on small random
// machines, and by its invariants on larger ones.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <iterator>
#include <random>
#include <sstream>

#include "base/error.h"
#include "tests/support/contains.h"
#include "weights/placement.h"
#include "weights/synthetic.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(placement)

namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

using Rng = std::mt19937;

// ---- What a placement takes, worked out anew.

uint64_t device_bytes(const PlacementInput& in, int64_t first, int64_t end, const std::vector<bool>& on_host,
                      int64_t n_rows) {
  uint64_t n = in.device_bytes, n_streamed = 0;
  for (int64_t i = first; i < end; ++i) {
    const LayerBytes& layer = in.model.layers.at(static_cast<size_t>(i));
    n += layer.core + in.layer_bytes + static_cast<uint64_t>(n_rows) * in.row_bytes;
    (on_host.at(static_cast<size_t>(i)) ? n_streamed : n) += layer.experts;
  }
  const bool is_first = first == 0, is_last = end == std::ssize(in.model.layers);
  if (is_first) n += in.model.embedding;
  if (is_last) n += in.model.head + in.model.draft;
  if (is_last && !is_first) n += in.model.draft_embedding;
  if (is_first && is_last) n -= in.model.tied;
  return n + (n_streamed > 0 ? in.stream_bytes : 0);
}

// For a decode token, wherever the experts lie.
uint64_t layers_read(const PlacementInput& in, int64_t first, int64_t end) {
  uint64_t n = 0;
  for (int64_t i = first; i < end; ++i) {
    const LayerBytes& layer = in.model.layers.at(static_cast<size_t>(i));
    n += (layer.is_draft ? 0 : layer.core) + layer.experts_read;
  }
  if (first == 0) n += in.model.embedding_read;
  if (end == std::ssize(in.model.layers)) n += in.model.head;
  return n;
}

// Layers of a run that have experts.
std::vector<size_t> with_experts(const PlacementInput& in, int64_t first, int64_t end) {
  std::vector<size_t> layers;
  for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(end); ++i)
    if (in.model.layers[i].experts > 0) layers.push_back(i);
  return layers;
}

// The j-th of n_host lies where j / n_host of the layers are behind it.
void set_evenly(std::vector<bool>& on_host, const std::vector<size_t>& layers, size_t n_host) {
  for (const size_t layer : layers) on_host[layer] = false;
  for (size_t j = 1; j <= n_host; ++j) on_host[layers[(j * layers.size() + n_host - 1) / n_host - 1]] = true;
}

bool lies_evenly(const std::vector<bool>& on_host, const std::vector<size_t>& layers) {
  for (size_t width = 1; width <= layers.size(); ++width) {
    size_t least = width, most = 0;
    for (size_t at = 0; at + width <= layers.size(); ++at) {
      size_t n = 0;
      for (size_t i = at; i < at + width; ++i) n += on_host[layers[i]];
      least = std::min(least, n), most = std::max(most, n);
    }
    if (most > least + 1) return false;
  }
  return true;
}

void check(const PlacementInput& in, const Placement& placement) {
  BOOST_TEST_REQUIRE(placement.devices.size() == in.device_room.size());
  BOOST_TEST_REQUIRE(placement.has_host_experts.size() == in.model.layers.size());
  BOOST_TEST(placement.buffer_rows >= in.least_rows);
  BOOST_TEST(placement.buffer_rows <= in.most_rows);
  bool could_grow = placement.buffer_rows < in.most_rows;
  int64_t first = 0;
  for (size_t i = 0; i < in.device_room.size(); ++i) {
    const Placement::Device& device = placement.devices[i];
    BOOST_TEST_REQUIRE(device.first_layer == first);
    BOOST_TEST_REQUIRE(device.end_layer > first);
    const auto taken = [&](int64_t n_rows) {
      return device_bytes(in, first, device.end_layer, placement.has_host_experts, n_rows);
    };
    BOOST_TEST(device.n_bytes == taken(placement.buffer_rows));
    BOOST_TEST(device.n_bytes <= in.device_room[i]);
    could_grow = could_grow && taken(placement.buffer_rows + 1) <= in.device_room[i];
    if (!in.n_host_layers)
      BOOST_TEST(lies_evenly(placement.has_host_experts, with_experts(in, first, device.end_layer)));
    first = device.end_layer;
  }
  BOOST_TEST(first == std::ssize(in.model.layers));
  BOOST_TEST(!could_grow);
  uint64_t host_bytes = in.host_bytes;
  for (size_t i = 0; i < in.model.layers.size(); ++i)
    if (placement.has_host_experts[i]) {
      BOOST_TEST(in.model.layers[i].experts > 0);
      host_bytes += in.model.layers[i].experts;
    }
  BOOST_TEST(placement.host_bytes == host_bytes);
  BOOST_TEST(host_bytes <= in.host_room);
  if (in.n_host_layers) {
    BOOST_TEST(std::ranges::count(placement.has_host_experts, true) == *in.n_host_layers);
    BOOST_TEST(lies_evenly(placement.has_host_experts, with_experts(in, 0, std::ssize(in.model.layers))));
  }
}

// ---- All borders and all counts, on few layers.

struct Choice {
  uint64_t host_bytes = UINT64_MAX, most_read = UINT64_MAX;
  std::vector<int64_t> ends;
  auto operator<=>(const Choice&) const = default;
  bool exists() const { return !ends.empty(); }
};

// The one with the fewest bytes on the host. `given`: the layers whose experts lie there; nothing: any count
// of each stage.
class EveryChoice {
 public:
  EveryChoice(const PlacementInput& in, int64_t n_rows, std::optional<std::vector<bool>> given)
      : in_(in), n_rows_(n_rows), given_(std::move(given)), on_host_(in.model.layers.size()) {
    if (given_) on_host_ = *given_;
    go({}, 0, 0);
  }
  const Choice& best() const { return best_; }

 private:
  void go(const std::vector<int64_t>& ends, uint64_t host_bytes, uint64_t most_read) {
    const int64_t first = ends.empty() ? 0 : ends.back(), n_layers = std::ssize(in_.model.layers);
    if (ends.size() == in_.device_room.size()) {
      if (first == n_layers) best_ = std::min(best_, {host_bytes, most_read, ends});
      return;
    }
    for (int64_t end = first + 1; end <= n_layers; ++end) {
      if (end < n_layers && in_.model.layers[static_cast<size_t>(end)].is_draft) continue;  // never alone
      const std::vector<size_t> layers = with_experts(in_, first, end);
      for (size_t n_host = 0; n_host <= (given_ ? 0 : layers.size()); ++n_host) {
        if (!given_) set_evenly(on_host_, layers, n_host);
        if (device_bytes(in_, first, end, on_host_, n_rows_) > in_.device_room[ends.size()]) continue;
        uint64_t n_more = 0;
        for (const size_t layer : layers) n_more += on_host_[layer] ? in_.model.layers[layer].experts : 0;
        std::vector<int64_t> longer = ends;
        longer.push_back(end);
        go(longer, host_bytes + n_more, std::max(most_read, layers_read(in_, first, end)));
      }
    }
  }

  const PlacementInput& in_;
  int64_t n_rows_;
  std::optional<std::vector<bool>> given_;
  std::vector<bool> on_host_;
  Choice best_;
};

std::vector<bool> with_host_layers(const PlacementInput& in, size_t n_host) {
  std::vector<bool> on_host(in.model.layers.size());
  set_evenly(on_host, with_experts(in, 0, std::ssize(in.model.layers)), n_host);
  return on_host;
}

// The best with the experts of the wished layers alone on the host, and the most rows.
Choice best_as_wished(const PlacementInput& in) {
  const std::vector<bool> wished = with_host_layers(in, static_cast<size_t>(in.n_host_layers.value_or(0)));
  for (int64_t n_rows = in.most_rows; n_rows >= in.least_rows; --n_rows)
    if (const Choice choice = EveryChoice(in, n_rows, wished).best(); choice.exists()) return choice;
  return {};
}

// ---- Machines and models.

uint64_t up_to(Rng& rng, uint64_t most) { return std::uniform_int_distribution<uint64_t>(0, most)(rng); }

ModelBytes random_model(Rng& rng, size_t n_layers) {
  ModelBytes model;
  const uint64_t n_dense = up_to(rng, 2), core = 1 + up_to(rng, 5), experts = 4 + up_to(rng, 40);
  const bool is_mixed = up_to(rng, 2) == 0;
  for (size_t i = 0; i < n_layers; ++i) {
    const uint64_t n_more = is_mixed ? up_to(rng, 8) : 0;
    model.layers.push_back(i < n_dense
                               ? LayerBytes{core + n_more + 3, 0, 0}
                               : LayerBytes{core + n_more / 4, experts + n_more, experts / 4 + n_more});
  }
  model.embedding = up_to(rng, 9), model.embedding_read = up_to(rng, 1), model.head = up_to(rng, 9);
  if (up_to(rng, 9) == 0) model.tied = model.embedding, model.head += model.embedding;
  return model;
}

PlacementInput random_machine(Rng& rng, size_t most_layers, size_t most_devices) {
  PlacementInput in;
  in.model = random_model(rng, 1 + up_to(rng, most_layers - 1));
  const size_t n_layers = in.model.layers.size(),
               n_devices = 1 + up_to(rng, std::min(most_devices, n_layers) - 1);
  in.device_bytes = up_to(rng, 10), in.layer_bytes = up_to(rng, 3), in.row_bytes = up_to(rng, 2);
  in.stream_bytes = up_to(rng, 30);
  in.least_rows = static_cast<int64_t>(up_to(rng, 3));
  in.most_rows = in.least_rows + static_cast<int64_t>(up_to(rng, 12));
  uint64_t n_all = 0, n_experts = 0;
  for (const LayerBytes& layer : in.model.layers)
    n_all += layer.core + layer.experts, n_experts += layer.experts;
  const uint64_t n_room = in.device_bytes + 1 + 3 * n_all / (2 * n_devices);
  const uint64_t n_least = up_to(rng, n_room);
  for (size_t i = 0; i < n_devices; ++i) in.device_room.push_back(n_least + up_to(rng, n_room));
  in.host_bytes = up_to(rng, 9);
  in.host_room = up_to(rng, 7) == 0 ? up_to(rng, 9 + n_experts) : in.host_bytes + n_experts;
  if (up_to(rng, 3) == 0)
    in.n_host_layers =
        static_cast<int64_t>(up_to(rng, with_experts(in, 0, static_cast<int64_t>(n_layers)).size()));
  return in;
}

// A block for drafts behind every other model.
void add_draft(Rng& rng, ModelBytes& model) {
  if (up_to(rng, 1) == 0) return;
  model.layers.push_back({.core = 1 + up_to(rng, 40), .is_draft = true});
  model.draft = up_to(rng, 9), model.draft_embedding = up_to(rng, 1) * model.embedding;
}

// Nothing, and the message, when it is refused for memory.
std::optional<Placement> placed(const PlacementInput& in, std::string* message = nullptr) {
  try {
    return place_layers(in);
  } catch (const Error& error) {
    BOOST_TEST_REQUIRE((error.kind() == ErrorKind::memory), error.what());
    if (message) *message = std::string(error.what()) + " | " + error.hint();
    return std::nullopt;
  }
}

std::vector<int64_t> ends_of(const Placement& placement) {
  std::vector<int64_t> ends;
  for (const Placement::Device& device : placement.devices) ends.push_back(device.end_layer);
  return ends;
}

uint64_t most_read(const PlacementInput& in, const Placement& placement) {
  uint64_t n = 0;
  for (const Placement::Device& device : placement.devices)
    n = std::max(n, layers_read(in, device.first_layer, device.end_layer));
  return n;
}

std::vector<int64_t> numbers(const char* text) {
  std::istringstream in(text);
  return {std::istream_iterator<int64_t>(in), {}};
}

// The 671B model with 128K tokens of context.
PlacementInput full_size(TensorType type, const std::vector<int64_t>& device_gib, uint64_t host_gib) {
  PlacementInput in;
  in.model = model_bytes(full_size_args(61, 3), SyntheticTypes{type, TensorType::q8_0});
  for (const int64_t n : device_gib) in.device_room.push_back(static_cast<uint64_t>(n) * kGiB);
  in.host_room = host_gib * kGiB;
  in.device_bytes = 3 * kGiB, in.stream_bytes = 2 * kGiB;
  in.layer_bytes = 131072 * 136, in.row_bytes = 640;
  in.least_rows = 4096, in.most_rows = 131072;
  in.host_bytes = 61 * uint64_t{131072} * 640 + kGiB;
  return in;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_table_of_machines) {
  using enum TensorType;
  struct Row {
    const char* device_gib;
    uint64_t host_gib;
    TensorType type;
    std::optional<int64_t> n_host_layers;
    const char *ends, *n_on_host;  // of each device
    int64_t n_rows;
  };
  const std::vector<Row> table = {
      {"24", 512, q4_k, {}, "61", "57", 48333},
      {"24", 256, q2_k, {}, "61", "55", 27421},
      {"24", 256, iq2_xxs, {}, "61", "54", 44160},
      {"80", 512, q4_k, {}, "61", "48", 126547},
      {"80", 256, q2_k, {}, "61", "39", 51487},
      {"141", 128, q2_k, {}, "61", "21", 23553},
      {"141", 128, iq2_xxs, {}, "61", "11", 60598},
      {"192", 64, iq2_xxs, {}, "61", "0", 131072},
      {"141 141", 256, q4_k, {}, "31 61", "7 8", 41466},
      {"141 141", 256, q2_k, {}, "31 61", "0 0", 131072},
      {"168", 64, iq2_xxs, {}, "61", "0", 39218},
      {"108 108", 64, q2_k, {}, "32 61", "0 0", 48969},
      {"80 80 80 80 80 80 80 80", 64, q4_k, {}, "7 15 23 31 39 47 55 61", "0 0 0 0 0 0 0 0", 131072},
      {"80 80 80 80 80 80 80 80", 64, q2_k, {}, "7 15 23 31 39 47 55 61", "0 0 0 0 0 0 0 0", 131072},
      {"48 48 48 48", 512, q4_k, {}, "15 31 47 61", "6 10 10 8", 131072},
      {"48 48 48 48", 512, q2_k, {}, "15 31 47 61", "0 5 5 3", 131072},
      {"24 80", 512, q4_k, {}, "31 61", "26 19", 63435},
      {"80 24", 512, q4_k, {}, "31 61", "17 28", 104381},
      {"24 24 24 24 24 24 24 24", 512, q2_k, {}, "7 15 23 31 39 47 55 61", "0 3 3 3 3 3 3 1", 131072},
      {"24 24 24 24 24 24 24 24", 512, iq2_xxs, {}, "7 15 23 31 39 47 55 61", "0 2 2 2 2 2 2 0", 131072},
      {"8 8 8", 512, iq2_xxs, {}, "21 42 61", "18 21 19", 41321},
      {"141 141 141", 64, q4_k, {}, "21 42 61", "0 0 0", 131072},
      {"141 141", 256, q2_k, 10, "31 61", "4 6", 131072},
      {"141 141", 256, q4_k, 20, "31 61", "9 11", 131072},
      {"141 141", 384, q4_k, 58, "31 61", "28 30", 131072},
      {"48 48 48 48 48 48 48 48", 128, q4_k, 13, "7 15 23 31 38 46 54 61", "0 2 2 2 1 2 2 2", 131072},
  };
  for (const Row& row : table) {
    PlacementInput in = full_size(row.type, numbers(row.device_gib), row.host_gib);
    in.n_host_layers = row.n_host_layers;
    const Placement placement = place_layers(in);
    check(in, placement);
    BOOST_TEST(ends_of(placement) == numbers(row.ends), boost::test_tools::per_element());
    std::vector<int64_t> n_on_host;
    for (const Placement::Device& device : placement.devices)
      n_on_host.push_back(std::count(placement.has_host_experts.begin() + device.first_layer,
                                     placement.has_host_experts.begin() + device.end_layer, true));
    BOOST_TEST(n_on_host == numbers(row.n_on_host), boost::test_tools::per_element());
    BOOST_TEST(placement.buffer_rows == row.n_rows);
  }
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_named_with_the_flag_that_helps) {
  using enum TensorType;
  struct Row {
    const char* device_gib;
    uint64_t host_gib;
    TensorType type;
    std::optional<int64_t> n_host_layers;
    std::vector<std::string> parts;
  };
  const std::vector<Row> table = {
      {"2",
       512,
       q4_k,
       {},
       {"layers 0 to 60 on device 0, without the experts of 58: 16.5 GiB wanted, 2.0 GiB free", "--chunk"}},
      {"8 6",
       512,
       q4_k,
       {},
       {"layers 0 to 57 on device 0, without the experts of 55: 15.5 GiB wanted, 8.0 GiB free", "--gpus"}},
      {"48 3",
       512,
       q4_k,
       {},
       {"layers 60 to 60 on device 1, without the experts of 1: 5.6 GiB wanted, 3.0 GiB free"}},
      {"12",
       512,
       q4_k,
       {},
       {"layers 0 to 60 on device 0, without the experts of 58: 16.5 GiB wanted", "--gpu-mem"}},
      {"12",
       512,
       q4_k,
       20,
       {"layers 0 to 60 on device 0, without the experts of 20: 240.9 GiB", "--gpu-mem"}},
      {"80", 256, q4_k, {}, {"the experts of 48 layers in host memory: 283.5 GiB wanted", "--host-mem"}},
      {"141", 128, q4_k, {}, {"the experts of 37 layers in host memory", "122.2 GiB free", "--gpus"}},
      {"141 141", 128, q4_k, 40, {"the experts of 40 layers in host memory", "--cpu-experts"}},
      {"141 141", 4, q2_k, {}, {"the latent rows and staging memory: 5.8 GiB wanted, 4.0 GiB free", "-c"}},
      {"141 141",
       256,
       q4_k,
       3,
       {"layers 0 to 36 on device 0, without the experts of 1: 207.0 GiB wanted", "auto"}},
  };
  for (const Row& row : table) {
    PlacementInput in = full_size(row.type, numbers(row.device_gib), row.host_gib);
    in.n_host_layers = row.n_host_layers;
    std::string message;
    BOOST_TEST(!placed(in, &message));
    for (const std::string& part : row.parts) BOOST_TEST(contains(message, part), message << " has " << part);
  }
  PlacementInput in = full_size(q2_k, {141, 141}, 256);
  in.n_host_layers = 59;
  BOOST_CHECK_EXCEPTION(place_layers(in), Error, [](const Error& error) {
    return error.kind() == ErrorKind::usage && contains(error.what(), "expected 0 to 58");
  });
}

// The experts that borders may cost: those for evenness, and of one layer for each.
uint64_t most_for_evenness(const PlacementInput& in) {
  return (kLayersForEvenness + 1) * (in.device_room.size() - 1) *
         std::ranges::max_element(in.model.layers, {}, &LayerBytes::experts)->experts;
}

// Where no experts have to leave, or as many as were asked for, the borders are the best of all. What is
// refused has no place.
BOOST_AUTO_TEST_CASE(no_borders_are_better) {
  Rng rng(1), drafts(2);
  int n_placed = 0, n_refused = 0;
  for (int i = 0; i < 2000; ++i) {
    PlacementInput in = random_machine(rng, 7, 4);
    add_draft(drafts, in.model);
    const Choice best = best_as_wished(in);
    if (!best.exists() && !in.n_host_layers) continue;
    const bool fits = best.exists() && in.host_bytes + best.host_bytes <= in.host_room;
    std::string message;
    const std::optional<Placement> found = placed(in, &message);
    BOOST_TEST_REQUIRE(found.has_value() == fits, message);
    if (!found) {
      BOOST_TEST(contains(message, best.exists() ? " memory: " : "device "), message);
      ++n_refused;
      continue;
    }
    check(in, *found);
    BOOST_TEST(found->host_bytes == in.host_bytes + best.host_bytes);
    BOOST_TEST(most_read(in, *found) == best.most_read);
    BOOST_TEST(ends_of(*found) == best.ends, boost::test_tools::per_element());
    ++n_placed;
  }
  BOOST_TEST(n_placed >= 500);
  BOOST_TEST(n_refused >= 200);
}

// What any one layer takes without its experts.
uint64_t any_layer_bytes(const PlacementInput& in) {
  uint64_t n_bytes = 0;
  const std::vector<bool> on_host =
      with_host_layers(in, with_experts(in, 0, std::ssize(in.model.layers)).size());
  for (int64_t i = 0; i < std::ssize(in.model.layers); ++i)
    n_bytes = std::max(n_bytes, device_bytes(in, i, i + 1, on_host, in.least_rows));
  return n_bytes;
}

// Where experts have to leave, a machine that holds the layers without them is used, and at most a few layers
// more than needed have their experts on the host.
BOOST_AUTO_TEST_CASE(few_more_experts_than_needed_leave) {
  Rng rng(1), drafts(2);
  int n_placed = 0, n_refused = 0, n_more = 0;
  for (int i = 0; i < 3000; ++i) {
    PlacementInput in = random_machine(rng, 7, 4);
    add_draft(drafts, in.model);
    if (in.n_host_layers) continue;
    in.host_room = 1 << 20;
    in.stream_bytes = std::min<uint64_t>(in.stream_bytes, 4);  // no more than a layer's experts
    for (uint64_t& n_room : in.device_room) n_room = std::max(n_room, any_layer_bytes(in));
    if (best_as_wished(in).exists()) continue;
    const Choice best = EveryChoice(in, in.least_rows, std::nullopt).best();
    std::string message;
    const std::optional<Placement> found = placed(in, &message);
    BOOST_TEST_REQUIRE(found.has_value() == best.exists(), message);
    if (!found) {
      BOOST_TEST(contains(message, "device "), message);
      ++n_refused;
      continue;
    }
    check(in, *found);
    BOOST_TEST(found->host_bytes <= in.host_bytes + best.host_bytes + most_for_evenness(in));
    ++n_placed, n_more += found->host_bytes > in.host_bytes + best.host_bytes;
  }
  BOOST_TEST(n_placed >= 200);
  BOOST_TEST(n_refused >= 200);
  BOOST_TEST(n_more <= n_placed / 2);
}

BOOST_AUTO_TEST_CASE(more_room_leaves_hardly_more_to_the_host) {
  Rng rng(3);
  int n_placed = 0, n_fewer = 0;
  for (int i = 0; i < 500; ++i) {
    const PlacementInput in = random_machine(rng, 30, 8);
    const std::optional<Placement> found = placed(in);
    if (!found) continue;
    check(in, *found);
    const Placement again = place_layers(in);
    BOOST_TEST(ends_of(again) == ends_of(*found), boost::test_tools::per_element());
    BOOST_TEST((again.has_host_experts == found->has_host_experts));
    PlacementInput larger = in;
    for (uint64_t& n_room : larger.device_room) n_room += up_to(rng, 40);
    const Placement with_more = place_layers(larger);
    check(larger, with_more);
    BOOST_TEST(with_more.host_bytes <= found->host_bytes + most_for_evenness(in));
    ++n_placed, n_fewer += with_more.host_bytes < found->host_bytes;
  }
  BOOST_TEST(n_placed >= 100);
  BOOST_TEST(n_fewer >= 20);
}

BOOST_AUTO_TEST_SUITE_END()
