#include "base/text.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace dsv32 {
namespace {

// Characters that reorder or hide text: bidirectional controls, zero-width and line/paragraph separators,
// tags.
bool is_deceptive(uint32_t c) {
  return (c >= 0x200b && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) ||
         c == 0xfeff || c == 0x061c || (c >= 0xfff9 && c <= 0xfffb) || (c >= 0xe0000 && c <= 0xe007f);
}

// A JSON escape: two surrogates beyond the first plane.
std::string escaped(uint32_t c) {
  if (c < 0x10000) return format("\\u%04x", c);
  return format("\\u%04x\\u%04x", 0xd7c0 + (c >> 10), 0xdc00 + (c & 0x3ff));
}

// A zero-width joiner is part of ordinary emoji and of several scripts: harmless in an answer, suspect in a
// name.
bool is_joiner(uint32_t c) { return c == 0x200c || c == 0x200d; }

std::string visible_char(uint32_t c, std::string_view raw, bool keep_layout) {
  switch (c) {
    case '\n': return keep_layout ? "\n" : "\\n";
    case '\t': return keep_layout ? "\t" : "\\t";
    case '\r': return "\\r";
    case 0x1b: return "\\e";
    default: break;
  }
  if (c < 0x20) return format("\\x%02x", c);
  const bool is_hidden = is_deceptive(c) && !(keep_layout && is_joiner(c));
  return is_hidden || (c >= 0x7f && c < 0xa0) ? escaped(c) : std::string(raw);
}

// Recognised by a byte order mark or, as in RFC 4627, by the zeros among the first four bytes. Null: it may
// be UTF-8.
const char* wide_encoding(std::string_view text) {
  const std::string_view head = text.substr(0, 4);
  std::string zeros;
  for (const char c : head) zeros += c == '\0' ? '0' : 'x';
  if (zeros == "xx00" && head.starts_with("\xff\xfe")) return "UTF-32";
  if (zeros == "00xx" && head.ends_with("\xfe\xff")) return "UTF-32";
  if (head.starts_with("\xff\xfe") || head.starts_with("\xfe\xff")) return "UTF-16";
  if (zeros == "x0x0") return "UTF-16LE";
  if (zeros == "0x0x") return "UTF-16BE";
  if (zeros == "x000") return "UTF-32LE";
  return zeros == "000x" ? "UTF-32BE" : nullptr;
}

[[noreturn]] void fail_no_text(const std::string& name, const char* what, size_t at) {
  fail(ErrorKind::usage, format("%s is no text: byte %zu is %s", visible(name).c_str(), at + 1, what),
       "iconv -f LATIN1 -t UTF-8 converts a text of that encoding; a PDF or a picture has to become text "
       "first");
}

}  // namespace

std::string visible(std::string_view bytes, bool keep_layout, size_t max_chars) {
  std::string out;
  size_t n_chars = 0;
  for (size_t at = 0, n_bytes; at < bytes.size(); at += n_bytes, ++n_chars) {
    if (n_chars == max_chars) return out + "...";
    uint32_t c = 0;
    n_bytes = static_cast<size_t>(decode_utf8(bytes, at, &c));
    if (n_bytes > 0) {
      out += visible_char(c, bytes.substr(at, n_bytes), keep_layout);
    } else {
      out += format("\\x%02x", static_cast<uint8_t>(bytes[at]));
      n_bytes = 1;
    }
  }
  return out;
}

int decode_utf8(std::string_view bytes, size_t at, uint32_t* code_point) {
  const auto byte = [&](size_t i) -> uint32_t { return static_cast<uint8_t>(bytes[i]); };
  if (at >= bytes.size()) return 0;
  const uint32_t first = byte(at);
  if (first < 0x80) return *code_point = first, 1;
  const int n_bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || bytes.size() - at < static_cast<size_t>(n_bytes)) return 0;
  uint32_t value = first & (0x7fu >> n_bytes);
  for (int i = 1; i < n_bytes; ++i) {
    const uint32_t next = byte(at + static_cast<size_t>(i));
    if ((next & 0xc0u) != 0x80u) return 0;
    value = (value << 6) | (next & 0x3fu);
  }
  constexpr uint32_t kSmallest[5] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kSmallest[n_bytes] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) return 0;
  *code_point = value;
  return n_bytes;
}

