// Opening a GGUF file: every field is checked here, once.
//
// A bounds-checked cursor goes through the header from front to back. Tensors are placed after the whole
// header is read, since their offsets count from its aligned end.
#include "gguf/gguf.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <filesystem>
#include <utility>

namespace dsv32 {
namespace {

// Far above any real model (60 keys, 1420 tensors), yet low enough that a hostile file is refused cheaply.
constexpr uint64_t kMaxKeys = 1 << 16, kMaxTensors = 1 << 16, kMaxNameBytes = 63;
constexpr uint64_t kSmallestKey = 8 + 1 + 4 + 1, kSmallestTensor = 8 + 1 + 4 + 8 + 4 + 8;  // bytes
constexpr uint32_t kMaxAlignment = 1 << 20, kMaxParts = 1000;

// Recognises two kinds of files that users mistake for a model.
std::string hint_about(std::string_view beginning) {
  if (beginning.starts_with("version https://git-lfs"))
    return "it is a pointer of Git LFS: git lfs pull puts the file in its place";
  const size_t tag = beginning.find_first_not_of(" \t\r\n");
  if (tag != beginning.npos && beginning[tag] == '<')
    return "it is a web page: what was downloaded is not the file itself, whose address at Hugging Face has "
           "/resolve/";
  return {};
}

void check_header(Cursor& cursor) {
  const std::string_view beginning{reinterpret_cast<const char*>(cursor.data()),
                                   std::min<size_t>(cursor.n_left(), 64)};
  const uint32_t magic = cursor.read<uint32_t>("the magic number");
  const std::string_view letters{reinterpret_cast<const char*>(&magic), sizeof magic};
  if (letters != "GGUF")
    cursor.fail_at(0, format("the magic number is '%s', expected 'GGUF'", visible(letters).c_str()),
                   hint_about(beginning));
  const uint32_t version = cursor.read<uint32_t>("the version");
  cursor.check(version != __builtin_bswap32(3), 4,
               "the version is 3 in big-endian order, expected little-endian");
  cursor.check(version == 3, 4, "the version is %u, expected 3", version);
}

// Reads ne and returns its product.
uint64_t read_dimensions(Cursor& cursor, const char* field, GgufTensor& tensor) {
  tensor.n_dims = cursor.read<uint32_t>(field);
  cursor.check(tensor.n_dims >= 1 && tensor.n_dims <= 4, cursor.offset() - 4,
               "%s has n_dims %u, expected 1 to 4", field, tensor.n_dims);
  uint64_t n_values = 1;
  for (uint32_t i = 0; i < tensor.n_dims; ++i) {
    const uint64_t n = tensor.ne[i] = cursor.read<uint64_t>(field);
    const bool fits = n != 0 && !__builtin_mul_overflow(n_values, n, &n_values) && n_values <= INT64_MAX;
    cursor.check(fits, cursor.offset() - 8,
                 "%s has ne[%u] = %llu, expected 1 or more and a product of all below 2^63", field, i,
                 ull(n));
  }
  return n_values;
}

// A tensor of an unsupported type keeps n_bytes 0, and is refused only if the model needs it.
void read_type(Cursor& cursor, const char* field, uint64_t n_values, GgufTensor& tensor) {
  const uint64_t at = cursor.offset();
  tensor.type = static_cast<TensorType>(cursor.read<uint32_t>(field));
  const TypeTraits* type = find_traits(tensor.type);
  if (!type || !type->is_supported) return;
  cursor.check(tensor.ne[0] % type->block_values == 0, at,
               "%s has ne[0] = %llu, expected a multiple of %u for type %s", field, ull(tensor.ne[0]),
               type->block_values, type->name);
  const bool fits =
      !__builtin_mul_overflow(n_values / type->block_values, uint64_t{type->block_bytes}, &tensor.n_bytes);
  cursor.check(fits, at, "%s has %llu values, more than can be addressed", field, ull(n_values));
}

// `offset` is relative to the data section and `data` is null until place() sets both.
GgufTensor read_tensor(Cursor& cursor, std::string_view name, uint32_t alignment) {
  GgufTensor tensor;
  tensor.name = name;
  const std::string field = "tensor " + tensor.name;
  read_type(cursor, field.c_str(), read_dimensions(cursor, field.c_str(), tensor), tensor);
  tensor.offset = cursor.read<uint64_t>(field.c_str());
  cursor.check(tensor.offset % alignment == 0, cursor.offset() - 8,
               "%s has data offset %llu, expected a multiple of the alignment %u", field.c_str(),
               ull(tensor.offset), alignment);
  return tensor;
}

// Sets `data` and makes `offset` absolute. The cursor stands where the data section begins.
void place(const Cursor& cursor, uint64_t entry, GgufTensor& tensor) {
  if (tensor.offset > cursor.n_left() || tensor.n_bytes > cursor.n_left() - tensor.offset)
    cursor.fail_at(entry,
                   format("tensor %s has %llu bytes from %llu on, but there are %llu bytes of tensor data",
                          tensor.name.c_str(), ull(tensor.n_bytes), ull(tensor.offset), ull(cursor.n_left())),
                   "the file is truncated or damaged: fetch it again");
  tensor.data = cursor.data() + tensor.offset;
  tensor.offset += cursor.offset();
}

void check_overlap(const Cursor& cursor, const std::vector<GgufTensor>& tensors) {
  std::vector<const GgufTensor*> by_offset;
  for (const GgufTensor& tensor : tensors) by_offset.push_back(&tensor);
  std::ranges::sort(by_offset, {}, &GgufTensor::offset);
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const GgufTensor &low = *by_offset[i - 1], &high = *by_offset[i];
    cursor.check(high.offset - low.offset >= low.n_bytes, high.offset,
                 "the data of tensor %s overlaps that of tensor %s", high.name.c_str(), low.name.c_str());
  }
}

std::string split_path(const std::string& prefix, uint32_t no, uint32_t count) {
  return prefix + format("-%05u-of-%05u.gguf", no + 1, count);
}

// "{prefix}-00002-of-00003.gguf" -> prefix; "NAME" when `path` has another form.
std::string split_prefix(const std::string& path) {
  const size_t suffix_bytes = split_path("", 0, 1).size();
  const size_t at = path.size() - std::min(path.size(), suffix_bytes);
  unsigned no = 0, count = 0;
  int n_read = 0;
  const int n_fields = std::sscanf(path.c_str() + at, "-%5u-of-%5u.gguf%n", &no, &count, &n_read);
  return n_fields == 2 && static_cast<size_t>(n_read) == suffix_bytes ? path.substr(0, at) : "NAME";
}

// Looks only for absent parts: a part that exists and cannot be opened is reported when it is opened.
void refuse_missing_parts(const std::string& prefix, uint32_t count) {
  std::string missing;
  uint32_t n_missing = 0;
  for (uint32_t no = 1; no < count; ++no) {
    const std::string part = split_path(prefix, no, count);
    std::error_code error;
    if (std::filesystem::status(part, error).type() != std::filesystem::file_type::not_found) continue;
    missing += (n_missing++ ? ", " : "") + visible(part);
  }
  if (n_missing > 0)
    fail(ErrorKind::model,
         format("%u of the %u parts of the model are missing: %s", n_missing, count, missing.c_str()),
         "fetch what is missing; all parts lie in one folder");
}

// Publishers also cut large files into raw pieces; the first piece begins like a model.
const std::string& refuse_raw_piece(const std::string& path) {
  const size_t at = path.rfind(".part");
  unsigned no = 0, count = 0;
  int n_read = 0;
  if (at == std::string::npos ||
      std::sscanf(path.c_str() + at, ".part%9uof%9u%n", &no, &count, &n_read) != 2 ||
      at + static_cast<size_t>(n_read) != path.size())
    return path;
  const std::string whole = visible(path.substr(0, at));
  fail(ErrorKind::model, format("model file %s is a raw piece of a file, not a model", visible(path).c_str()),
       format("join the pieces in order: cat %s.part1of%u ... %s.part%uof%u > %s", whole.c_str(), count,
              whole.c_str(), count, count, whole.c_str()));
}

}  // namespace

