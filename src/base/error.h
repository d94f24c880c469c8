// One error type for the whole program.
//
// Anything on the host may throw `Error`; main() catches it (message and exit code), and a batch catches it
// for each request. A message is one lower-case sentence with the value found and what was expected; a hint
// says what to type next. Faults of the program are asserts; faults of input (files, flags, JSON) are always
// Errors.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace dsv32 {

// exit_code() gives each kind's exit code.
enum class ErrorKind {
  usage,         // a flag, a prompt, an unreadable input file
  model,         // the model file is missing, damaged, or not DeepSeek-V3.2
  memory,        // not enough memory for the model or the context
  context_full,  // more tokens than the context holds
  io,            // reading or writing failed
  device,        // an accelerator failed
  internal,      // a fault of the program
};

// Exit codes of errors; main.cpp has the list of all.
constexpr int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
    case ErrorKind::context_full: return 2;
    case ErrorKind::model: return 3;
    case ErrorKind::memory: return 4;
    case ErrorKind::io:
    case ErrorKind::device:
    case ErrorKind::internal: return 1;
  }
  return 1;
}

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, std::string hint = {})
      : std::runtime_error(message), kind_(kind), hint_(std::move(hint)) {}
  ErrorKind kind() const { return kind_; }
  const std::string& hint() const { return hint_; }

 private:
  ErrorKind kind_;
  std::string hint_;
};

// printf into a string. The compiler checks the arguments against the format.
__attribute__((format(printf, 1, 2))) inline std::string format(const char* pattern, ...) {
  va_list args, again;
  va_start(args, pattern);
  va_copy(again, args);
  const int n_chars = std::vsnprintf(nullptr, 0, pattern, args);
  va_end(args);
  std::string text(n_chars > 0 ? static_cast<size_t>(n_chars) : 0, '\0');
  if (n_chars > 0) std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  return text;
}

constexpr long long as_ll(int64_t value) { return value; }  // for "%lld"

[[noreturn]] inline void fail(ErrorKind kind, const std::string& message, std::string hint = {}) {
  throw Error(kind, message, std::move(hint));
}

// The exception that a handler has caught, as an Error.
inline Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return {ErrorKind::memory, "out of memory", "a smaller context (-c) needs less"};
  } catch (const std::exception& error) {
    return {ErrorKind::internal, error.what()};
  }
}

}  // namespace dsv32
