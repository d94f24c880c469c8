// See flags.h. The rows are in the order of the help; groups appear in the order of their first row.
#include "cli/options/flags.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/text.h"

namespace dsv32 {
namespace {

constexpr unsigned bit(Command command) { return 1u << static_cast<unsigned>(command); }
constexpr unsigned kOnce = Flag::kOnce;

constexpr unsigned kRun = bit(Command::run), kBatch = bit(Command::batch), kChat = bit(Command::chat),
                   kModel = bit(Command::inspect_model), kPlan = bit(Command::inspect_plan),
                   kTokens = bit(Command::inspect_tokens), kCheck = bit(Command::check);
constexpr unsigned kCacheVerify = bit(Command::cache_verify),
                   kCache = kCacheVerify | bit(Command::cache_prune) | bit(Command::cache_list) |
                            bit(Command::cache_clear);
constexpr unsigned kTalksList = bit(Command::talks_list), kTalks = kTalksList | bit(Command::talks_delete);
constexpr unsigned kBench = bit(Command::bench);
constexpr unsigned kWarmStart = bit(Command::warm_start), kWarmStop = bit(Command::warm_stop),
                   kWarmStatus = bit(Command::warm_status);
constexpr unsigned kTalking = kRun | kChat, kGenerating = kTalking | kBatch;
constexpr unsigned kComputing = kGenerating | kWarmStart;
constexpr unsigned kPlanned = kComputing | kPlan | kBench, kOnEngine = kPlanned | kCheck;
constexpr unsigned kOnModel = kOnEngine | kModel | kTokens;
constexpr unsigned kEvery = kOnModel | kCache | kTalks | kWarmStop | kWarmStatus | bit(Command::completion);

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
    at = value.text != "false";
  else if constexpr (std::is_same_v<T, std::string>)
    at = value.text;
  else if constexpr (std::is_same_v<T, uint64_t>)
    at = parse_bytes(value.text, value.flag.c_str());
  else if constexpr (std::is_integral_v<T>)
    at = static_cast<T>(
        parse_integer(value, static_cast<int64_t>(bounds.least), static_cast<int64_t>(bounds.most)));
  else if constexpr (std::is_floating_point_v<T>)
    at = parse_number(value, bounds.least, bounds.most);
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
          [&at] { return shown(at); }, std::is_same_v<T, Words>};
}

// Fields that are not set by read().

// One of the words in `list`, which are those of an enumeration in its order, or the field's texts.
template <typename T>
FlagField choice(T& at, const std::string& list) {
  const Words words = split(list, ' ');
  if constexpr (std::is_same_v<T, std::string>)
    return {[&at, words](V value) { at = words[parse_word(value, words)]; }, [&at] { return at; }};
  else
    return {[&at, words](V value) { at = static_cast<T>(parse_word(value, words)); },
            [&at, words] { return words.at(static_cast<size_t>(at)); }};
}

// What `parse` makes of the text.
template <typename T>
FlagField parsed(T& at, auto parse) {
  return {[&at, parse](V value) { at = parse(value); }};
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
  return {set, [=, &at] { return !at ? "auto" : has_word && *at == meant ? word : shown(*at); }};
}

constexpr const char* kMeasured = "Measured or planned";

// --type: the formats of random weights, which it asks for.
FlagField kType(O& o) {
  const auto set = [&o](V value) { o.bench.types = parse_file_type(value), o.bench.is_synthetic = true; };
  return {set, [&o] { return name_of(o.bench.types); }};
}

