// A text that is written in the user's own editor.
#pragma once

#include <string>

namespace dsv32 {

// $VISUAL, else $EDITOR, else vi.
std::string editor_command();

// Runs the editor on a file of the user's alone that holds `text`, which is then what the file holds, without
// the last line end. False when the editor fails. Nothing is left of the file. Throws Error{io} when it
// cannot be written, Error{usage} when it cannot be read.
bool edit_text(std::string& text);

}  // namespace dsv32
