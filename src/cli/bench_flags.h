// What the bench commands share on the command line: which model is measured, where, and at which contexts.
#pragma once

#include <cstdint>
#include <cxxopts.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace dsv32 {

// A model file, or synthetic weights of the 671B model's dimensions.
struct BenchTarget {
  EngineOptions engine;  // model_path, backend, device, n_threads
  bool synthetic = false, json = false;
  int64_t n_layers = 6, n_dense = 3;
  std::vector<int64_t> contexts;  // ascending
};

// Values of a flag: text and int64_t, with their defaults.
std::shared_ptr<cxxopts::Value> text(const char* value);
std::shared_ptr<cxxopts::Value> number(const char* value);

// -m, --backend, --device and --threads.
void add_engine_flags(cxxopts::Options& table);
EngineOptions read_engine(const cxxopts::ParseResult& flags);

// Those, --synthetic with its layers, and --contexts. `contexts_text`, `contexts`: what --contexts says and
// its default.
void add_target_flags(cxxopts::Options& table, const char* contexts_text, const char* contexts);
// Throws Error{usage}.
BenchTarget read_target(const cxxopts::ParseResult& flags);

// "full", "auto" (nothing), or a number of rows. Throws Error{usage}.
std::optional<int64_t> parse_topk_buffer(const std::string& rows);

// Numbers of tokens up to 1048576 with commas between them, sorted. Throws Error{usage}.
std::vector<int64_t> parse_contexts(const std::string& text);

// Adds --json and --help, parses `args`, and runs `body` unless help was asked for. Returns the exit code.
// Throws Error{usage} for what `table` does not know.
int run_with_flags(cxxopts::Options& table, const std::vector<std::string>& args,
                   const std::function<int(const cxxopts::ParseResult&)>& body);

}  // namespace dsv32