GgufFile::GgufFile(const std::string& path) : GgufFile(MappedFile(refuse_raw_piece(path))) {
  const uint32_t count = get_u32("split.count").value_or(0);
  if (count <= 1) return;  // a merged file keeps the key, as 0 or 1
  if (count > kMaxParts) fail_at_key("split.count", format(" is %u, expected at most %u", count, kMaxParts));
  const std::string prefix = split_prefix(path), first = split_path(prefix, 0, count);
  if (const uint32_t no = need_u32("split.no"); no != 0 || path != first)
    fail(ErrorKind::model,
         format("model file %s is part %u (split.no) of %u (split.count), expected the first of them "
                "under a name that ends in %s",
                visible(path).c_str(), no, count, split_path("", 0, count).c_str()),
         "name the first part: " + visible(first));
  const uint32_t n_tensors = need_u32("split.tensors.count");
  refuse_missing_parts(prefix, count);
  for (uint32_t no = 1; no < count; ++no)
    append(GgufFile(MappedFile(split_path(prefix, no, count))), no, count);
  if (tensors_.size() != n_tensors)
    fail_at_key("split.tensors.count",
                format(" is %u, but the %u parts hold %zu tensors", n_tensors, count, tensors_.size()));
}

GgufFile::GgufFile(MappedFile file) : Metadata(file.path()) {
  file.wait_for_stamp();
  read(file.bytes());
  files_.push_back(std::move(file));
}

