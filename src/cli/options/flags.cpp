// See flags.h. The rows are in the order of the help; groups appear in the order of their first row.
#include "cli/options/flags.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>

#include "base/text.h"
#include "cli/options/schema.h"

namespace dsv32 {
namespace {

constexpr unsigned bit(Command command) { return 1u << static_cast<unsigned>(command); }
constexpr unsigned kOnce = Flag::kOnce;

constexpr unsigned kRun = bit(Command::run), kBatch = bit(Command::batch), kChat = bit(Command::chat),
                   kModel = bit(Command::inspect_model), kPlan = bit(Command::inspect_plan),
                   kTokens = bit(Command::inspect_tokens), kPrompt = bit(Command::inspect_prompt),
                   kLogits = bit(Command::inspect_logits), kCheck = bit(Command::check);
constexpr unsigned kCacheVerify = bit(Command::cache_verify),
                   kCache = kCacheVerify | bit(Command::cache_prune) | bit(Command::cache_list) |
                            bit(Command::cache_clear);
constexpr unsigned kTalksList = bit(Command::talks_list),
                   kTalks = kTalksList | bit(Command::talks_delete);
constexpr unsigned kBench = bit(Command::bench), kBenchBatch = bit(Command::bench_batch),
                   kMeasuring = kBench | kBenchBatch;
constexpr unsigned kWarmStart = bit(Command::warm_start), kWarmStop = bit(Command::warm_stop),
                   kWarmStatus = bit(Command::warm_status);
constexpr unsigned kTalking = kRun | kChat, kGenerating = kTalking | kBatch;
constexpr unsigned kComputing = kGenerating | kLogits | kWarmStart, kCaching = kGenerating | kWarmStart;
constexpr unsigned kPlanned = kComputing | kPlan | kMeasuring, kOnEngine = kPlanned | kCheck;
constexpr unsigned kOnModel = kOnEngine | kModel | kTokens | kPrompt;
constexpr unsigned kEvery =
    kOnModel | kCache | kTalks | kWarmStop | kWarmStatus | bit(Command::config) | bit(Command::completion);

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr double kMostListed = 1 << 20, kMostAtATime = 4096;

using O = Options;
using V = const FlagValue&;
using Words = std::vector<std::string>;

// read() sets a field from a text; shown() returns the text that would set it.

struct Bounds {
  double least, most;  // of a number
};

template <typename T>
void read(V value, Bounds bounds, T& at) {
  if constexpr (std::is_same_v<T, bool>)
    at = true;
  else if constexpr (std::is_same_v<T, std::string>)
    at = value.text;
  else if constexpr (std::is_same_v<T, uint64_t>)
    at = parse_bytes(value.text, value.flag.c_str());
  else if constexpr (std::is_integral_v<T>)
    at = static_cast<T>(
        parse_integer(value, static_cast<int64_t>(bounds.least), static_cast<int64_t>(bounds.most)));
  else if constexpr (std::is_floating_point_v<T>)
    at = parse_number(value, bounds.least, bounds.most);
  else if constexpr (std::is_same_v<T, TensorType>)
    at = parse_type(value);
  else
    at = parse_duration(value);
}

template <typename T>
void read(V value, Bounds bounds, std::optional<T>& at) {
  T inner{};
  read(value, bounds, inner);
  at = inner;
}

// Values with commas between them. Numbers are sorted; sizes, one for each GPU, keep their order.
template <typename T>
void read(V value, Bounds bounds, std::vector<T>& at) {
  std::vector<T> values;
  for (const std::string& part : split(value.text, ','))
    read({value.flag, part}, bounds, values.emplace_back());
  if constexpr (std::is_signed_v<T>) std::ranges::sort(values);
  at = std::move(values);
}

// Appends one text.
void read(V value, Bounds, Words& at) {
  if (value.text.empty()) fail_value(value, "a text that is not empty");
  at.push_back(value.text);
}

template <typename T>
std::string shown(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "on" : "off";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return value;
  } else if constexpr (std::is_floating_point_v<T>) {
    char text[32];
    return {text, std::to_chars(text, std::end(text), value).ptr};
  } else if constexpr (std::is_integral_v<T>) {
    return std::to_string(value);
  } else if constexpr (std::is_same_v<T, TensorType>) {
    return find_traits(value)->name;
  } else {
    const int64_t n = value.count();  // seconds
    const int64_t unit = n % 3600 == 0 ? 3600 : n % 60 == 0 ? 60 : 1;
    return std::to_string(n / unit) + (unit == 3600 ? "h" : unit == 60 ? "m" : "s");
  }
}

template <typename T>
std::string shown(const std::optional<T>& value) {
  return value ? shown(*value) : "";
}

template <typename T>
std::string shown(const std::vector<T>& values) {
  Words texts;
  for (const T& value : values) texts.push_back(shown(value));
  return joined(texts, ",");
}

template <typename T>
FlagField field(T& at, double least = 0, double most = 0) {
  return {[&at, least, most](V value) {
            read(value, {least, most}, at);
          },
          [&at] { return shown(at); }, std::is_same_v<T, TensorType> ? type_names() : Words{},
          std::is_same_v<T, Words>};
}

// Fields that are not set by read().

template <typename T>  // an enumeration, its words in its order
FlagField choice(T& at, const Words& words) {
  return {[&at, words](V value) { at = static_cast<T>(parse_word(value, words)); },
          [&at, words] { return words.at(static_cast<size_t>(at)); }, words};
}

template <typename T>
FlagField choice(std::optional<T>& at, const Words& words) {
  return {[&at, words](V value) { at = static_cast<T>(parse_word(value, words)); }, nullptr, words};
}

FlagField choice(std::string& at, const Words& words) {
  return {[&at, words](V value) { at = words[parse_word(value, words)]; }, [&at] { return at; }, words};
}

FlagField off(bool& at) {
  return {[&at](V) { at = false; }, [&at] { return shown(!at); }};
}

// A number, "auto" (nothing) or the word that stands for the number `meant`.
FlagField count(std::optional<int64_t>& at, int64_t least, int64_t most, const char* word = "auto",
                int64_t meant = 0) {
  const bool has_word = word != std::string("auto");
  const Words words = has_word ? Words{word, "auto"} : Words{"auto"};
  const auto set = [&at, least, most, words, meant](V value) {
    at.reset();
    if (value.text == "auto") return;
    if (value.text == words[0]) return void(at = meant);
    try {
      at = parse_integer(value, least, most);
    } catch (const Error&) {
      fail_value(value, "a number, " + listed(words));
    }
  };
  return {set, [=, &at] { return !at ? "auto" : has_word && *at == meant ? word : shown(*at); }, words};
}

constexpr auto kBackend = [](O& o) { return choice(o.engine.backend, {"auto", "cpu", "cuda"}); };
constexpr auto kRows = [](O& o) { return count(o.engine.topk_buffer, 1, kMaxInt32, "full", kEveryRow); };
constexpr auto kDraft = [](O& o) { return count(o.engine.n_guesses, 0, kMostGuesses, "off", 0); };
constexpr auto kContext = [](O& o) { return field(o.engine.context, 1, kMaxInt32); };
constexpr auto kParallel = [](O& o) { return field(o.batch.n_parallel, 1, kMostAtATime); };
constexpr auto kJson = [](O& o) { return field(o.json); };

// --type, of a bench and of a plan: the formats of random weights, which it asks for.
FlagField kType(O& o) {
  const auto set = [&o](V value) {
    const TensorType heads = o.bench.types.heads;
    o.bench.types = parse_file_type(value);
    o.bench.types.heads = heads, o.bench.is_synthetic = true;
  };
  Words names = mix_names();
  for (const std::string& format : type_names()) names.push_back(format + "-pure");
  return {set, [&o] { return name_of(o.bench.types); }, names};
}

const Flag kEngineFlags[] = {
    {"model,m", "FILE",
     "the GGUF file (of a split model its first part), or a part of its name if it is in models/, "
     "$DSV32_MODELS or $XDG_DATA_HOME/dsv32/models (environment: DSV32_MODEL; else the only one there)",
     "Model", kOnModel | kWarmStop, [](O& o) { return field(o.engine.model_path); }},
    {"draft-model", "FILE",
     "the block for drafts (MTP) of a model whose file is without it: a GGUF file that has the block alone",
     "Model", kGenerating | kWarmStart | kPlan | kMeasuring | kModel,
     [](O& o) { return field(o.engine.draft_path); }, "the model's own, if any"},
    {"ctx,ctx-size,c", "N", "tokens of context", "Model", kPlanned & ~kMeasuring, kContext,
     "the model's, or what half of the free memory holds"},
    {"ctx,ctx-size,c", "N", "most tokens compared; the built-in prompt is made to have as many", "Model",
     kCheck, kContext, "at least 256 more than the buffer's rows, 4096 at most"},
    {"threads,t", "N", "CPU threads", "Model", kOnEngine,
     [](O& o) { return field(o.engine.n_threads, 1, 4096); }, "one for each core"},
    {"backend", "NAME", "what computes: cpu, cuda, or auto, the GPU if there is one", "Model", kPlanned,
     kBackend},
    {"backend", "NAME",
     "what is checked: cpu; auto, also the GPU if there is one; cuda, also the GPU, which must be there",
     "Model", kCheck, kBackend},
    {"gpus", "LIST", "which GPUs, such as 0,1", "Model", kOnEngine,
     [](O& o) { return field(o.engine.gpus, 0, kMostListed); }, "those that are worth it"},
    {"split", "HOW",
     "how several GPUs share the model; rows: all compute every layer together, the fastest, if they reach "
     "each other's memory; layers: each has some layers; auto: the one that is expected to be faster",
     "Model", kOnEngine,
     [](O& o) {
       return choice(o.engine.split, {"auto", "layers", "rows"});
     }},
    {"cpu-experts", "N",
     "layers whose experts stay in host memory, where the CPU computes them: a number, or auto: as few as "
     "possible",
     "Model", kOnEngine, [](O& o) { return count(o.engine.n_cpu_experts, 0, 1000); }},
    {"kv-type", "TYPE", "how the cache stores latents: fp8, bf16 or f32", "Model", kOnEngine,
     [](O& o) {
       return choice(o.engine.kv_type, {"fp8", "bf16", "f32"});
     }},
    {"select", "HOW",
     "which rows a token attends to; auto: the model's indexer decides, or without one every row; all: every "
     "row; quest: in decode those that seem to matter, for models without an indexer; all and quest change "
     "answers",
     "Model", kOnEngine,
     [](O& o) {
       return choice(o.engine.select, {"auto", "all", "quest"});
     }},
    {"topk", "N", "rows that a token of the answer attends to with --select quest", "Model", kOnEngine,
     [](O& o) { return field(o.engine.quest_rows, 1, kMaxInt32); }, "2048"},
    {"topk-buffer", "N",
     "latent rows kept on the GPU for each layer in decode: a number, full, or auto: all rows if "
     "they fit, else as many as fit",
     "Model", kPlanned & ~kBenchBatch, kRows},
    {"topk-buffer", "N", "rows of the top-k buffers; full: measure only full residency", "Model", kBenchBatch,
     kRows, "4096"},
    {"topk-buffer", "N", "rows of the buffer that is compared", "Model", kCheck,
     [](O& o) { return field(o.engine.topk_buffer, 1, kMaxInt32); }, "the model's top-k"},
    {"draft", "N",
     "tokens that the block for drafts of a model that has one guesses ahead, and the next step verifies; "
     "the answer stays the same: 0 to 3, off, or auto: as many as pay, and none with experts in host memory",
     "Model", kGenerating | kWarmStart | kPlan, kDraft, "auto"},
    {"draft", "N", "tokens that the block for drafts guesses ahead: 0 to 3, off, or auto: as many as pay",
     "Model", kMeasuring, kDraft},
    {"gpu-mem", "SIZE",
     "limit for each GPU, such as 24G, without CUDA's own memory; or a list, 24G,80G, one for each of --gpus",
     "Model", kOnEngine, [](O& o) { return field(o.engine.gpu_mem); }, "all"},
    {"host-mem", "SIZE",
     "limit of host memory, without the mapped model; may exceed what the system calls available, on "
     "machines whose memory grows as it is touched",
     "Model", kOnEngine, [](O& o) { return field(o.engine.host_mem); }, "what is available"},
    {"chunk", "N", "most prompt tokens computed at a time", "Model", kOnEngine & ~kBench,
     [](O& o) { return field(o.engine.chunk, 1, 1 << 16); },
     "512, on a GPU 2048, on a team of GPUs 4096, with experts in host memory 8192"},

    {"no-cache", nullptr, "neither use nor store prefixes", "Prefix cache", kCaching,
     [](O& o) { return off(o.uses_cache); }},
    {"cache-dir", "DIR", "where prefixes are kept", "Prefix cache", kCaching | kCache,
     [](O& o) { return field(o.cache.directory); }, "$XDG_CACHE_HOME/dsv32, else ~/.cache/dsv32"},
    {"cache-size", "SIZE", "most bytes of that folder, such as 200G", "Prefix cache", kCaching,
     [](O& o) { return field(o.cache.max_bytes); }, "a tenth of the free disk, at most 256 GB"},
    {"cache-policy", "NAME", "which prefixes leave memory first: lru, lfu, fifo or slru", "Prefix cache",
     kCaching,
     [](O& o) {
       return choice(o.cache.eviction, {"lru", "lfu", "fifo", "slru"});
     }},
    {"cache-write", "WHEN",
     "when prefixes go to disk; through: at once; back: when memory runs short, and at the end",
     "Prefix cache", kCaching,
     [](O& o) {
       return choice(o.cache.write, {"through", "back"});
     }},
    {"cache-wait", "HOW",
     "how long to wait for prefixes on their way from the disk: none; all, until they are there; timeout, at "
     "most as long as recomputing would take",
     "Prefix cache", kCaching,
     [](O& o) {
       return choice(o.cache.prefetch, {"none", "all", "timeout"});
     }},
};

// Rows before those of generation options.
const Flag kAsking[] = {
    {"warm", "HOW",
     "whether a warm process answers (same file, same flags of Model and Prefix cache): auto, if one runs; "
     "only; never",
     "Model", kGenerating,
     [](O& o) {
       return choice(o.warm, {"auto", "only", "never"});
     }},
    {"keep", "TIME", "how long the process stays without a request, such as 90s, 30m or 8h", "Model",
     kWarmStart, [](O& o) { return field(o.keep); }},
    {"parallel", "N", "most requests at a time, of all callers", "Model", kWarmStart, kParallel,
     "what suits the machine"},

    {"synthetic", nullptr, "random weights instead of a file, of the 671B model's dimensions", "Measured",
     kMeasuring | kOnce, [](O& o) { return field(o.bench.is_synthetic); }},
    {"synthetic", "SIZE", "in place of a file, a model of this size: 671b", "Planned", kPlan | kOnce,
     [](O& o) {
       const auto set = [&o](V value) {
         parse_word(value, {"671b"});
         o.bench.is_synthetic = true;
       };
       return FlagField{set, nullptr, {"671b"}};
     }},
    {"type", "NAME",
     "like --synthetic, in the formats of llama-quantize's type NAME, such as Q2_K; NAME-pure: all matrices "
     "in one format, such as Q2_K-pure",
     "Planned", kPlan, kType, "Q4_K_M"},
    {"on", "SPEC",
     "a machine to plan for, its GPUs, by name or memory, and its host memory, such as 2xRTX4090+384G, "
     "24G+256G, or 0+768G; --threads are its threads",
     "Planned", kPlan, [](O& o) { return FlagField{[&o](V value) { o.imagined = parse_machine(value); }}; },
     "this one"},
    {"host-rate", "N", "GB that CPU threads read of host memory in a second", "Planned", kPlan,
     [](O& o) { return field(o.host_rate, 1, 10000); }, "8 for each thread, at most 120"},

    {"layers", "N", "synthetic layers", "Measured", kMeasuring,
     [](O& o) { return field(o.bench.n_layers, 1, 1000); }},
    {"dense", "N", "how many of the synthetic layers are dense", "Measured", kMeasuring,
     [](O& o) { return field(o.bench.n_dense, 0, 1000); }},
    {"type", "NAME",
     "like --synthetic, in the formats of llama-quantize's type NAME, such as Q2_K; NAME-pure: all matrices "
     "in one format, such as Q2_K-pure",
     "Measured", kMeasuring, kType},
    {"head-type", "NAME", "format of synthetic attn_k_b and attn_v_b beside one format", "Measured",
     kMeasuring, [](O& o) { return field(o.bench.types.heads); }},
    {"contexts", "LIST", "context lengths at which to measure", "Measured", kBench,
     [](O& o) { return field(o.bench.contexts, 0, kMostListed); }, "0,4096,32768,131072"},
    {"contexts", "LIST", "final length of each sequence", "Measured", kBenchBatch,
     [](O& o) { return field(o.bench.contexts, 1, kMostListed); }, "16384,32768,65536"},
    {"sequences", "LIST", "how many at a time", "Measured", kBenchBatch,
     [](O& o) { return field(o.bench.sequences, 1, kMostListed); }, "as many as fit"},
    {"capacity", nullptr, "only say how many fit", "Measured", kBenchBatch,
     [](O& o) { return field(o.bench.is_capacity); }},
    {"chunk", "N", "most prompt tokens computed at a time", "Measured", kBench,
     [](O& o) { return field(o.engine.chunk, 1, 1 << 16); }, "2048"},
    {"prompt", "N", "tokens of the timed prefill", "Measured", kBench,
     [](O& o) { return field(o.bench.n_prompt, 1, kMostListed); }, "a chunk"},
    {"decode", "N", "timed decode steps", "Measured", kBench | kBenchBatch,
     [](O& o) { return field(o.bench.n_decode, 1, kMostListed); }},
    {"locality", "F", "share of a step's selected rows that the step before selected too", "Measured",
     kBench | kBenchBatch, [](O& o) { return field(o.bench.locality.selection, 0, 1); }},
    {"accept", "LIST",
     "with --draft the share of first guesses that are taken as right, and perhaps, with commas, of second "
     "and third ones behind right ones; F stands for F,F,F",
     "Measured", kMeasuring,
     [](O& o) { return FlagField{[&o](V value) { o.bench.accepted = parse_shares(value); }}; },
     "those that are right"},
    {"expert-locality", "F", "share of a step's experts that the step before used too", "Measured",
     kBench | kBenchBatch, [](O& o) { return field(o.bench.locality.experts, 0, 1); }},

    {"input,i", "FILE",
     "the requests: JSON objects of OpenAI's batch form, or {\"prompt\": ...}, or {\"messages\": ...}, one a "
     "line; - is standard input",
     "Batch", kBatch | kOnce, [](O& o) { return field(o.batch.input_path); }},
    {"out,output,o", "FILE",
     "the output, one answer a line, appended; lines answered there already are skipped; - is standard "
     "output",
     "Batch", kBatch | kOnce, [](O& o) { return field(o.output_path); }},
    {"lines", nullptr, "each line of the input is a prompt, no JSON", "Batch", kBatch | kOnce,
     [](O& o) { return field(o.batch.is_lines); }},
    {"ordered", nullptr, "write answers in the order of the input, not as they finish", "Batch", kBatch,
     [](O& o) { return field(o.batch.is_ordered); }},
    {"retry-failed", nullptr, "remove failed lines of earlier runs from the output and ask them again",
     "Batch", kBatch | kOnce, [](O& o) { return field(o.batch.retries_failed); }},
    {"shard", "I/N", "only the lines of the I-th of N runs, I from 0", "Batch", kBatch | kOnce,
     [](O& o) { return FlagField{[&o](V value) { o.batch.shard = parse_shard(value); }}; }},
    {"each", nullptr, "each file of -f is a prompt of its own, followed by the words", "Many prompts",
     kRun | kOnce, [](O& o) { return field(o.batch.is_each); }},
    {"lines", nullptr,
     "each line of -f FILE, else of standard input, is a prompt of its own, followed by the words",
     "Many prompts", kRun | kOnce, [](O& o) { return field(o.batch.is_lines); }},
    {"parallel", "N", "most prompts at a time, with --each or --lines", "Many prompts", kRun, kParallel,
     "what suits the machine"},
    {"parallel", "N", "most requests at a time", "Batch", kBatch, kParallel, "what suits the machine"},

    {"prompt,p", "TEXT", "the prompt; words that are no flags are the same; - is standard input", "Prompt",
     kRun | kPrompt | kCheck | kOnce, [](O& o) { return field(o.prompt); }},
    {"file,prompt-file,f", "FILE", "a text before the prompt; may be repeated; - is standard input", "Prompt",
     kRun | kPrompt | kCheck | kOnce, [](O& o) { return field(o.files); }},
    {"messages", "FILE",
     "the whole conversation in place of a prompt, as JSON: a list of messages in OpenAI's form, or an "
     "object "
     "with messages and perhaps tools; - is standard input",
     "Prompt", kRun | kOnce, [](O& o) { return field(o.messages); }},
    {"tools", "FILE",
     "what the answer may call: OpenAI's list of tools, a file, - for standard input, or JSON itself; calls "
     "are "
     "printed as JSON, one a line, and in a chat their results are asked for",
     "Prompt", kTalking | kOnce, [](O& o) { return field(o.tools); }},
    {"system", "TEXT", "the system prompt (in a batch: of lines with a prompt instead of messages)", "Prompt",
     kGenerating | kPrompt, [](O& o) { return field(o.system_text); }},
    {"system-file", "FILE", "the same, from a file", "Prompt", kGenerating | kPrompt,
     [](O& o) { return field(o.system_file); }},
    {"no-stdin", nullptr, "do not read standard input unless - names it, for loops that read it themselves",
     "Prompt", kRun | kPrompt, [](O& o) { return field(o.leaves_stdin); }},
    {"raw", nullptr, "the prompt is rendered already: no chat format, special tokens by name", "Prompt",
     kRun | kBatch | kPrompt, [](O& o) { return field(o.is_raw); }},
    {"chat-format", "NAME", "how messages become a prompt: v3, v3.1, r1 or v3.2", "Prompt",
     kGenerating | kPrompt, [](O& o) { return choice(o.chat_format, chat_format_names()); },
     "the file's, by inspect model"},
    {"think", nullptr, "think before the answer", "Prompt", kGenerating | kPrompt,
     [](O& o) { return field(o.generation.thinking); }},
    {"no-think,nothink", nullptr, "answer at once", "Prompt", kGenerating | kPrompt,
     [](O& o) { return off(o.generation.thinking); }},

    {"talk,session", "NAME",
     "begin the talk NAME, or go on with it (default for chat: one that begins, kept under the time of its "
     "first message)",
     "Talk", kTalking | kOnce,
     [](O& o) { return FlagField{[&o](V value) { check_talk_name(o.talk = value.text); }}; }},
    {"continue", nullptr, "go on with the talk that was used last", "Talk", kTalking | kOnce,
     [](O& o) { return field(o.continues); }},
    {"no-save", nullptr,
     "the talk is not kept (talks are kept in $XDG_STATE_HOME/dsv32/talks, else ~/.local/state/dsv32/talks; "
     "dsv32 talks lists and deletes them)",
     "Talk", kChat, [](O& o) { return off(o.keeps_talk); }},
    {"no-history", nullptr,
     "neither keep the lines that are typed nor offer earlier ones (they are kept in the file history beside "
     "the folder of talks)",
     "Talk", kChat, [](O& o) { return off(o.keeps_history); }},
};

// Rows behind those of generation options.
const Flag kAnswering[] = {
    {"schema", "FILE",
     "the answer is a JSON document that this JSON schema accepts: a file, - for standard input, JSON "
     "itself, "
     "or fields in the short form \"name, age int, tags\"",
     "Answer", kGenerating | kOnce, [](O& o) { return field(o.schema); }},
    {"json-only", nullptr, "the answer is a JSON document", "Answer", kGenerating | kOnce,
     [](O& o) { return FlagField{[&o](V) { o.generation.constraint = kAnyJson; }}; }},
    {"seed", "N", "of the sampler; the same seed, the same answer; -1: random", "Answer", kTalking,
     [](O& o) { return FlagField{[&o](V value) { o.seed = parse_seed(value, true); }}; },
     "random, and reported"},
    {"seed", "N", "a line without a seed derives its own from this and from its request", "Answer", kBatch,
     [](O& o) { return FlagField{[&o](V value) { o.seed = parse_seed(value, false); }}; }, "0"},
    {"logprobs", "K",
     "log-probability of each token and of the K likeliest (0 to 20); with run only with --json", "Answer",
     kRun | kBatch, [](O& o) { return field(o.generation.n_top_logprobs, 0, kMostTopLogprobs); }, "none"},

    {"tokens", "IDS", "token ids, with commas or spaces between them, or @FILE", "Logits", kLogits | kOnce,
     [](O& o) { return field(o.token_list); }},
    {"out,o", "FILE",
     "where to: float32 [n_tokens, vocab_size], row-major, little-endian; - is standard output", "Logits",
     kLogits | kOnce, [](O& o) { return field(o.output_path); }},
    {"special", nullptr, "read names of special tokens in TEXT as these tokens", "Tokens", kTokens,
     [](O& o) { return field(o.parse_special); }},

    {"thinking", "WHERE", "show: on standard error; hide; stdout: with its tags", "Output", kTalking,
     [](O& o) {
       return choice(o.thinking_display, {"show", "hide", "stdout"});
     },
     "show"},
    {"json", nullptr, "one JSON object on standard output, with --each and --lines one for each prompt",
     "Output", kRun, kJson},
    {"json", nullptr, "one JSON object on standard output", "Output",
     kModel | kPlan | kTokens | kPrompt | kCheck | kCache | kMeasuring, kJson},
    {"dry-run", nullptr, "only report damage, remove nothing", "Output", kCacheVerify | kOnce,
     [](O& o) { return field(o.is_dry_run); }},
    {"json", nullptr, "one JSON object a line for each talk or process", "Output", kTalksList | kWarmStatus,
     kJson},
    {"color", "WHEN", "auto, always or never; environment: NO_COLOR, TERM", "Output", kTalking,
     [](O& o) {
       return choice(o.color, {"auto", "always", "never"});
     }},
    {"no-color", nullptr, "the same as --color never", "Output", kTalking,
     [](O& o) { return FlagField{[&o](V) { o.color = ColorMode::never; }}; }},
    {"quiet,q", nullptr, "nothing but the answer and errors", "Output", kComputing,
     [](O& o) { return field(o.quiet); }},
    {"stream", nullptr, "with --json an object for each piece as it comes (chat.completion.chunk)", "Output",
     kRun, [](O& o) { return field(o.is_streamed); }},
    {"verbose,v", nullptr, "a line on standard error for each phase", "Output", kComputing,
     [](O& o) { return field(o.verbose); }},
    {"verbose,v", nullptr, "also which kernels a GPU runs, for each format of the file", "Output", kPlan,
     [](O& o) { return field(o.verbose); }},
    {"help,h", nullptr, "this text", "Output", kEvery | kOnce, [](O& o) { return field(o.wants_help); }},
    {"version,V", nullptr, "the version", "Output", kEvery | kOnce,
     [](O& o) { return field(o.wants_version); }},
};

// The field of a generation option in `options`.
FlagField field_of(const GenerationOption& option, Options& options) {
  return std::visit([&](auto* at) { return field(*at, option.least, option.most); },
                    option.field(options.generation));
}

}  // namespace

