// See flags.h. The rows are in the order of the help; groups appear in the order of their first row.
//
// Long names with a hyphen carry an alias with an underscore, so that both spellings work.
#include "cli/options/flags.h"

#include <limits>

#include "cli/options/flag_values.h"
#include "cli/options/imagined_machine.h"
#include "cli/options/talk_name.h"

namespace dsv32 {
namespace {

constexpr unsigned bit(Command command) { return 1u << static_cast<unsigned>(command); }
constexpr unsigned kOnce = 1u << 31;

constexpr unsigned kRun = bit(Command::run), kBatch = bit(Command::batch), kChat = bit(Command::chat),
                   kModel = bit(Command::inspect_model), kPlan = bit(Command::inspect_plan),
                   kTokens = bit(Command::inspect_tokens), kPrompt = bit(Command::inspect_prompt),
                   kLogits = bit(Command::inspect_logits), kCheck = bit(Command::check);
constexpr unsigned kCacheList = bit(Command::cache_list), kCacheShow = bit(Command::cache_show),
                   kCacheVerify = bit(Command::cache_verify), kCachePrune = bit(Command::cache_prune),
                   kCacheClear = bit(Command::cache_clear), kCachePath = bit(Command::cache_path);
constexpr unsigned kCache = kCacheList | kCacheShow | kCacheVerify | kCachePrune | kCacheClear | kCachePath;
constexpr unsigned kTalksList = bit(Command::talks_list), kTalksExport = bit(Command::talks_export),
                   kTalks = kTalksList | kTalksExport | bit(Command::talks_show) |
                            bit(Command::talks_rename) | bit(Command::talks_delete);
constexpr unsigned kBench = bit(Command::bench), kBenchBatch = bit(Command::bench_batch);
constexpr unsigned kWarmStart = bit(Command::warm_start), kWarmStop = bit(Command::warm_stop),
                   kWarm = kWarmStart | kWarmStop | bit(Command::warm_status);
constexpr unsigned kPlain = bit(Command::config) | bit(Command::completion);
constexpr unsigned kMeasuring = kBench | kBenchBatch;
constexpr unsigned kAll =
    kRun | kBatch | kChat | kModel | kPlan | kTokens | kPrompt | kLogits | kCheck | kMeasuring | kWarmStart;
constexpr unsigned kTalking = kRun | kChat, kGenerating = kTalking | kBatch;
constexpr unsigned kComputing = kGenerating | kLogits | kWarmStart, kCaching = kGenerating | kWarmStart;
constexpr unsigned kPlanned = kComputing | kPlan | kMeasuring, kOnEngine = kPlanned | kCheck;
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

using O = Options;
using S = const std::string;

std::string parse_backend(S& flag, S& text) {
  return parse_choice<S>(flag, text, {{"auto", "auto"}, {"cpu", "cpu"}, {"cuda", "cuda"}});
}

constexpr OptionRange kShare{"share", 0, 1};

// What a plan is for when there is no file.
BenchOptions real_size(const SyntheticTypes& types) {
  BenchOptions options;
  options.is_synthetic = true, options.n_layers = 61, options.types = types;
  return options;
}

// Every value is checked here.
constexpr Flag kFlags[] = {
    {"model,m", "FILE",
     "the GGUF file, of a split model its first part, or a part of its name if it is in models/, "
     "$DSV32_MODELS or $XDG_DATA_HOME/dsv32/models (environment: DSV32_MODEL; else the only one there)",
     "Model", kAll | kWarmStop, [](O& o, S& v, S&) { o.engine.model_path = v; }},
    {"ctx,ctx-size,ctx_size,c", "N",
     "tokens of context (default: the model's, or what half of the free memory "
     "holds)",
     "Model", kPlanned & ~kMeasuring, [](O& o, S& v, S& f) { o.engine.context = parse_integer(f, v, 1, kMaxInt32); }},
    {"ctx,ctx-size,ctx_size,c", "N",
     "most tokens compared; the built-in prompt is made to have as many (default: at least 256 more than the "
     "buffer's "
     "rows, 4096 at most)",
     "Model", kCheck, [](O& o, S& v, S& f) { o.engine.context = parse_integer(f, v, 1, kMaxInt32); }},
    {"threads,t", "N", "CPU threads (default: one for each core)", "Model", kOnEngine,
     [](O& o, S& v, S& f) { o.engine.n_threads = static_cast<int>(parse_integer(f, v, 1, 4096)); }},
    {"backend", "NAME", "what computes: cpu, cuda, or auto, the GPU if there is one (default: auto)", "Model",
     kPlanned, [](O& o, S& v, S& f) { o.engine.backend = parse_backend(f, v); }},
    {"backend", "NAME",
     "what is checked: cpu; auto, also the GPU if there is one; cuda, also the GPU, which must be there "
     "(default: auto)",
     "Model", kCheck, [](O& o, S& v, S& f) { o.engine.backend = parse_backend(f, v); }},
    {"gpus", "LIST", "which GPUs, such as 0,1 (default: as few as suffice)", "Model", kOnEngine,
     [](O& o, S& v, S& f) {
       for (const int64_t gpu : parse_numbers(f, v, 0)) o.engine.gpus.push_back(static_cast<int>(gpu));
     }},
    {"cpu-experts,cpu_experts", "N",
     "layers whose experts stay in host memory, where the CPU computes them: a number or auto, as few as "
     "may be (default: auto)",
     "Model", kOnEngine,
     [](O& o, S& v, S& f) {
       if (v != "auto") o.engine.n_cpu_experts = parse_integer(f, v, 0, 1000);
     }},
    {"kv-type,kv_type", "TYPE", "how the cache stores latents: fp8, bf16 or f32 (default: fp8)", "Model",
     kOnEngine,
     [](O& o, S& v, S& f) {
       o.engine.kv_type =
           parse_choice<KvType>(f, v, {{"fp8", KvType::fp8}, {"bf16", KvType::bf16}, {"f32", KvType::f32}});
     }},
    {"topk-buffer,topk_buffer", "N",
     "latent rows kept on the GPU for each layer in decode: a number, full, or auto, all if they fit and "
     "else as many as do (default: auto)",
     "Model", kPlanned & ~kBenchBatch, [](O& o, S& v, S& f) { o.engine.topk_buffer = parse_buffer_rows(f, v); }},
    {"topk-buffer,topk_buffer", "N", "rows of the top-k buffers; full: none, only full residency (default: 4096)",
     "Model", kBenchBatch, [](O& o, S& v, S& f) { o.engine.topk_buffer = parse_buffer_rows(f, v); }},
    {"topk-buffer,topk_buffer", "N", "rows of the buffer that is compared (default: the model's top-k)",
     "Model", kCheck, [](O& o, S& v, S& f) { o.engine.topk_buffer = parse_integer(f, v, 1, kMaxInt32); }},
    {"gpu-mem,gpu_mem", "SIZE",
     "most memory to take of each GPU, such as 24G, beside what CUDA itself needs; or a list, 24G,80G, one "
     "for each of --gpus (default: all)",
     "Model", kOnEngine, [](O& o, S& v, S& f) { o.engine.gpu_mem = parse_sizes(f, v); }},
    {"host-mem,host_mem", "SIZE",
     "most host memory to take beside the mapped model; may be more than what the system calls available, on "
     "machines whose memory grows as it is touched (default: what is available)",
     "Model", kOnEngine, [](O& o, S& v, S& f) { o.engine.host_mem = parse_bytes(v, f.c_str()); }},
    {"chunk", "N", "most prompt tokens computed at a time (default: 512, on a GPU 2048, with experts in host memory 8192)", "Model",
     kOnEngine & ~kBench, [](O& o, S& v, S& f) { o.engine.chunk = parse_integer(f, v, 1, 1 << 16); }},

    {"warm", "HOW",
     "whether a process that dsv32 warm start left answers, which holds the same file with the same flags of "
     "Model and Prefix cache: auto, if there is one; only; never (default: auto)",
     "Model", kGenerating,
     [](O& o, S& v, S& f) {
       o.warm = parse_choice<WarmUse>(
           f, v, {{"auto", WarmUse::automatic}, {"only", WarmUse::only}, {"never", WarmUse::never}});
     }},
    {"keep", "TIME", "how long the process stays while nobody asks, such as 90s, 30m or 8h (default: 30m)",
     "Model", kWarmStart, [](O& o, S& v, S& f) { o.keep = parse_duration(f, v); }},
    {"parallel", "N", "most requests at a time, of all who ask (default: what suits the machine)", "Model",
     kWarmStart, [](O& o, S& v, S& f) { o.batch.n_parallel = parse_integer(f, v, 1, 4096); }},

    {"synthetic", nullptr, "random weights instead of a file, of the 671B model's dimensions", "Measured",
     kMeasuring | kOnce, [](O& o, S&, S&) { o.bench.is_synthetic = true; }},
    {"synthetic", "SIZE", "in place of a file, a model of this size: 671b", "Planned", kPlan | kOnce,
     [](O& o, S& v, S& f) {
       parse_choice<bool>(f, v, {{"671b", true}});
       if (!o.bench.is_synthetic) o.bench = real_size({.mix = find_mix("Q4_K_M")});
     }},
    {"type", "NAME",
     "the same, in the formats of a file that llama-quantize calls so (default: Q4_K_M); Q4_K, and any other "
     "with -pure behind it, is one format for all matrices",
     "Planned", kPlan, [](O& o, S& v, S& f) { o.bench = real_size(parse_file_type(f, v)); }},
    {"on", "SPEC",
     "a machine to plan for, its GPUs and its host memory, such as 2xH200+256G, 24G+256G, or 0+768G (default: this one)",
     "Planned", kPlan, [](O& o, S& v, S& f) { o.imagined = parse_machine(f, v); }},

    {"layers", "N", "synthetic layers (default: 6)", "Measured", kMeasuring,
     [](O& o, S& v, S& f) { o.bench.n_layers = parse_integer(f, v, 1, 1000); }},
    {"dense", "N", "dense ones among them (default: 3)", "Measured", kMeasuring,
     [](O& o, S& v, S& f) { o.bench.n_dense = parse_integer(f, v, 0, 1000); }},
    {"type", "NAME", "synthetic matrices' format (default: Q4_K)", "Measured", kMeasuring,
     [](O& o, S& v, S& f) { o.bench.types.matrices = parse_type(f, v); }},
    {"head-type,head_type", "NAME", "format of synthetic attn_k_b and attn_v_b (default: Q8_0)", "Measured",
     kMeasuring, [](O& o, S& v, S& f) { o.bench.types.heads = parse_type(f, v); }},
    {"contexts", "LIST", "frontiers: tokens before the timed ones (default: 0,4096,32768,131072)", "Measured",
     kBench, [](O& o, S& v, S& f) { o.bench.contexts = parse_numbers(f, v, 0); }},
    {"contexts", "LIST", "lengths of the sequences at their end (default: 16384,32768,65536)", "Measured",
     kBenchBatch, [](O& o, S& v, S& f) { o.bench.contexts = parse_numbers(f, v, 1); }},
    {"sequences", "LIST", "how many at a time (default: as many as fit)", "Measured", kBenchBatch,
     [](O& o, S& v, S& f) { o.bench.sequences = parse_numbers(f, v, 1); }},
    {"capacity", nullptr, "only say how many fit", "Measured", kBenchBatch,
     [](O& o, S&, S&) { o.bench.is_capacity = true; }},
    {"chunk", "N", "most prompt tokens computed at a time (default: 2048)", "Measured", kBench,
     [](O& o, S& v, S& f) { o.engine.chunk = parse_integer(f, v, 1, 1 << 16); }},
    {"prompt", "N", "tokens of the timed prefill (default: a chunk)", "Measured", kBench,
     [](O& o, S& v, S& f) { o.bench.n_prompt = parse_integer(f, v, 1, 1 << 20); }},
    {"decode", "N", "timed decode steps (default: 32)", "Measured", kBench | kBenchBatch,
     [](O& o, S& v, S& f) { o.bench.n_decode = parse_integer(f, v, 1, 1 << 20); }},
    {"locality", "F", "share of a step's selected rows that the step before selected too", "Measured",
     kBench | kBenchBatch,
     [](O& o, S& v, S& f) { o.bench.locality.selection = parse_float(f, v, kShare); }},
    {"expert-locality,expert_locality", "F", "share of a step's experts that the step before used too",
     "Measured", kBench | kBenchBatch,
     [](O& o, S& v, S& f) { o.bench.locality.experts = parse_float(f, v, kShare); }},

    {"no-cache,no_cache", nullptr, "prefixes are neither looked for nor kept", "Prefix cache", kCaching,
     [](O& o, S&, S&) { o.uses_cache = false; }},
    {"cache-dir,cache_dir", "DIR",
     "where prefixes are kept (default: $XDG_CACHE_HOME/dsv32, else ~/.cache/dsv32)", "Prefix cache",
     kCaching | kCache, [](O& o, S& v, S&) { o.cache.directory = v; }},
    {"cache-size,cache_size", "SIZE",
     "most bytes of that folder, such as 200G (default: a tenth of the free disk, at most 256 GB)",
     "Prefix cache", kCaching, [](O& o, S& v, S& f) { o.cache.max_bytes = parse_bytes(v, f.c_str()); }},
    {"cache-policy,cache_policy", "NAME",
     "what goes first when room is wanted: lru, lfu, fifo or slru (default: lru)", "Prefix cache",
     kCaching | kCachePrune,
     [](O& o, S& v, S& f) {
       o.cache.eviction = parse_choice<EvictionPolicy>(f, v,
                                                       {{"lru", EvictionPolicy::lru},
                                                        {"lfu", EvictionPolicy::lfu},
                                                        {"fifo", EvictionPolicy::fifo},
                                                        {"slru", EvictionPolicy::slru}});
     }},
    {"cache-write,cache_write", "WHEN",
     "when prefixes go to disk: through, at once; back, when memory wants their place and at the end "
     "(default: through)",
     "Prefix cache", kCaching,
     [](O& o, S& v, S& f) {
       o.cache.write = parse_choice<WritePolicy>(f, v,
                                                 {{"through", WritePolicy::write_through},
                                                  {"back", WritePolicy::write_back}});
     }},
    {"cache-wait,cache_wait", "HOW",
     "for prefixes on their way from the disk: none; all; or timeout, no longer than seems worth it "
     "(default: timeout)",
     "Prefix cache", kCaching,
     [](O& o, S& v, S& f) {
       o.cache.prefetch = parse_choice<PrefetchPolicy>(f, v,
                                                       {{"none", PrefetchPolicy::best_effort},
                                                        {"all", PrefetchPolicy::wait_complete},
                                                        {"timeout", PrefetchPolicy::timeout}});
     }},
    {"cache-salt,cache_salt", "TEXT", "prefixes are shared only under the same TEXT (default: empty)",
     "Prefix cache", kCaching, [](O& o, S& v, S&) { o.cache.salt = v; }},

    {"input,i", "FILE", "the requests: JSON objects of OpenAI's batch form, or {\"prompt\": ...}, or "
     "{\"messages\": ...}, one a line; - is standard input", "Batch", kBatch | kOnce,
     [](O& o, S& v, S&) { o.batch.input_path = v; }},
    {"out,output,o", "FILE", "the answers, one a line, behind those that it has already, which are not asked for "
     "again; - is standard output", "Batch", kBatch | kOnce,
     [](O& o, S& v, S&) { o.output_path = v; }},
    {"lines", nullptr, "each line of the input is a prompt, no JSON", "Batch", kBatch | kOnce,
     [](O& o, S&, S&) { o.batch.is_lines = true; }},
    {"ordered", nullptr, "answers in the order of the input (default: in that of finishing)", "Batch", kBatch,
     [](O& o, S&, S&) { o.batch.is_ordered = true; }},
    {"retry-failed,retry_failed", nullptr, "what failed in an earlier run is taken out of the answers and asked again",
     "Batch", kBatch | kOnce, [](O& o, S&, S&) { o.batch.retries_failed = true; }},
    {"shard", "I/N", "only the lines that fall to the I-th of N runs, I from 0", "Batch", kBatch | kOnce,
     [](O& o, S& v, S& f) { o.batch.shard = parse_shard(f, v); }},
    {"each", nullptr, "each file of -f is a prompt by itself, the words behind it", "Many prompts", kRun | kOnce,
     [](O& o, S&, S&) { o.batch.is_each = true; }},
    {"lines", nullptr, "each line of -f FILE, else of standard input, is a prompt by itself, the words behind it",
     "Many prompts", kRun | kOnce, [](O& o, S&, S&) { o.batch.is_lines = true; }},
    {"parallel", "N", "most prompts at a time, with --each or --lines (default: what suits the machine)", "Many prompts", kRun,
     [](O& o, S& v, S& f) { o.batch.n_parallel = parse_integer(f, v, 1, 4096); }},
    {"parallel", "N", "most requests at a time (default: what suits the machine)", "Batch", kBatch,
     [](O& o, S& v, S& f) { o.batch.n_parallel = parse_integer(f, v, 1, 4096); }},

    {"prompt,p", "TEXT", "the prompt; words that are no flags are the same; - is standard input", "Prompt",
     kRun | kPrompt | kCheck | kOnce, [](O& o, S& v, S&) { o.prompt = v; }},
    {"file,prompt-file,prompt_file,f", "FILE",
     "a text before the prompt; may be repeated; - is standard input", "Prompt", kRun | kPrompt | kCheck | kOnce,
     [](O& o, S& v, S&) { o.files.push_back(v); }},
    {"system", "TEXT", "the system prompt; in a batch, of lines that are a prompt", "Prompt",
     kGenerating | kPrompt,
     [](O& o, S& v, S&) { o.system_text = v; }},
    {"system-file,system_file", "FILE", "the same, from a file", "Prompt", kGenerating | kPrompt,
     [](O& o, S& v, S&) { o.system_file = v; }},
    {"no-stdin,no_stdin", nullptr,
     "standard input is left to others, such as the loop that calls, unless - names it", "Prompt",
     kRun | kPrompt, [](O& o, S&, S&) { o.leaves_stdin = true; }},
    {"raw", nullptr, "the prompt is rendered already: no chat format, special tokens by name", "Prompt",
     kRun | kBatch | kPrompt, [](O& o, S&, S&) { o.is_raw = true; }},
    {"think", nullptr, "think before the answer (default)", "Prompt", kGenerating | kPrompt,
     [](O& o, S&, S&) { o.generation.thinking = o.is_thinking_given = true; }},
    {"no-think,no_think,nothink", nullptr, "answer at once", "Prompt", kGenerating | kPrompt,
     [](O& o, S&, S&) { o.generation.thinking = false, o.is_thinking_given = true; }},

    {"talk,session", "NAME",
     "begin the talk NAME, or go on with it (default for chat: one that begins, kept under the time of its "
     "first message)",
     "Talk", kTalking | kOnce,
     [](O& o, S& v, S&) {
       check_talk_name(v);
       o.talk = v;
     }},
    {"continue", nullptr, "go on with the talk that was used last", "Talk", kTalking | kOnce,
     [](O& o, S&, S&) { o.continues = true; }},
    {"no-save,no_save", nullptr,
     "the talk is not kept (talks are kept in $XDG_STATE_HOME/dsv32/talks, else ~/.local/state/dsv32/talks; "
     "dsv32 talks lists and deletes them)",
     "Talk", kChat, [](O& o, S&, S&) { o.keeps_talk = false; }},
    {"no-history,no_history", nullptr,
     "lines that are typed are not kept, nor those of before offered (they are kept in the file history "
     "beside the folder of talks)",
     "Talk", kChat, [](O& o, S&, S&) { o.keeps_history = false; }},

    {"max-tokens,max_tokens,predict,n-predict,n_predict,tokens,n", "N",
     "most tokens of the answer, thinking not counted; 0: only read the prompt; -1: until the context is full "
     "(default: -1)",
     "Answer", kGenerating,
     [](O& o, S& v, S& f) { o.generation.max_answer = parse_integer(f, v, kTokenLimit); }},
    {"think-max,think_max", "N",
     "most tokens of thinking, behind which the answer begins; -1: as many as it takes (default: -1)", "Answer",
     kGenerating,
     [](O& o, S& v, S& f) { o.generation.max_thinking = parse_integer(f, v, kTokenLimit); }},
    {"temp,temperature", "F",
     "temperature; 0 always takes the likeliest token; a model's file may recommend another (default: 1.0)",
     "Answer", kGenerating, [](O& o, S& v, S& f) { o.generation.sampling.temperature = parse_float(f, v, kTemperature); }},
    {"top-k,top_k", "N", "choose among the N likeliest tokens; 0 and -1: all (default: 0)", "Answer", kGenerating,
     [](O& o, S& v, S& f) { o.generation.sampling.top_k = parse_integer(f, v, kTopK); }},
    {"top-p,top_p", "F", "choose among the likeliest tokens that together reach F (default: 0.95)", "Answer",
     kGenerating, [](O& o, S& v, S& f) { o.generation.sampling.top_p = parse_float(f, v, kTopP); }},
    {"min-p,min_p", "F", "drop tokens less than F times as likely as the likeliest (default: 0)", "Answer",
     kGenerating, [](O& o, S& v, S& f) { o.generation.sampling.min_p = parse_float(f, v, kMinP); }},
    {"seed", "N", "of the sampler; the same seed, the same answer; -1: random (default: random, and reported)", "Answer",
     kTalking, [](O& o, S& v, S& f) { o.seed = parse_seed(f, v, true); }},
    {"seed", "N", "what a line without a seed has its own drawn from, by what it asks (default: 0)", "Answer",
     kBatch, [](O& o, S& v, S& f) { o.seed = parse_seed(f, v, false); }},
    {"stop", "TEXT", "end the answer before TEXT; may be repeated", "Answer", kGenerating,
     [](O& o, S& v, S& f) {
       if (v.empty()) fail_value(f, "a text that is not empty", v);
       o.generation.stops.push_back(v);
     }},
    {"logprobs", "K", "with --json: log-probabilities, and the K likeliest tokens in each place (0 to 20)",
     "Answer", kRun, [](O& o, S& v, S& f) { o.generation.n_top_logprobs = parse_integer(f, v, 0, kMostTopLogprobs); }},
    {"logprobs", "K", "log-probabilities, and the K likeliest tokens in each place (0 to 20)", "Answer", kBatch,
     [](O& o, S& v, S& f) { o.generation.n_top_logprobs = parse_integer(f, v, 0, kMostTopLogprobs); }},

    {"tokens", "IDS", "token ids, with commas or spaces between them, or @FILE", "Logits", kLogits | kOnce,
     [](O& o, S& v, S&) { o.token_list = v; }},
    {"out,o", "FILE",
     "where to: float32 [n_tokens, vocab_size], row-major, little-endian; - is standard output", "Logits",
     kLogits | kOnce, [](O& o, S& v, S&) { o.output_path = v; }},
    {"special", nullptr, "take the names of special tokens in TEXT for these tokens", "Tokens", kTokens,
     [](O& o, S&, S&) { o.parse_special = true; }},

    {"thinking", "WHERE", "show: on standard error; hide; stdout: with its tags (default: show)", "Output",
     kTalking,
     [](O& o, S& v, S& f) {
       o.thinking_display = parse_choice<ThinkingDisplay>(f, v,
                                                          {{"show", ThinkingDisplay::show},
                                                           {"hide", ThinkingDisplay::hide},
                                                           {"stdout", ThinkingDisplay::on_stdout}});
     }},
    {"json", nullptr, "one JSON object on standard output, with --each and --lines one for each prompt",
     "Output", kRun, [](O& o, S&, S&) { o.json = true; }},
    {"json", nullptr, "one JSON object on standard output", "Output",
     kModel | kPlan | kTokens | kPrompt | kCheck | kCache | kMeasuring, [](O& o, S&, S&) { o.json = true; }},
    {"json", nullptr, "a JSON object for each process, one a line", "Output", bit(Command::warm_status),
     [](O& o, S&, S&) { o.json = true; }},
    {"dry-run,dry_run", nullptr, "what is damaged is only named", "Output", kCacheVerify | kOnce,
     [](O& o, S&, S&) { o.is_dry_run = true; }},
    {"json", nullptr, "a JSON object for each talk, one a line", "Output", kTalksList,
     [](O& o, S&, S&) { o.json = true; }},
    {"json", nullptr, "one JSON object, {\"messages\": [...]}, as a line of batch (default: Markdown)", "Output",
     kTalksExport, [](O& o, S&, S&) { o.json = true; }},
    {"color", "WHEN", "auto, always or never (default: auto; environment: NO_COLOR, TERM)", "Output",
     kTalking,
     [](O& o, S& v, S& f) {
       o.color = parse_choice<ColorMode>(
           f, v,
           {{"auto", ColorMode::automatic}, {"always", ColorMode::always}, {"never", ColorMode::never}});
     }},
    {"no-color,no_color", nullptr, "the same as --color never", "Output", kTalking,
     [](O& o, S&, S&) { o.color = ColorMode::never; }},
    {"quiet,q", nullptr, "nothing but the answer and errors", "Output", kComputing,
     [](O& o, S&, S&) { o.quiet = true; }},
    {"stream", nullptr, "with --json an object for each piece as it comes (chat.completion.chunk)", "Output", kRun,
     [](O& o, S&, S&) { o.is_streamed = true; }},
    {"verbose,v", nullptr, "a line on standard error for each phase", "Output", kComputing,
     [](O& o, S&, S&) { o.verbose = true; }},
    {"help,h", nullptr, "this text", "Output", kAll | kCache | kTalks | kPlain | kWarm | kOnce, [](O& o, S&, S&) { o.wants_help = true; }},
    {"version,V", nullptr, "the version", "Output", kAll | kCache | kTalks | kPlain | kWarm | kOnce,
     [](O& o, S&, S&) { o.wants_version = true; }},
};

}  // namespace

std::span<const Flag> flags() { return kFlags; }

FlagTexts flags_of(Command command) {
  FlagTexts texts;
  for (const Flag& flag : kFlags)
    if (flag.commands & bit(command)) texts.push_back(&flag);
  return texts;
}

}  // namespace dsv32
