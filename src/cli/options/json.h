// The two kinds of JSON values: nlohmann's, which read and write the same text.
#pragma once

#include <nlohmann/json.hpp>

namespace dsv32 {

using ReadJson = nlohmann::json;      // finds a key among however many there are
using Json = nlohmann::ordered_json;  // keys keep the order in which they were written

}  // namespace dsv32
