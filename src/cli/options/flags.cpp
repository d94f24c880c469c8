// See flags.h. The rows are in the order of the help; groups appear in the order of their first row.
//
// Long names with a hyphen carry an alias with an underscore, so that both spellings work.
#include "cli/options/flags.h"

#include <algorithm>
#include <limits>

namespace dsv32 {
namespace {

constexpr unsigned bit(Command command) { return 1u << static_cast<unsigned>(command); }
constexpr unsigned kOnce = Flag::kOnce;

constexpr unsigned kRun = bit(Command::run), kBatch = bit(Command::batch), kChat = bit(Command::chat),
                   kModel = bit(Command::inspect_model), kPlan = bit(Command::inspect_plan),
                   kTokens = bit(Command::inspect_tokens), kPrompt = bit(Command::inspect_prompt),
                   kLogits = bit(Command::inspect_logits), kCheck = bit(Command::check);
constexpr unsigned kCacheVerify = bit(Command::cache_verify), kCachePrune = bit(Command::cache_prune),
                   kCache = kCacheVerify | kCachePrune | bit(Command::cache_list) | bit(Command::cache_show) |
                            bit(Command::cache_clear) | bit(Command::cache_path);
constexpr unsigned kTalksList = bit(Command::talks_list), kTalksExport = bit(Command::talks_export),
                   kTalks = kTalksList | kTalksExport | bit(Command::talks_show) |
                            bit(Command::talks_rename) | bit(Command::talks_delete);
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
constexpr Bounds kShare{0, 1};
constexpr double kMostListed = 1 << 20, kMostAtATime = 4096;

using O = Options;
using V = const FlagValue&;

constexpr auto kBackend = [](O& o) {
  return Choice<std::string>{&o.engine.backend, {"auto", "cpu", "cuda"}};
};
constexpr auto kContexts = [](O& o) { return &o.bench.contexts; };
constexpr auto kJson = [](O& o) { return &o.json; };

// What a plan is for when there is no file.
BenchOptions real_size(const SyntheticTypes& types) {
  BenchOptions options;
  options.is_synthetic = true, options.n_layers = 61, options.types = types;
  return options;
}

constexpr Flag kEngineFlags[] = {
    {"model,m", "FILE",
     "the GGUF file, of a split model its first part, or a part of its name if it is in models/, "
     "$DSV32_MODELS or $XDG_DATA_HOME/dsv32/models (environment: DSV32_MODEL; else the only one there)",
     "Model", kOnModel | kWarmStop, [](O& o) { return &o.engine.model_path; }},
    {"ctx,ctx-size,ctx_size,c",
     "N",
     "tokens of context",
     "Model",
     kPlanned & ~kMeasuring,
     [](O& o) { return &o.engine.context; },
     {1, kMaxInt32, "the model's, or what half of the free memory holds"}},
    {"ctx,ctx-size,ctx_size,c",
     "N",
     "most tokens compared; the built-in prompt is made to have as many",
     "Model",
     kCheck,
     [](O& o) { return &o.engine.context; },
     {1, kMaxInt32, "at least 256 more than the buffer's rows, 4096 at most"}},
    {"threads,t",
     "N",
     "CPU threads",
     "Model",
     kOnEngine,
     [](O& o) { return &o.engine.n_threads; },
     {1, 4096, "one for each core"}},
    {"backend", "NAME", "what computes: cpu, cuda, or auto, the GPU if there is one", "Model", kPlanned,
     kBackend},
    {"backend", "NAME",
     "what is checked: cpu; auto, also the GPU if there is one; cuda, also the GPU, which must be there",
     "Model", kCheck, kBackend},
    {"gpus",
     "LIST",
     "which GPUs, such as 0,1",
     "Model",
     kOnEngine,
     [](O& o) { return &o.engine.gpus; },
     {0, kMostListed, "as few as suffice"}},
    {"cpu-experts,cpu_experts",
     "N",
     "layers whose experts stay in host memory, where the CPU computes them: a number or auto, as few as "
     "may be",
     "Model",
     kOnEngine,
     [](O& o) { return &o.engine.n_cpu_experts; },
     {0, 1000, "auto"}},
    {"kv-type,kv_type", "TYPE", "how the cache stores latents: fp8, bf16 or f32", "Model", kOnEngine,
     [](O& o) {
       return Choice<KvType>{&o.engine.kv_type, {"fp8", "bf16", "f32"}};
     }},
    {"topk-buffer,topk_buffer", "N",
     "latent rows kept on the GPU for each layer in decode: a number, full, or auto, all if they fit and "
     "else as many as do",
     "Model", kPlanned & ~kBenchBatch, [](O& o) { return BufferRows{&o.engine.topk_buffer}; }},
    {"topk-buffer,topk_buffer",
     "N",
     "rows of the top-k buffers; full: none, only full residency",
     "Model",
     kBenchBatch,
     [](O& o) { return BufferRows{&o.engine.topk_buffer}; },
     {0, 0, "4096"}},
    {"topk-buffer,topk_buffer",
     "N",
     "rows of the buffer that is compared",
     "Model",
     kCheck,
     [](O& o) { return &o.engine.topk_buffer; },
     {1, kMaxInt32, "the model's top-k"}},
    {"gpu-mem,gpu_mem",
     "SIZE",
     "most memory to take of each GPU, such as 24G, beside what CUDA itself needs; or a list, 24G,80G, one "
     "for each of --gpus",
     "Model",
     kOnEngine,
     [](O& o) { return &o.engine.gpu_mem; },
     {0, 0, "all"}},
    {"host-mem,host_mem",
     "SIZE",
     "most host memory to take beside the mapped model; may be more than what the system calls available, on "
     "machines whose memory grows as it is touched",
     "Model",
     kOnEngine,
     [](O& o) { return &o.engine.host_mem; },
     {0, 0, "what is available"}},
    {"chunk",
     "N",
     "most prompt tokens computed at a time",
     "Model",
     kOnEngine & ~kBench,
     [](O& o) { return &o.engine.chunk; },
     {1, 1 << 16, "512, on a GPU 2048, with experts in host memory 8192"}},

    {"no-cache,no_cache", nullptr, "prefixes are neither looked for nor kept", "Prefix cache", kCaching,
     [](O& o) { return Negated{&o.uses_cache}; }},
    {"cache-dir,cache_dir",
     "DIR",
     "where prefixes are kept",
     "Prefix cache",
     kCaching | kCache,
     [](O& o) { return &o.cache.directory; },
     {0, 0, "$XDG_CACHE_HOME/dsv32, else ~/.cache/dsv32"}},
    {"cache-size,cache_size",
     "SIZE",
     "most bytes of that folder, such as 200G",
     "Prefix cache",
     kCaching,
     [](O& o) { return &o.cache.max_bytes; },
     {0, 0, "a tenth of the free disk, at most 256 GB"}},
    {"cache-policy,cache_policy", "NAME", "what goes first when room is wanted: lru, lfu, fifo or slru",
     "Prefix cache", kCaching | kCachePrune,
     [](O& o) {
       return Choice<EvictionPolicy>{&o.cache.eviction, {"lru", "lfu", "fifo", "slru"}};
     }},
    {"cache-write,cache_write", "WHEN",
     "when prefixes go to disk: through, at once; back, when memory wants their place and at the end",
     "Prefix cache", kCaching,
     [](O& o) {
       return Choice<WritePolicy>{&o.cache.write, {"through", "back"}};
     }},
    {"cache-wait,cache_wait", "HOW",
     "how long to wait for prefixes on their way from the disk: none; all, until they are there; timeout, at "
     "most as long as recomputing would take",
     "Prefix cache", kCaching,
     [](O& o) {
       return Choice<PrefetchPolicy>{&o.cache.prefetch, {"none", "all", "timeout"}};
     }},
    {"cache-salt,cache_salt",
     "TEXT",
     "prefixes are shared only under the same TEXT",
     "Prefix cache",
     kCaching,
     [](O& o) { return &o.cache.salt; },
     {0, 0, "empty"}},
};
// Or a process could answer for others.
static_assert(std::ranges::all_of(kEngineFlags, [](const Flag& flag) { return flag.get != nullptr; }));

// Before the flags of generation options.
constexpr Flag kAsking[] = {
    {"warm", "HOW",
     "whether a process that dsv32 warm start left answers, which holds the same file with the same flags of "
     "Model and Prefix cache: auto, if there is one; only; never",
     "Model", kGenerating,
     [](O& o) {
       return Choice<WarmUse>{&o.warm, {"auto", "only", "never"}};
     }},
    {"keep", "TIME", "how long the process stays while nobody asks, such as 90s, 30m or 8h", "Model",
     kWarmStart, [](O& o) { return &o.keep; }},
    {"parallel",
     "N",
     "most requests at a time, of all who ask",
     "Model",
     kWarmStart,
     [](O& o) { return &o.batch.n_parallel; },
     {1, kMostAtATime, "what suits the machine"}},

    {"synthetic", nullptr, "random weights instead of a file, of the 671B model's dimensions", "Measured",
     kMeasuring | kOnce, [](O& o) { return &o.bench.is_synthetic; }},
    {"synthetic", "SIZE", "in place of a file, a model of this size: 671b", "Planned", kPlan | kOnce,
     [](O& o, V value) {
       parse_word(value, {"671b"});
       if (!o.bench.is_synthetic) o.bench = real_size({.mix = find_mix("Q4_K_M")});
     }},
    {"type",
     "NAME",
     "the same, in the formats of a file that llama-quantize calls so; Q4_K, and any other with -pure behind "
     "it, is one format for all matrices",
     "Planned",
     kPlan,
     [](O& o, V value) { o.bench = real_size(parse_file_type(value)); },
     {0, 0, "Q4_K_M"}},
    {"on",
     "SPEC",
     "a machine to plan for, its GPUs and its host memory, such as 2xH200+256G, 24G+256G, or 0+768G",
     "Planned",
     kPlan,
     [](O& o, V value) { o.imagined = parse_machine(value); },
     {0, 0, "this one"}},

    {"layers",
     "N",
     "synthetic layers",
     "Measured",
     kMeasuring,
     [](O& o) { return &o.bench.n_layers; },
     {1, 1000}},
    {"dense",
     "N",
     "dense ones among them",
     "Measured",
     kMeasuring,
     [](O& o) { return &o.bench.n_dense; },
     {0, 1000}},
    {"type", "NAME", "synthetic matrices' format", "Measured", kMeasuring,
     [](O& o) { return &o.bench.types.matrices; }},
    {"head-type,head_type", "NAME", "format of synthetic attn_k_b and attn_v_b", "Measured", kMeasuring,
     [](O& o) { return &o.bench.types.heads; }},
    {"contexts",
     "LIST",
     "frontiers: tokens before the timed ones",
     "Measured",
     kBench,
     kContexts,
     {0, kMostListed, "0,4096,32768,131072"}},
    {"contexts",
     "LIST",
     "lengths of the sequences at their end",
     "Measured",
     kBenchBatch,
     kContexts,
     {1, kMostListed, "16384,32768,65536"}},
    {"sequences",
     "LIST",
     "how many at a time",
     "Measured",
     kBenchBatch,
     [](O& o) { return &o.bench.sequences; },
     {1, kMostListed, "as many as fit"}},
    {"capacity", nullptr, "only say how many fit", "Measured", kBenchBatch,
     [](O& o) { return &o.bench.is_capacity; }},
    {"chunk",
     "N",
     "most prompt tokens computed at a time",
     "Measured",
     kBench,
     [](O& o) { return &o.engine.chunk; },
     {1, 1 << 16, "2048"}},
    {"prompt",
     "N",
     "tokens of the timed prefill",
     "Measured",
     kBench,
     [](O& o) { return &o.bench.n_prompt; },
     {1, kMostListed, "a chunk"}},
    {"decode",
     "N",
     "timed decode steps",
     "Measured",
     kBench | kBenchBatch,
     [](O& o) { return &o.bench.n_decode; },
     {1, kMostListed}},
    {"locality", "F", "share of a step's selected rows that the step before selected too", "Measured",
     kBench | kBenchBatch, [](O& o) { return &o.bench.locality.selection; }, kShare},
    {"expert-locality,expert_locality", "F", "share of a step's experts that the step before used too",
     "Measured", kBench | kBenchBatch, [](O& o) { return &o.bench.locality.experts; }, kShare},

    {"input,i", "FILE",
     "the requests: JSON objects of OpenAI's batch form, or {\"prompt\": ...}, or {\"messages\": ...}, one a "
     "line; - is standard input",
     "Batch", kBatch | kOnce, [](O& o) { return &o.batch.input_path; }},
    {"out,output,o", "FILE",
     "the answers, one a line, behind those that it has already, which are not asked for again; - is "
     "standard "
     "output",
     "Batch", kBatch | kOnce, [](O& o) { return &o.output_path; }},
    {"lines", nullptr, "each line of the input is a prompt, no JSON", "Batch", kBatch | kOnce,
     [](O& o) { return &o.batch.is_lines; }},
    {"ordered", nullptr, "answers in the order of the input, else in that of finishing", "Batch", kBatch,
     [](O& o) { return &o.batch.is_ordered; }},
    {"retry-failed,retry_failed", nullptr,
     "what failed in an earlier run is taken out of the answers and asked again", "Batch", kBatch | kOnce,
     [](O& o) { return &o.batch.retries_failed; }},
    {"shard", "I/N", "only the lines that fall to the I-th of N runs, I from 0", "Batch", kBatch | kOnce,
     [](O& o, V value) { o.batch.shard = parse_shard(value); }},
    {"each", nullptr, "each file of -f is a prompt by itself, the words behind it", "Many prompts",
     kRun | kOnce, [](O& o) { return &o.batch.is_each; }},
    {"lines", nullptr,
     "each line of -f FILE, else of standard input, is a prompt by itself, the words behind it",
     "Many prompts", kRun | kOnce, [](O& o) { return &o.batch.is_lines; }},
    {"parallel",
     "N",
     "most prompts at a time, with --each or --lines",
     "Many prompts",
     kRun,
     [](O& o) { return &o.batch.n_parallel; },
     {1, kMostAtATime, "what suits the machine"}},
    {"parallel",
     "N",
     "most requests at a time",
     "Batch",
     kBatch,
     [](O& o) { return &o.batch.n_parallel; },
     {1, kMostAtATime, "what suits the machine"}},

    {"prompt,p", "TEXT", "the prompt; words that are no flags are the same; - is standard input", "Prompt",
     kRun | kPrompt | kCheck | kOnce, [](O& o) { return &o.prompt; }},
    {"file,prompt-file,prompt_file,f", "FILE",
     "a text before the prompt; may be repeated; - is standard input", "Prompt",
     kRun | kPrompt | kCheck | kOnce, [](O& o) { return &o.files; }},
    {"system", "TEXT", "the system prompt; in a batch, of lines that are a prompt", "Prompt",
     kGenerating | kPrompt, [](O& o) { return &o.system_text; }},
    {"system-file,system_file", "FILE", "the same, from a file", "Prompt", kGenerating | kPrompt,
     [](O& o) { return &o.system_file; }},
    {"no-stdin,no_stdin", nullptr,
     "standard input is left to others, such as the loop that calls, unless - names it", "Prompt",
     kRun | kPrompt, [](O& o) { return &o.leaves_stdin; }},
    {"raw", nullptr, "the prompt is rendered already: no chat format, special tokens by name", "Prompt",
     kRun | kBatch | kPrompt, [](O& o) { return &o.is_raw; }},
    {"think", nullptr, "think before the answer", "Prompt", kGenerating | kPrompt,
     [](O& o) { return &o.generation.thinking; }},
    {"no-think,no_think,nothink", nullptr, "answer at once", "Prompt", kGenerating | kPrompt,
     [](O& o) { return Negated{&o.generation.thinking}; }},

    {"talk,session", "NAME",
     "begin the talk NAME, or go on with it (default for chat: one that begins, kept under the time of its "
     "first message)",
     "Talk", kTalking | kOnce,
     [](O& o, V value) {
       check_talk_name(value.text);
       o.talk = value.text;
     }},
    {"continue", nullptr, "go on with the talk that was used last", "Talk", kTalking | kOnce,
     [](O& o) { return &o.continues; }},
    {"no-save,no_save", nullptr,
     "the talk is not kept (talks are kept in $XDG_STATE_HOME/dsv32/talks, else ~/.local/state/dsv32/talks; "
     "dsv32 talks lists and deletes them)",
     "Talk", kChat, [](O& o) { return Negated{&o.keeps_talk}; }},
    {"no-history,no_history", nullptr,
     "lines that are typed are not kept, nor those of before offered (they are kept in the file history "
     "beside the folder of talks)",
     "Talk", kChat, [](O& o) { return Negated{&o.keeps_history}; }},
};

// Behind them.
constexpr Flag kAnswering[] = {
    {"seed",
     "N",
     "of the sampler; the same seed, the same answer; -1: random",
     "Answer",
     kTalking,
     [](O& o, V value) { o.seed = parse_seed(value, true); },
     {0, 0, "random, and reported"}},
    {"seed",
     "N",
     "what a line without a seed has its own drawn from, by what it asks",
     "Answer",
     kBatch,
     [](O& o, V value) { o.seed = parse_seed(value, false); },
     {0, 0, "0"}},
    {"logprobs",
     "K",
     "with --json: log-probabilities, and the K likeliest tokens in each place (0 to 20)",
     "Answer",
     kRun,
     [](O& o) { return &o.generation.n_top_logprobs; },
     {0, kMostTopLogprobs, "none"}},
    {"logprobs",
     "K",
     "log-probabilities, and the K likeliest tokens in each place (0 to 20)",
     "Answer",
     kBatch,
     [](O& o) { return &o.generation.n_top_logprobs; },
     {0, kMostTopLogprobs, "none"}},

    {"tokens", "IDS", "token ids, with commas or spaces between them, or @FILE", "Logits", kLogits | kOnce,
     [](O& o) { return &o.token_list; }},
    {"out,o", "FILE",
     "where to: float32 [n_tokens, vocab_size], row-major, little-endian; - is standard output", "Logits",
     kLogits | kOnce, [](O& o) { return &o.output_path; }},
    {"special", nullptr, "take the names of special tokens in TEXT for these tokens", "Tokens", kTokens,
     [](O& o) { return &o.parse_special; }},

    {"thinking",
     "WHERE",
     "show: on standard error; hide; stdout: with its tags",
     "Output",
     kTalking,
     [](O& o, V value) {
       o.thinking_display = static_cast<ThinkingDisplay>(parse_word(value, {"show", "hide", "stdout"}));
     },
     {0, 0, "show"}},
    {"json", nullptr, "one JSON object on standard output, with --each and --lines one for each prompt",
     "Output", kRun, kJson},
    {"json", nullptr, "one JSON object on standard output", "Output",
     kModel | kPlan | kTokens | kPrompt | kCheck | kCache | kMeasuring, kJson},
    {"json", nullptr, "a JSON object for each process, one a line", "Output", kWarmStatus, kJson},
    {"dry-run,dry_run", nullptr, "what is damaged is only named", "Output", kCacheVerify | kOnce,
     [](O& o) { return &o.is_dry_run; }},
    {"json", nullptr, "a JSON object for each talk, one a line", "Output", kTalksList, kJson},
    {"json", nullptr, "one JSON object, {\"messages\": [...]}, as a line of batch, instead of Markdown",
     "Output", kTalksExport, kJson},
    {"color", "WHEN", "auto, always or never; environment: NO_COLOR, TERM", "Output", kTalking,
     [](O& o) {
       return Choice<ColorMode>{&o.color, {"auto", "always", "never"}};
     }},
    {"no-color,no_color", nullptr, "the same as --color never", "Output", kTalking,
     [](O& o, V) { o.color = ColorMode::never; }},
    {"quiet,q", nullptr, "nothing but the answer and errors", "Output", kComputing,
     [](O& o) { return &o.quiet; }},
    {"stream", nullptr, "with --json an object for each piece as it comes (chat.completion.chunk)", "Output",
     kRun, [](O& o) { return &o.is_streamed; }},
    {"verbose,v", nullptr, "a line on standard error for each phase", "Output", kComputing,
     [](O& o) { return &o.verbose; }},
    {"help,h", nullptr, "this text", "Output", kEvery | kOnce, [](O& o) { return &o.wants_help; }},
    {"version,V", nullptr, "the version", "Output", kEvery | kOnce, [](O& o) { return &o.wants_version; }},
};

}  // namespace

Flag::Flag(const GenerationOption& made_of)
    : names(made_of.flag),
      value(made_of.value),
      about(made_of.help),
      group("Answer"),
      commands(kGenerating),
      bounds{made_of.least, made_of.most},
      option(&made_of),
      set([](const Flag& flag, Options& options, const FlagValue& given) {
        read_value(given, flag.bounds, flag.option->field(options.generation));
      }),
      get([](const Flag& flag, Options& options) {
        return text_of(flag.option->field(options.generation));
      }) {}

std::span<const Flag> engine_flags() { return kEngineFlags; }

const std::vector<Flag>& flags() {
  static const std::vector<Flag> all = [] {
    std::vector<Flag> rows(std::begin(kEngineFlags), std::end(kEngineFlags));
    rows.insert(rows.end(), std::begin(kAsking), std::end(kAsking));
    for (const GenerationOption& option : generation_options())
      if (option.flag) rows.emplace_back(option);
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

}  // namespace dsv32
