// The version, the revision it was built from, with what, for what, and of what. The Makefile says what only
// it knows; this file is compiled anew when that changes.
#include "cli/options/commands.h"

#include <histedit.h>
#include <hwy/highway.h>
#include <openssl/opensslv.h>
#include <xxhash.h>
#include <cxxopts.hpp>
#include <nlohmann/json.hpp>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"

namespace dsv32 {

std::string version_text() {
  std::string text = format("dsv32 0.1.0 (%s)\n", DSV32_REVISION);
  text += "compiler: g++ " __VERSION__ "\n";
  text += "backends: " DSV32_BACKENDS "\n";
  text += format(
      "libraries: Highway %d.%d.%d, PCRE2 %d.%d, sentencepiece, libedit %d.%d, OpenSSL %s, "
      "xxHash %d.%d.%d, JSON %d.%d.%d, cxxopts %d.%d.%d",
      HWY_MAJOR, HWY_MINOR, HWY_PATCH, PCRE2_MAJOR, PCRE2_MINOR, LIBEDIT_MAJOR, LIBEDIT_MINOR,
      OPENSSL_VERSION_STR, XXH_VERSION_MAJOR, XXH_VERSION_MINOR, XXH_VERSION_RELEASE,
      NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH,
      CXXOPTS__VERSION_MAJOR, CXXOPTS__VERSION_MINOR, CXXOPTS__VERSION_PATCH);
  return text + "\n";
}

}  // namespace dsv32
