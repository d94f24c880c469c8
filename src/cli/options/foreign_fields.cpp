#include "cli/options/foreign_fields.h"

#include <algorithm>

#include "base/error.h"

namespace dsv32 {
namespace {

// Each with the values that change nothing; null is always one.
constexpr const char* kForeign = R"({
  "stream": [false], "n": [1], "n_cmpl": [1], "best_of": [1], "use_beam_search": [false], "num_beams": [1],
  "num_return_sequences": [1], "echo": [false], "suffix": [""], "return_full_text": [false],

  "frequency_penalty": [0], "presence_penalty": [0], "repetition_penalty": [1], "repeat_penalty": [1],
  "length_penalty": [1], "no_repeat_ngram_size": [0], "repetition_detection": [], "dry_multiplier": [0],
  "logit_bias": [{}, []], "bad_words": [[]], "bad_words_ids": [[]], "allowed_token_ids": [],
  "logits_processors": [[]], "custom_logit_processor": [], "vllm_xargs": [{}], "watermark": [false],
  "watermarking": [false],

  "typical_p": [1], "typ_p": [1], "tfs_z": [1], "top_a": [0], "top_n_sigma": [-1, 0], "epsilon_cutoff": [0],
  "eta_cutoff": [0], "dynatemp_range": [0], "xtc_probability": [0], "mirostat": [0], "mirostat_mode": [0],
  "adaptive_target": [-1], "min_keep": [0], "samplers": [], "do_sample": [true], "smoothing_factor": [0],
  "sampling_seed": [], "random_seed": [], "guidance_scale": [1], "negative_prompt": [""],

  "min_tokens": [0], "min_new_tokens": [0], "min_length": [0], "ignore_eos": [false], "stop_token_ids": [[]],
  "stop_regex": ["", []], "stop_sequences": [[]], "include_stop_str_in_output": [false],
  "no_stop_trim": [false], "skip_special_tokens": [true], "max_new_tokens": [], "max_output_tokens": [],
  "max_length": [], "n_predict": [-1], "num_predict": [-1], "n_indent": [0], "t_max_predict_ms": [-1, 0],
  "truncate": [], "truncate_prompt_tokens": [],

  "response_format": [{"type": "text"}], "format": [""], "guided_json": [], "guided_regex": [],
  "guided_choice": [], "guided_grammar": [], "structured_outputs": [{}], "structural_tag": [],
  "json_schema": [], "grammar": [""], "regex": [""], "ebnf": [""],

  "tools": [[]], "tool_choice": ["none", "auto"], "tool_prompt": [""], "functions": [[]],
  "function_call": ["none", "auto"], "web_search_options": [], "documents": [[]], "verbosity": ["medium"],
  "modalities": [["text"]], "images": [[]], "image_data": [[]], "mm_processor_kwargs": [{}],

  "reasoning": [{}], "think": [], "thinking_mode": [], "thinking_budget": [-1], "thinking_token_budget": [-1],
  "thinking_budget_tokens": [-1], "reasoning_budget": [-1], "reasoning_budget_tokens": [-1],
  "reasoning_format": ["auto", "deepseek"], "include_reasoning": [true], "separate_reasoning": [true],
  "continue_final_message": [false], "add_generation_prompt": [true], "add_special_tokens": [],
  "chat_template": [""], "template": [""], "system": [""], "system_prompt": [""], "safe_prompt": [false],
  "guideline": [""], "raw": [false], "context": [[]], "input_ids": [],
  "prompt_token_ids": [], "prompt_embeds": [], "lora": [[]], "lora_path": [], "lora_request": [],
  "adapter_id": [], "session_params": [{}],

  "options": [{}], "parameters": [{}], "sampling_params": [{}], "extra_body": [{}],
  "n_probs": [0], "top_n_tokens": [0], "prompt_logprobs": [false], "logprob_token_ids": [],
  "return_token_ids": [false], "return_tokens": [false], "return_hidden_states": [false]
})";

const ReadJson& foreign() {
  static const ReadJson parsed = ReadJson::parse(kForeign);
  return parsed;
}

}  // namespace

bool is_foreign(const std::string& name) { return foreign().contains(name); }

void refuse_foreign(JsonFields& fields) {
  for (const auto& row : foreign().items()) {
    const ReadJson* value = fields.find(row.key());
    if (!value || std::ranges::count(row.value(), *value) > 0) continue;
    fail(ErrorKind::usage, format("%s is %s, which is not supported", fields.name_of(row.key()).c_str(),
                                  JsonFields::shown(*value).c_str()));
  }
}

}  // namespace dsv32
