// What the user asked for: the words of one command, checked and turned into values.
//
// parse_options() is the only reader of a command line. The flags themselves are a table (flags.h); this unit
// feeds it to cxxopts and turns every complaint into one Error{usage} of one line. Nothing here opens a file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/generation.h"
#include "engine/plan.h"

namespace dsv32 {

enum class Command {
  run,
  chat,
  inspect_model,
  inspect_plan,
  inspect_tokens,
  inspect_prompt,
  inspect_logits,
  check,
  cache_list,
  cache_show,
  cache_verify,
  cache_prune,
  cache_clear,
  cache_path
};
enum class ThinkingDisplay { show, hide, on_stdout };
enum class ColorMode { automatic, always, never };

struct Options {
  Command command{};
  bool wants_help = false, wants_version = false;

  EngineOptions engine;  // model_path is empty when -m is absent
  bool uses_cache = true;
  PrefixCacheOptions cache;      // the directory is empty when --cache-dir is absent
  GenerationOptions generation;  // the seed is in `seed` until choose_seed()
  std::optional<uint64_t> seed;

  std::optional<std::string> prompt;  // -p
  std::vector<std::string> words;     // what is no flag
  std::vector<std::string> files;     // -f, in order
  std::string system_text, system_file;
  bool is_raw = false;
  bool is_thinking_given = false;  // by --think or --no-think

  std::string session;     // chat: the talk's name; empty when --session is absent
  bool continues = false;  // chat: --continue

  std::optional<ThinkingDisplay> thinking_display;
  ColorMode color = ColorMode::automatic;
  bool json = false, quiet = false, verbose = false;
  // Quiet means nothing but answers and errors, unless --thinking says otherwise.
  ThinkingDisplay shown_thinking() const {
    return thinking_display.value_or(quiet ? ThinkingDisplay::hide : ThinkingDisplay::show);
  }

  bool parse_special = false;  // inspect tokens
  std::string token_list;      // inspect logits: ids, or @FILE
  std::string output_path;     // inspect logits
};

// "run", "inspect tokens": as typed.
const char* command_name(Command command);

// The command that the first words name; `n_taken` is how many they are. Throws Error{usage} for others.
Command find_command(const std::vector<std::string>& words, size_t& n_taken);

// `args`: the words after the command's name. Throws Error{usage}, one line, for an unknown flag (with the
// nearest spelling), a value that is missing or does not fit, and flags that contradict each other. With
// --help or --version nothing else is checked.
Options parse_options(Command command, const std::vector<std::string>& args);

// Usage, flags by group, where defaults come from, and the exit codes.
std::string command_help(Command command);

// Of `names` the one that `word` was probably meant to be; empty when none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& names);

}  // namespace dsv32
