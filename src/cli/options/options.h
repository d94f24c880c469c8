// The options of one command: its words, checked and turned into values.
//
// parse_options() is the only reader of the command line, and of the settings file for flags that the command
// line does not set. flags.h has the tables of commands and flags.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cli/terminal/streams.h"
#include "engine/plan.h"
#include "engine/request.h"
#include "gguf/gguf.h"
#include "text/chat_kind.h"
#include "weights/synthetic.h"

namespace dsv32 {

enum class Command {
  run,
  batch,
  chat,
  inspect_model,
  inspect_plan,
  inspect_tokens,
  check,
  cache_list,
  cache_verify,
  cache_prune,
  cache_clear,
  talks_list,
  talks_delete,
  bench,
  warm_start,
  warm_status,
  warm_stop,
  completion
};
// Whether a warm process answers instead of this one: if there is one; always; never.
enum class WarmUse { automatic, only, never };

// Shares of a decode step's selected rows and experts that the next step chooses again; nothing: the model's.
struct Locality {
  std::optional<double> selection = {}, experts = {};
  bool operator==(const Locality&) const = default;
};

// What `bench` measures.
struct BenchOptions {
  bool is_synthetic = false;  // random weights instead of a file, in these layers and formats
  int64_t n_layers = 6, n_dense = 3;
  SyntheticTypes types;
  std::vector<int64_t> contexts;    // ascending; empty: the command's default
  std::vector<int64_t> sequences;   // at a time, ascending; empty: one
  bool is_capacity = false;         // only say how many fit
  std::optional<int64_t> n_prompt;  // timed tokens of a prompt; nothing: a chunk
  Locality locality;
  int64_t n_decode = 32;  // timed steps
  // Of nth guesses after right ones, the share that is taken as right; empty: those that are.
  std::vector<double> accepted;
};

// The machine that --on describes.
struct ImaginedMachine {
  std::string name;            // as typed
  std::vector<uint64_t> gpus;  // bytes of each
  std::vector<const GpuKind*> kinds;
  uint64_t host = 0;
};

// A share of a batch's lines: those whose digests fall to `number` (from 0) of `n_shards`.
struct Shard {
  uint64_t number = 0, n_shards = 1;
  std::string source;  // the variables of the environment that say so; empty: the command line does
};

// Options of `batch`, and of `run` with several prompts.
struct BatchOptions {
  std::string input_path;  // -i
  bool is_lines = false;   // --lines: a prompt a line
  bool is_each = false;    // --each: a prompt a file
  bool is_ordered = false, retries_failed = false;
  std::optional<int64_t> n_parallel;  // most at a time; nothing: what suits the machine
  // How many requests run at a time in a process that takes n_most.
  int64_t n_at_a_time(int64_t n_most) const { return std::min(n_most, n_parallel.value_or(n_most)); }
  Shard shard;
  std::optional<std::chrono::seconds> drain;  // after a signal; nothing: until the running requests are done
};

struct Options {
  Command command{};
  bool wants_help = false;

  EngineOptions engine;  // model_path is empty when -m is absent
  bool uses_cache = true;
  PrefixCacheOptions cache;      // the directory is empty when --cache-dir is absent
  GenerationOptions generation;  // the seed is in `seed` until choose_seed()
  std::optional<uint64_t> seed;
  std::set<std::string> given;  // names of flags, by the command line or the settings file

  std::optional<std::string> prompt;  // -p
  std::vector<std::string> words;     // without the flags
  std::vector<std::string> files;     // -f, in order
  bool leaves_stdin = false;          // standard input is read only where `-` names it
  std::string system_text, system_file;
  bool is_raw = false;
  const ChatKind* chat_format = nullptr;  // null: the file's
  std::string schema;    // --schema as given; parse_options() turns it into generation.constraint
  std::string tools;     // --tools as given; parse_options() puts OpenAI's list in its place
  std::string messages;  // --messages: the file
  // How many of the inputs are standard input because `-` names it, or because --lines names no file.
  int64_t n_stdin() const;
  bool is_thinking_given() const { return given.contains("think") || given.contains("reasoning"); }

  std::string talk;           // its name; empty when --talk is absent
  bool continues = false;     // the talk used last
  bool keeps_talk = true;     // chat
  bool keeps_history = true;  // chat: of typed lines

  ThinkingDisplay thinking_display = ThinkingDisplay::show;
  ColorMode color = ColorMode::automatic;
  bool json = false, quiet = false, verbose = false;
  bool is_streamed = false;  // JSON, piece by piece
  // Quiet means nothing but answers and errors, unless --thinking says otherwise.
  ThinkingDisplay shown_thinking() const {
    return quiet && !given.contains("thinking") ? ThinkingDisplay::hide : thinking_display;
  }

  WarmUse warm = WarmUse::automatic;
  std::chrono::seconds keep = std::chrono::minutes(30);  // warm start: how long to stay without a request
  bool is_dry_run = false;                               // cache verify: nothing is removed
  std::string output_path;                               // batch: -o
  BenchOptions bench;
  BatchOptions batch;
  std::optional<ImaginedMachine> imagined;  // inspect plan: --on
  std::optional<float> host_rate;           // inspect plan: GB a second
};

// `args`: the words after the command's name. Throws Error{usage}, one line, for an unknown flag (with the
// nearest spelling), a missing or wrong value, and flags that contradict each other or would do
// nothing. With --help nothing else is checked.
Options parse_options(Command command, const std::vector<std::string>& args);

// The given seed, or a random one, which the caller reports.
uint64_t choose_seed(const Options& options);

// Fills the sampling options that neither the command line nor the settings file sets with the values that
// the model's file recommends (GGUF's keys general.sampling.*). Throws Error{model} for an invalid value.
Options with_recommended(Options options, const GgufFile& file);

// Whether a name may have it: a letter of ASCII, a digit, '_' or '-'.
inline bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

// A talk's name is also its file's name: 1 to 64 letters, digits, '.', '_' and '-', not beginning with '.'.
inline constexpr size_t kMaxTalkName = 64;
bool is_talk_name(std::string_view name);
void check_talk_name(const std::string& name);  // throws Error{usage} for others

}  // namespace dsv32