void append_utf8(std::string& text, uint32_t c) {
  const auto put = [&](uint32_t byte) { text += static_cast<char>(byte); };
  const auto put_rest = [&](int shift) { put(0x80 | ((c >> shift) & 0x3f)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) return put(0xc0 | (c >> 6)), put_rest(0);
  if (c < 0x10000) return put(0xe0 | (c >> 12)), put_rest(6), put_rest(0);
  put(0xf0 | (c >> 18)), put_rest(12), put_rest(6), put_rest(0);
}

size_t incomplete_utf8_tail(std::string_view bytes) {
  for (size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const uint8_t byte = static_cast<uint8_t>(bytes[bytes.size() - back]);
    if ((byte & 0xc0u) == 0x80u) continue;  // a continuation: look further back for its beginning
    const size_t wanted = byte >= 0xf0 && byte <= 0xf4 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc2 ? 2 : 1;
    return byte <= 0xf4 && wanted > back ? back : 0;
  }
  return 0;
}

std::string sanitize_utf8(std::string_view bytes) {
  std::string out;
  for (size_t at = 0, n_bytes; at < bytes.size(); at += n_bytes) {
    uint32_t c = 0;
    n_bytes = static_cast<size_t>(decode_utf8(bytes, at, &c));
    append_utf8(out, n_bytes > 0 ? c : 0xfffd);
    if (n_bytes == 0) n_bytes = 1;
  }
  return out;
}

void check_text_head(std::string_view head, const std::string& name) {
  if (const char* encoding = wide_encoding(head))
    fail(ErrorKind::usage, format("%s is %s, expected UTF-8", visible(name).c_str(), encoding),
         format("iconv -f %s -t UTF-8 converts it", encoding));
  if (const size_t at = head.substr(0, kTextHead).find('\0'); at != head.npos) fail_no_text(name, "NUL", at);
}

std::string_view plain_text(std::string_view text, const std::string& name) {
  check_text_head(text, name);
  uint32_t code_point = 0;
  for (size_t at = 0; at < text.size();) {
    const int n_bytes = decode_utf8(text, at, &code_point);
    if (n_bytes == 0) fail_no_text(name, "no UTF-8", at);
    at += static_cast<size_t>(n_bytes);
  }
  return text.substr(text.starts_with("\xef\xbb\xbf") ? 3 : 0);
}

std::string human_bytes(uint64_t n_bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double amount = static_cast<double>(n_bytes);
  int unit = 0;
  for (; amount >= 1024 && unit < 4; ++unit) amount /= 1024;
  return unit == 0 ? format("%llu B", static_cast<unsigned long long>(n_bytes))
                   : format("%.1f %s", amount, kUnits[unit]);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::string upper_case(std::string text) {
  for (char& c : text)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return text;
}

// In whole numbers, as a double has only 53 bits.
uint64_t parse_bytes(const std::string& text, const char* flag) {
  constexpr std::string_view kSuffixes = "KMGT";
  const char* const end = text.data() + text.size();
  uint64_t n_whole = 0, n_parts = 0, n_all = 1;  // n_whole + n_parts / n_all of a unit
  auto [at, error] = std::from_chars(text.data(), end, n_whole);
  if (at != end && *at == '.')
    for (++at; at != end && *at >= '0' && *at <= '9' && n_all < 1'000'000; ++at)
      n_parts = 10 * n_parts + static_cast<uint64_t>(*at - '0'), n_all *= 10;
  const std::string suffix(at, end), rest = suffix.substr(std::min<size_t>(suffix.size(), 1));
  const size_t power = suffix.empty() ? 0 : kSuffixes.find(upper_case(suffix)[0]) + 1;  // 0: not a suffix
  const bool is_size = error == std::errc{} && (suffix.empty() ? n_all == 1 : power > 0) &&
                       (rest.empty() || rest == "B" || rest == "iB");
  const uint64_t n_unit = uint64_t{1} << (10 * power);
  const bool lacks_unit = suffix.empty() && n_whole > 0 && n_whole < 1 << 20;  // no memory is so small
  if (!is_size || lacks_unit || n_whole >= (uint64_t{1} << 63) / n_unit)
    fail(ErrorKind::usage,
         format("%s takes a size such as 512M or 40G, not '%s'", flag, visible(text).c_str()));
  return n_whole * n_unit + n_parts * n_unit / n_all;
}

std::string joined(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) text += (i > 0 ? separator : "") + parts[i];
  return text;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

}  // namespace dsv32
