// How the model's family spells what is no text: the names of tokens that structure a conversation, and the
// tags of calls (dsml.h says where they stand). Nothing else spells them but texts for people, and the
// instructions of dsml.cpp.
#pragma once

#include <string_view>

namespace dsv32::marks {

#define DSV32_DSML "｜DSML｜"

// ---- tokens ----

inline constexpr std::string_view kUser = "<｜User｜>", kAssistant = "<｜Assistant｜>";
inline constexpr std::string_view kAnswers[] = {kAssistant};  // those that an answer follows
inline constexpr std::string_view kThink = "<think>", kEndThink = "</think>";
// Those that end an answer, beside the vocabulary's end of sequence.
inline constexpr std::string_view kEnds[] = {"<｜end▁of▁sentence｜>", "<|EOT|>", kUser};
// A part of each tag of a call. V3.2's tokenizer.json calls it special, but the model writes it and it is
// printed.
inline constexpr std::string_view kDsml = DSV32_DSML;

// ---- tags of calls, as they are written; two are followed by the name and its quote ----

inline constexpr std::string_view kCalls = "<" DSV32_DSML "function_calls>";
inline constexpr std::string_view kEndCalls = "</" DSV32_DSML "function_calls>";
inline constexpr std::string_view kInvoke = "<" DSV32_DSML "invoke name=\"";
inline constexpr std::string_view kEndInvoke = "</" DSV32_DSML "invoke>";
inline constexpr std::string_view kParameter = "<" DSV32_DSML "parameter name=\"";
inline constexpr std::string_view kEndParameter = "</" DSV32_DSML "parameter>";

// What a tag begins with, whatever its attributes and the space in it are.
constexpr std::string_view beginning(std::string_view tag) { return tag.substr(0, tag.find_first_of(" >")); }

}  // namespace dsv32::marks