const Flag kEngineFlags[] = {
    {"no-cache", nullptr, "neither use nor store prefixes", "Prefix cache", kComputing,
     [](O& o) { return off(o.uses_cache); }},
    {"cache-dir", "DIR", "where prefixes are kept", "Prefix cache", kComputing | kCache,
     [](O& o) { return field(o.cache.directory); }, "$XDG_CACHE_HOME/dsv32, else ~/.cache/dsv32"},
    {"cache-size", "SIZE", "most bytes of that folder, such as 200G", "Prefix cache", kComputing,
     [](O& o) { return field(o.cache.limits.max_bytes); }, "a tenth of the free disk, at most 256 GB"},
    {"cache-policy", "NAME", "which prefixes leave memory first: lru, lfu, fifo or slru", "Prefix cache",
     kComputing, [](O& o) { return choice(o.cache.eviction, "lru lfu fifo slru"); }},
    {"cache-write", "WHEN",
     "when prefixes go to disk; through: at once; back: when memory runs short, and at the end",
     "Prefix cache", kComputing, [](O& o) { return choice(o.cache.write, "through back"); }},
    {"cache-wait", "HOW",
     "how long to wait for prefixes on their way from the disk: none; all, until they are there; timeout, at "
     "most as long as recomputing would take",
     "Prefix cache", kComputing, [](O& o) { return choice(o.cache.prefetch, "none all timeout"); }},

    {"model,m", "FILE",
     "the GGUF file (of a split model its first part), or a part of its name if it is in models/, "
     "$DSV32_MODELS or $XDG_DATA_HOME/dsv32/models (environment: DSV32_MODEL; else the only one there)",
     "Model", kOnModel | kWarmStop, [](O& o) { return field(o.engine.model_path); }},
    {"with,draft-model", "FILE",
     "what the model's file lacks, from another GGUF file: the indexer (models/indexer/extract.py makes "
     "one), "
     "or the block for drafts (MTP); may be repeated",
     "Model", kOnEngine | kModel, [](O& o) { return field(o.engine.added_paths); }},
    {"draft", "N",
     "tokens that the block for drafts of a model that has one guesses ahead, and the next step verifies; "
     "the answer stays the same: 0 to 3, off, or auto: as many as pay, and none with experts in host memory",
     "Model", kGenerating | kWarmStart | kPlan | kBench,
     [](O& o) { return count(o.engine.n_guesses, 0, kMostGuesses, "off", 0); }, "auto, of a bench off"},
    {"ctx,ctx-size,c", "N", "tokens of context; of a check the most that are compared", "Model",
     (kPlanned & ~kBench) | kCheck, [](O& o) { return field(o.engine.context, 1, kMaxInt32); },
     "the model's, or what half of the free memory holds"},
    {"threads,t", "N", "CPU threads", "Model", kOnEngine,
     [](O& o) { return field(o.engine.n_threads, 1, 4096); }, "one for each core"},
    {"backend", "NAME", "what computes, or is checked: cpu, cuda, or auto, the GPU if there is one", "Model",
     kOnEngine, [](O& o) { return choice(o.engine.backend, "auto cpu cuda"); }},
    {"gpus", "LIST", "which GPUs, such as 0,1", "Model", kOnEngine,
     [](O& o) { return field(o.engine.gpus, 0, kMostListed); }, "those that are worth it"},
    {"split", "HOW",
     "how several GPUs share the model; rows: all compute every layer together, the fastest, if they reach "
     "each other's memory; layers: each has some layers; auto: the one that is expected to be faster",
     "Model", kOnEngine, [](O& o) { return choice(o.engine.split, "auto layers rows"); }},
    {"cpu-experts", "N",
     "layers whose experts stay in host memory, where the CPU computes them: a number, or auto: as few as "
     "possible",
     "Model", kOnEngine, [](O& o) { return count(o.engine.n_cpu_experts, 0, 1000); }},
    {"kv-type", "TYPE", "how the cache stores latents: fp8, bf16 or f32", "Model", kOnEngine,
     [](O& o) { return choice(o.engine.kv_type, "fp8 bf16 f32"); }},
    {"select", "HOW",
     "which rows a token attends to; auto: the model's indexer decides, or without one every row; all: every "
     "row; quest: in decode those that seem to matter, for models without an indexer; all and quest change "
     "answers",
     "Model", kOnEngine, [](O& o) { return choice(o.engine.select, "auto all quest"); }},
    {"topk", "N", "rows that a token of the answer attends to with --select quest", "Model", kOnEngine,
     [](O& o) { return field(o.engine.quest_rows, 1, kMaxInt32); }, "2048"},
    {"topk-buffer", "N",
     "latent rows kept on the GPU for each layer in decode: a number, full, or auto: all rows if they fit, "
     "else as many as fit (of a check, which compares them with full, the model's top-k)",
     "Model", kOnEngine, [](O& o) { return count(o.engine.topk_buffer, 1, kMaxInt32, "full", kEveryRow); }},
    {"chunk", "N", "most prompt tokens computed at a time", "Model", kOnEngine,
     [](O& o) { return field(o.engine.chunk, 1, 1 << 16); },
     "512, on a GPU 2048, on a team of GPUs 4096, with experts in host memory 8192"},
    {"gpu-mem", "SIZE",
     "limit for each GPU, such as 24G, without CUDA's own memory; or a list, 24G,80G, one for each of --gpus",
     "Model", kOnEngine, [](O& o) { return field(o.engine.gpu_mem); }, "all"},
    {"host-mem", "SIZE",
     "limit of host memory, without the mapped model; may exceed what the system calls available, on "
     "machines whose memory grows as it is touched",
     "Model", kOnEngine, [](O& o) { return field(o.engine.host_mem); }, "what is available"},
};

