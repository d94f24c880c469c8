#include "cli/bench_flags.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/text.h"
#include "cli/flags.h"
#include "cli/streams.h"

namespace dsv32 {

std::shared_ptr<cxxopts::Value> text(const char* value) {
  return cxxopts::value<std::string>()->default_value(value);
}
std::shared_ptr<cxxopts::Value> number(const char* value) {
  return cxxopts::value<int64_t>()->default_value(value);
}

void add_engine_flags(cxxopts::Options& table) {
  table.add_options()                                         //
      ("m,model", "a model file", text(""), "FILE")           //
      ("backend", "cpu, cuda or auto", text("auto"), "NAME")  //
      ("device", "which GPU", number("0"), "N")               //
      ("t,threads", "CPU threads; 0: one for each core", number("0"), "N");
}

EngineOptions read_engine(const cxxopts::ParseResult& flags) {
  EngineOptions engine;
  engine.model_path = flags["model"].as<std::string>();
  engine.backend = flags["backend"].as<std::string>();
  engine.device = static_cast<int>(flags["device"].as<int64_t>());
  engine.n_threads = static_cast<int>(flags["threads"].as<int64_t>());
  return engine;
}

void add_target_flags(cxxopts::Options& table, const char* contexts_text, const char* contexts) {
  add_engine_flags(table);
  table.add_options()                                                          //
      ("synthetic", "random weights instead, of the 671B model's dimensions")  //
      ("layers", "synthetic layers", number("6"), "N")                         //
      ("dense", "dense ones among them", number("3"), "N")                     //
      ("contexts", contexts_text, text(contexts), "LIST");
}

BenchTarget read_target(const cxxopts::ParseResult& flags) {
  BenchTarget target;
  target.synthetic = flags.count("synthetic") > 0, target.json = flags.count("json") > 0;
  target.n_layers = flags["layers"].as<int64_t>(), target.n_dense = flags["dense"].as<int64_t>();
  target.contexts = parse_contexts(flags["contexts"].as<std::string>());
  target.engine = read_engine(flags);
  if (target.synthetic == !target.engine.model_path.empty())
    fail(ErrorKind::usage, "name a model with -m, or say --synthetic");
  if (target.n_layers < 1 || target.n_layers > 1000 || target.n_dense < 0 || target.n_dense > target.n_layers)
    fail(ErrorKind::usage, "--layers and --dense do not fit together");
  return target;
}

std::optional<int64_t> parse_topk_buffer(const std::string& rows) {
  if (rows == "auto") return std::nullopt;
  return rows == "full" ? kEveryRow : parse_integer("--topk-buffer", rows, 1, kEveryRow);
}

std::vector<int64_t> parse_contexts(const std::string& text) {
  std::vector<int64_t> values;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    char* end = nullptr;
    const std::string word = text.substr(at, comma - at);
    values.push_back(std::strtoll(word.c_str(), &end, 10));
    if (word.empty() || *end != '\0' || values.back() < 0 || values.back() > 1 << 20)
      fail(ErrorKind::usage,
           format("--contexts holds '%s', expected numbers of tokens up to 1048576", visible(word).c_str()));
    at = comma + 1;
  }
  std::ranges::sort(values);
  return values;
}

int run_with_flags(cxxopts::Options& table, const std::vector<std::string>& args,
                   const std::function<int(const cxxopts::ParseResult&)>& body) {
  table.add_options()("json", "JSON on standard output")("h,help", "this text");
  const std::string name = table.program(), hint = name + " --help lists the flags";
  std::vector<const char*> words = {name.c_str()};
  for (const std::string& word : args) words.push_back(word.c_str());
  try {
    const cxxopts::ParseResult flags = table.parse(static_cast<int>(words.size()), words.data());
    if (flags.count("help")) return write_out(table.help()), 0;
    if (!flags.unmatched().empty())
      fail(
          ErrorKind::usage,
          format("%s takes no argument '%s'", name.c_str(), visible(flags.unmatched()[0], false, 40).c_str()),
          hint);
    return body(flags);
  } catch (const cxxopts::exceptions::exception& error) {
    fail(ErrorKind::usage, visible(error.what(), false, 160), hint);
  }
}

}  // namespace dsv32
