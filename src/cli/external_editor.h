// A text that is written in the user's own editor.
#pragma once

#include <string>

namespace dsv32 {

// Runs $VISUAL, else $EDITOR, else vi, on a file of the user's alone that holds `draft`, and returns what it
// holds then, without the last line end. Throws Error{io} when there is no such file or the editor fails; the
// file then stays where the message says.
std::string edit_text(const std::string& draft);

}  // namespace dsv32