// Not const, because a test adds a row.
const std::vector<Flag>& engine_flags() {
  static std::vector<Flag> rows(std::begin(kEngineFlags), std::end(kEngineFlags));
  return rows;
}

const std::vector<Flag>& flags() {
  static const std::vector<Flag> all = [] {
    std::vector<Flag> rows = engine_flags();
    rows.insert(rows.end(), std::begin(kAsking), std::end(kAsking));
    for (const GenerationOption& option : generation_options())
      if (option.flag)
        rows.push_back({option.flag, option.value, option.help, "Answer", kGenerating,
                        std::bind_front(field_of, std::cref(option)), nullptr, &option});
    rows.insert(rows.end(), std::begin(kAnswering), std::end(kAnswering));
    return rows;
  }();
  return all;
}

Flags flags_of(Command command) {
  Flags found;
  for (const Flag& flag : flags())
    if (flag.is_of(command)) found.push_back(&flag);
  return found;
}

std::string text_of(GenerationOption::Field field) {
  return std::visit([](const auto* inner) { return shown(*inner); }, field);
}

std::string Flag::text_in(Options options) const {
  const FlagField at = field(options);
  return at.text ? at.text() : "";
}

std::string Flag::default_text() const { return unset ? unset : text_in({}); }

std::string Flag::help() const {
  const std::string standard = default_text();
  if (!value) return std::string(about) + (standard == "on" ? " (default)" : "");
  return about + (standard.empty() ? "" : " (default: " + standard + ")");
}

}  // namespace dsv32
