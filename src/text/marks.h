// How the model's family spells what is no text: the names of tokens that structure a conversation, and the
// tags of calls (dsml.h says where they stand). Nothing else spells them.
#pragma once

#include <string_view>

namespace dsv32::marks {

#define DSV32_DSML "｜DSML｜"

// ---- tokens ----

inline constexpr std::string_view kUser = "<｜User｜>", kAssistant = "<｜Assistant｜>";
inline constexpr std::string_view kThink = "<think>", kEndThink = "</think>";
// Those that end an answer, beside the vocabulary's end of sequence.
inline constexpr std::string_view kEnds[] = {"<｜end▁of▁sentence｜>", "<|EOT|>", kUser};
// A part of each tag of a call. V3.2's tokenizer.json calls it special, but the model writes it and it is
// printed.
inline constexpr std::string_view kDsml = DSV32_DSML;

// ---- tags of calls ----

// Tags whose attributes or end follow have no '>'.
inline constexpr std::string_view kCalls = "<" DSV32_DSML "function_calls>";
inline constexpr std::string_view kEndCalls = "</" DSV32_DSML "function_calls";
inline constexpr std::string_view kInvoke = "<" DSV32_DSML "invoke", kEndInvoke = "</" DSV32_DSML "invoke";
inline constexpr std::string_view kParameter = "<" DSV32_DSML "parameter";
inline constexpr std::string_view kEndParameter = "</" DSV32_DSML "parameter";

}  // namespace dsv32::marks