void GgufFile::check_unchanged() const {
  for (const MappedFile& part : files_)
    if (!part.is_unchanged()) fail_changed(part.path());
}

void GgufFile::append(GgufFile part, uint32_t no, uint32_t count) {
  for (const auto& [key, expected] : {std::pair{"split.no", no}, std::pair{"split.count", count}})
    if (const uint32_t found = part.need_u32(key); found != expected)
      part.fail_at_key(key, format(" is %u, expected %u", found, expected));
  take(std::move(part), [](const GgufTensor&) { return true; });
}

void GgufFile::take(GgufFile other, const std::function<bool(const GgufTensor&)>& is_wanted,
                    std::string_view keys) {
  for (GgufTensor& tensor : other.tensors_) {
    if (!is_wanted(tensor)) continue;
    Cursor({}, other.path())
        .check(tensor_ids_.emplace(tensor.name, tensors_.size()).second, tensor.offset,
               "tensor %s stands in an earlier part too", tensor.name.c_str());
    tensor.part += static_cast<int>(files_.size());
    tensors_.push_back(std::move(tensor));
  }
  if (!keys.empty()) take_keys(other, keys);
  std::ranges::move(other.files_, std::back_inserter(files_));
  n_bytes_ += other.n_bytes_;
}

void GgufFile::read(std::span<const uint8_t> bytes) {
  Cursor cursor(bytes, path());
  check_header(cursor);
  const auto n_tensors = cursor.read<uint64_t>("the number of tensors");
  const auto n_keys = cursor.read<uint64_t>("the number of keys");
  cursor.check_count(8, n_tensors, kSmallestTensor, kMaxTensors, "the number of tensors");
  cursor.check_count(16, n_keys, kSmallestKey, kMaxKeys, "the number of keys");
  read_keys(cursor, n_keys);
  read_tensors(cursor, n_tensors);
  n_bytes_ = bytes.size();
}

void GgufFile::read_tensors(Cursor& cursor, uint64_t n_tensors) {
  const uint32_t alignment = get_only_u32("general.alignment").value_or(32);
  if (alignment < 8 || alignment > kMaxAlignment || !std::has_single_bit(alignment))
    fail_at_key("general.alignment",
                format(" is %u, expected a power of two from 8 to %u", alignment, kMaxAlignment));
  std::vector<uint64_t> entries;  // [n_tensors] offsets of the entries, for messages
  for (uint64_t i = 0; i < n_tensors; ++i) {
    entries.push_back(cursor.offset());
    const std::string_view name = cursor.read_name("a tensor name", kMaxNameBytes);
    tensors_.push_back(read_tensor(cursor, name, alignment));
    cursor.check(tensor_ids_.emplace(name, i).second, entries[i], "tensor %s stands twice",
                 tensors_[i].name.c_str());
  }
  cursor.skip(std::min(cursor.n_left(), (alignment - cursor.offset() % alignment) % alignment), 1,
              "the padding");
  for (size_t i = 0; i < n_tensors; ++i) place(cursor, entries[i], tensors_[i]);
  check_overlap(cursor, tensors_);
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = tensor_ids_.find(name);
  return found == tensor_ids_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace dsv32
