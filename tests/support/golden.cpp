// Reads golden records. Every length is checked against the bytes that are left before anything is allocated.
//
// Values are copied by memcpy: the hosts this builds on are little-endian, as the file is.
#include "tests/support/golden.h"

#include <cstring>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/text.h"

namespace dsv32 {
namespace {

constexpr std::string_view kMagic = "DSVGOLD1";
constexpr uint32_t kMostDims = 8;

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {
    std::ifstream in(path, std::ios::binary);
    if (!in)
      fail(ErrorKind::io, visible(path) + ": cannot be opened", "the tests run from the repository's root");
    bytes_.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  [[noreturn]] void refuse(const std::string& problem) const {
    fail(ErrorKind::model, format("%s: at byte %zu %s", visible(path_).c_str(), at_, problem.c_str()));
  }
  std::string_view take(uint64_t n_bytes) {
    if (n_bytes > n_left())
      refuse(format("%llu bytes are missing", static_cast<unsigned long long>(n_bytes - n_left())));
    const std::string_view taken = std::string_view(bytes_).substr(at_, n_bytes);
    at_ += n_bytes;
    return taken;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  template <class T>
  std::vector<T> array(uint64_t n_values) {
    const std::string_view from = take(n_values * sizeof(T));
    std::vector<T> values(n_values);
    if (n_values > 0) std::memcpy(values.data(), from.data(), from.size());
    return values;
  }
  uint64_t n_left() const { return bytes_.size() - at_; }

 private:
  std::string path_, bytes_;
  size_t at_ = 0;
};

GoldenRecord read_record(Reader& in) {
  const uint32_t type = in.number<uint32_t>(), n_dims = in.number<uint32_t>();
  if (type > 1) in.refuse(format("a record has type %u, expected 0 or 1", type));
  if (n_dims > kMostDims)
    in.refuse(format("a record has %u dimensions, expected at most %u", n_dims, kMostDims));
  GoldenRecord record;
  uint64_t n_values = 1;
  for (uint32_t i = 0; i < n_dims; ++i) {
    const uint64_t size = in.number<uint64_t>();
    // A value takes four bytes, so an array has at most a quarter as many values as there are bytes left.
    if (size > in.n_left() / 4 || n_values * size > in.n_left() / 4)
      in.refuse("a record is larger than the rest of the file");
    n_values *= size;
    record.shape.push_back(static_cast<int64_t>(size));
  }
  if (type == 0)
    record.values = in.array<float>(n_values);
  else
    record.ints = in.array<int32_t>(n_values);
  return record;
}

}  // namespace

Golden::Golden(const std::string& path) : path_(path) {
  Reader in(path);
  if (in.n_left() < kMagic.size() || in.take(kMagic.size()) != kMagic) in.refuse("no golden records begin");
  for (uint32_t n_records = in.number<uint32_t>(); n_records > 0; --n_records) {
    const std::string name(in.take(in.number<uint32_t>()));
    if (!records_.emplace(name, read_record(in)).second)
      in.refuse("record " + visible(name, false, 60) + " ends for the second time");
  }
  if (in.n_left() > 0) in.refuse("the records have ended, but the file has not");
}

const GoldenRecord& Golden::record(std::string_view name) const {
  const auto found = records_.find(name);
  if (found == records_.end())
    fail(ErrorKind::model, visible(path_) + ": there is no record " + visible(name, false, 60));
  return found->second;
}

std::span<const float> Golden::values(std::string_view name) const {
  const GoldenRecord& found = record(name);
  if (!found.ints.empty())
    fail(ErrorKind::model, visible(path_) + ": record " + visible(name) + " holds integers");
  return found.values;
}

std::span<const int32_t> Golden::ints(std::string_view name) const {
  const GoldenRecord& found = record(name);
  if (!found.values.empty())
    fail(ErrorKind::model, visible(path_) + ": record " + visible(name) + " holds floats");
  return found.ints;
}

}  // namespace dsv32