// Rows before those of generation options.
const Flag kAsking[] = {
    {"prompt,p", "TEXT", "the prompt; words that are no flags are the same; - is standard input", "Prompt",
     kRun | kTokens | kCheck | kOnce, [](O& o) { return field(o.prompt); }},
    {"file,prompt-file,f", "FILE", "a text before the prompt; may be repeated; - is standard input", "Prompt",
     kRun | kTokens | kCheck | kOnce, [](O& o) { return field(o.files); }},
    {"system,system-prompt", "TEXT",
     "the system prompt (in a batch: of lines with a prompt instead of messages)", "Prompt",
     kGenerating | kTokens, [](O& o) { return field(o.system_text); }},
    {"system-file", "FILE", "the same, from a file", "Prompt", kGenerating | kTokens,
     [](O& o) { return field(o.system_file); }},
    {"messages", "FILE",
     "the whole conversation in place of a prompt, as JSON: a list of messages in OpenAI's form, or a body "
     "of a batch's line, whose fields win over flags; - is standard input",
     "Prompt", kRun | kTokens | kOnce, [](O& o) { return field(o.messages); }},
    {"tools", "FILE",
     "what the answer may call: OpenAI's list of tools, a file, - for standard input, or JSON itself; calls "
     "are printed as JSON, one a line, and in a chat their results are asked for",
     "Prompt", kTalking | kTokens | kOnce, [](O& o) { return field(o.tools); }},
    {"no-stdin", nullptr, "do not read standard input unless - names it, for loops that read it themselves",
     "Prompt", kRun | kTokens, [](O& o) { return field(o.leaves_stdin); }},
    {"raw", nullptr, "the prompt is rendered already: no chat format, special tokens by name", "Prompt",
     kRun | kBatch | kTokens, [](O& o) { return field(o.is_raw); }},
    {"chat-format", "NAME", "how messages become a prompt: a chat format, such as v3.1", "Prompt",
     kGenerating | kTokens,
     [](O& o) {
       return parsed(o.chat_format,
                     [](V value) { return &chat_kinds()[parse_word(value, chat_format_names())]; });
     },
     "the file's, by inspect model"},
    {"think,no-think,nothink", nullptr, "think before the answer; --no-think: answer at once", "Answer",
     kGenerating | kTokens, [](O& o) { return field(o.generation.thinking); }},
    {"reasoning", "on|off", "on: the same as --think; off: as --no-think", "Answer", kGenerating | kTokens,
     [](O& o) {
       return FlagField{[&o](V value) { o.generation.thinking = parse_word(value, {"off", "on"}) == 1; }};
     }},
};

