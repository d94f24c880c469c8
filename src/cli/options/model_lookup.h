// Which model file -m or the environment variable DSV32_MODEL names, or which is meant without a name.
//
// A path is taken as it stands; a folder means the one model in it. A name, or a part of a file's or its
// folder's, is looked for in the folders of models and those in them: models/ here, $DSV32_MODELS and
// $XDG_DATA_HOME/dsv32/models (else ~/.local/share/dsv32/models). Without a name the only model there is
// meant, not counting demo.gguf and tiny.gguf of models/ when there are others, or for a plan's --on.
#pragma once

#include <string>
#include <vector>

#include "cli/options/options.h"

namespace dsv32 {

// Throws Error{usage} when nothing fits or several do, and says which with their sizes.
std::string find_model(const Options& options);

// What -m may name, of those that find_model() looks among.
std::vector<std::string> model_names();

// No model was named, and `path` came with the program: there was no other.
bool is_stopgap(const Options& options, const std::string& path);

}  // namespace dsv32
