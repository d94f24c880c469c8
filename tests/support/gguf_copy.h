// A file's copy, to change, split or rename what is in it.
#pragma once

#include <functional>
#include <string>

#include "gguf/gguf.h"
#include "tests/support/gguf_writer.h"

namespace dsv32 {

// The keys under their new names, and the tensors that are wanted. A key with the name "" is left out.
GgufWriter gguf_copy(const GgufFile& file, const std::function<std::string(const std::string&)>& new_name,
                     const std::function<bool(const GgufTensor&)>& is_wanted);

// A model's file without its indexer, as a file of `architecture`.
GgufWriter without_indexer(const GgufFile& model, const std::string& architecture);
// Its indexer alone, as models/indexer/extract.py writes it: all keys but the tokenizer's and others'.
GgufWriter indexer_of(const GgufFile& model);

}  // namespace dsv32