// Rows after those of generation options.
const Flag kAnswering[] = {
    {"schema,json-schema", "FILE",
     "the answer is a JSON document that this JSON schema accepts (true: any document): a file, - for "
     "standard input, JSON itself, or fields in the short form \"name, age int, tags\"",
     "Answer", kGenerating | kOnce, [](O& o) { return field(o.schema); }},
    {"seed", "N",
     "of the sampler; the same seed, the same answer; -1: random; a line of a batch derives its own from it",
     "Answer", kGenerating,
     [](O& o) {
       return FlagField{[&o](V value) { o.seed = parse_seed(value, o.command != Command::batch); }};
     },
     "random, and reported; of a batch 0"},
    {"logprobs", "K",
     "log-probability of each token and of the K likeliest (0 to 20); with run only with --json", "Answer",
     kRun | kBatch, [](O& o) { return field(o.generation.n_top_logprobs, 0, kMostTopLogprobs); }, "none"},

    {"out,output,output-file,o", "FILE",
     "the output, one answer a line, appended; lines answered there already are skipped; - is standard "
     "output",
     "Output", kBatch | kOnce, [](O& o) { return field(o.output_path); }},
    {"thinking", "WHERE", "show: on standard error; hide; stdout: with its tags", "Output", kTalking,
     [](O& o) { return choice(o.thinking_display, "show hide stdout"); }},
    {"json", nullptr, "a JSON object on standard output, or a line of it for each prompt, talk or process",
     "Output", kRun | kModel | kPlan | kTokens | kCheck | kCache | kBench | kTalksList | kWarmStatus,
     [](O& o) { return field(o.json); }},
    {"stream", nullptr, "with --json an object for each piece as it comes (chat.completion.chunk)", "Output",
     kRun, [](O& o) { return field(o.is_streamed); }},
    {"color", "WHEN", "auto, always or never; environment: NO_COLOR, TERM", "Output", kTalking,
     [](O& o) { return choice(o.color, "auto always never"); }},
    {"quiet,q", nullptr, "nothing but the answer and errors", "Output", kComputing,
     [](O& o) { return field(o.quiet); }},
    {"verbose,v", nullptr, "a line on standard error for each phase", "Output", kComputing,
     [](O& o) { return field(o.verbose); }},
    {"dry-run", nullptr, "only report damage, remove nothing", "Output", kCacheVerify | kOnce,
     [](O& o) { return field(o.is_dry_run); }},
    {"help,h", nullptr, "this text", "Output", kEvery | kOnce, [](O& o) { return field(o.wants_help); }},

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

    {"input,input-file,i", "FILE",
     "the requests: JSON objects of OpenAI's batch form, or {\"prompt\": ...}, or {\"messages\": ...}, one a "
     "line; - is standard input",
     "Many prompts", kBatch | kOnce, [](O& o) { return field(o.batch.input_path); }},
    {"each", nullptr, "each file of -f is a prompt of its own, followed by the words", "Many prompts",
     kRun | kOnce, [](O& o) { return field(o.batch.is_each); }},
    {"lines", nullptr,
     "each line is a prompt, no JSON: of a batch's input; of run's -f FILE, else of standard input, followed "
     "by the words",
     "Many prompts", kRun | kBatch | kOnce, [](O& o) { return field(o.batch.is_lines); }},
    {"parallel", "N", "most requests at a time; of run with --each or --lines", "Many prompts",
     kRun | kBatch | kWarmStart, [](O& o) { return field(o.batch.n_parallel, 1, kMostAtATime); },
     "what suits the machine"},
    {"ordered", nullptr, "write answers in the order of the input, not as they finish", "Many prompts",
     kBatch, [](O& o) { return field(o.batch.is_ordered); }},
    {"retry-failed", nullptr, "remove failed lines of earlier runs from the output and ask them again",
     "Many prompts", kBatch | kOnce, [](O& o) { return field(o.batch.retries_failed); }},
    {"shard", "I/N",
     "only the lines of the I-th of N runs, I from 0; auto, or auto/N: as Slurm, Kubernetes or MPI say in "
     "the "
     "environment",
     "Many prompts", kBatch | kOnce, [](O& o) { return parsed(o.batch.shard, parse_shard); }},
    {"drain", "TIME",
     "how long requests that run go on after a signal, such as 60s; the rest is left for a "
     "later run",
     "Many prompts", kBatch, [](O& o) { return field(o.batch.drain); }, "until they are done"},

    {"synthetic", nullptr, "random weights instead of a file, of the 671B model's dimensions", kMeasured,
     kBench | kPlan | kOnce, [](O& o) { return field(o.bench.is_synthetic); }},
    {"type", "NAME",
     "like --synthetic, in the formats of llama-quantize's type NAME, such as Q2_K; NAME-pure: all matrices "
     "in one format, such as Q2_K-pure",
     kMeasured, kBench | kPlan, kType, "Q4_K-pure, of a plan Q4_K_M"},
    {"layers", "N", "synthetic layers, of which the first 3 are dense", kMeasured, kBench,
     [](O& o) { return field(o.bench.n_layers, 1, 1000); }},
    {"on", "SPEC",
     "a machine to plan for, its GPUs, by name or memory, and its host memory, such as 2xRTX4090+384G, "
     "24G+256G, or 0+768G; --threads are its threads",
     kMeasured, kPlan, [](O& o) { return parsed(o.imagined, parse_machine); }, "this one"},
    {"host-rate", "N", "GB that CPU threads read of host memory in a second", kMeasured, kPlan,
     [](O& o) { return field(o.host_rate, 1, 10000); }, "8 for each thread, at most 120"},
    {"contexts", "LIST", "tokens of context after which to measure", kMeasured, kBench,
     [](O& o) { return field(o.bench.contexts, 0, kMostListed); }, "0,4096,32768,131072"},
    {"sequences", "LIST", "how many sequences decode together; their contexts are made up", kMeasured, kBench,
     [](O& o) { return field(o.bench.sequences, 1, kMostListed); }, "one, whose context is computed"},
    {"capacity", nullptr, "only say how many sequences of these contexts fit", kMeasured, kBench,
     [](O& o) { return field(o.bench.is_capacity); }},
    {"n-prompt", "N", "tokens of the timed prefill", kMeasured, kBench,
     [](O& o) { return field(o.bench.n_prompt, 1, kMostListed); }, "--chunk, else 2048"},
    {"decode", "N", "timed decode steps", kMeasured, kBench,
     [](O& o) { return field(o.bench.n_decode, 1, kMostListed); }},
    {"locality", "F", "share of a step's selected rows that the step before selected too", kMeasured, kBench,
     [](O& o) { return field(o.bench.locality.selection, 0, 1); }},
    {"expert-locality", "F", "share of a step's experts that the step before used too", kMeasured, kBench,
     [](O& o) { return field(o.bench.locality.experts, 0, 1); }},
    {"accept", "LIST",
     "with --draft the share of first guesses that are taken as right, and perhaps, with commas, of second "
     "and third ones after right ones; F stands for F,F,F",
     kMeasured, kBench, [](O& o) { return parsed(o.bench.accepted, parse_shares); }, "those that are right"},

    {"warm", "HOW",
     "whether a warm process answers (same file, same flags of Model and Prefix cache): auto, if one runs; "
     "only; never",
     "Warm process", kGenerating, [](O& o) { return choice(o.warm, "auto only never"); }},
    {"keep", "TIME", "how long the process stays without a request, such as 90s, 30m or 8h", "Warm process",
     kWarmStart, [](O& o) { return field(o.keep); }},
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
    std::vector<Flag> rows(std::begin(kAsking), std::end(kAsking));
    for (const GenerationOption& option : generation_options())
      if (option.flag)
        rows.push_back({option.flag, option.value, option.help, "Answer", kGenerating,
                        std::bind_front(field_of, std::cref(option)), nullptr, &option});
    rows.insert(rows.end(), std::begin(kAnswering), std::end(kAnswering));
    rows.insert(rows.end(), engine_flags().begin(), engine_flags().end());
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

std::string Flag::help() const {
  const std::string standard = unset ? unset : text_in({});
  if (!value) return std::string(about) + (standard == "on" ? " (default)" : "");
  return about + (standard.empty() ? "" : " (default: " + standard + ")");
}

}  // namespace dsv32
