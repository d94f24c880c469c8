// V3.2's markup for tools (DSML), as DeepSeek's encoding_dsv32.py writes it into prompts.
//
//   system      {content}\n\n## Tools ... <functions>\n{one tool's JSON per line}\n</functions>\n
//   assistant   {content}\n\n<｜DSML｜function_calls>
//               <｜DSML｜invoke name="get_weather">
//               <｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
//               <｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
//               </｜DSML｜invoke>
//               </｜DSML｜function_calls><EOS>
//   tool        \n\n<function_results>\n<result>{content}</result>\n</function_results>\n\n<think>
//
// Results have no mark of a turn: after the last one the model goes on, thinking or (</think>) not. A string
// stands as it is, any other value as JSON. Nothing is escaped, so a string that holds
// </｜DSML｜parameter> cannot be told from its end.
//
// ｜DSML｜ is a token of its own in V3.2's vocabulary (128793, special in its tokenizer.json, so control in a
// GGUF file). In a vocabulary without it, it is text like the rest.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "text/message.h"

namespace dsv32 {

// What the markup adds to `messages[i]`: its tools or calls, which stand after its content, or its whole
// result. `thinks`: the model thinks after this result. Names of marks in tools, arguments and results are
// text; in `calls_text`, which the model has written, ｜DSML｜ is the mark. Throws Error{usage} when tools
// are no array of OpenAI's form, arguments are no JSON object, or a result answers no call.
std::vector<PromptPart> dsml_parts(std::span<const Message> messages, size_t i, bool thinks);

}  // namespace dsv32
