// gguf/gguf.h: sound files read back as written, damaged ones refused quickly with a message that says where.
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <cmath>
#include <filesystem>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "gguf/gguf.h"
#include "tests/support/contains.h"
#include "tests/support/damaged_gguf.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temp_dir.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(gguf)

namespace {

// The error that opening or reading gives; fails the test when there is none.
template <typename Action>
Error error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  BOOST_ERROR("nothing was refused");
  return Error(ErrorKind::internal, "none");
}

Error open_error(const std::string& path) {
  return error_of([&] { GgufFile file(path); });
}

// The message is about a model and says all of `parts`.
void check_error(const Error& error, const std::vector<std::string>& parts) {
  BOOST_TEST((error.kind() == ErrorKind::model));
  for (const std::string& part : parts)
    BOOST_TEST(contains(error.what(), part), "'" << error.what() << "' says nothing of '" << part << "'");
}

GgufFile reopened(const GgufImage& image) { return GgufFile(image.bytes, "memory"); }

long peak_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// Part `no` of `count` with tensors of one f32 each.
GgufWriter split_part(uint16_t no, uint16_t count, int32_t n_tensors, const std::vector<std::string>& names) {
  GgufWriter writer;
  writer.add("split.no", no);
  writer.add("split.count", count);
  writer.add("split.tensors.count", n_tensors);
  for (const std::string& name : names)
    writer.add_tensor(name, TensorType::f32, {1}, Bytes(4, static_cast<uint8_t>(no + 1)));
  return writer;
}

std::string part_name(int no, int count) { return format("m-%05d-of-%05d.gguf", no, count); }

// Three parts in `dir`, the first without tensors.
void write_split(const TempDir& dir) {
  split_part(0, 3, 3, {}).write(dir.file(part_name(1, 3)));
  split_part(1, 3, 3, {"a", "b"}).write(dir.file(part_name(2, 3)));
  split_part(2, 3, 3, {"c"}).write(dir.file(part_name(3, 3)));
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_integer_type_reads_back) {
  GgufWriter writer;
  writer.add("u8", uint8_t{200});
  writer.add("i8", int8_t{100});
  writer.add("u16", uint16_t{60000});
  writer.add("i16", int16_t{30000});
  writer.add("u32", uint32_t{4000000000});
  writer.add("i32", int32_t{2000000000});
  writer.add("u64", uint64_t{4294967295});
  writer.add("i64", int64_t{3000000000});
  const GgufImage image = writer.image();
  const GgufFile file = reopened(image);
  BOOST_TEST(*file.get_u32("u8") == 200u);
  BOOST_TEST(*file.get_u32("i8") == 100u);
  BOOST_TEST(*file.get_u32("u16") == 60000u);
  BOOST_TEST(*file.get_u32("i16") == 30000u);
  BOOST_TEST(*file.get_u32("u32") == 4000000000u);
  BOOST_TEST(*file.get_u32("i32") == 2000000000u);
  BOOST_TEST(*file.get_u32("u64") == 4294967295u);
  BOOST_TEST(*file.get_u32("i64") == 3000000000u);
  BOOST_TEST(!file.get_u32("absent"));
  BOOST_TEST(file.has("u8"));
  BOOST_TEST(!file.has("absent"));
}

BOOST_AUTO_TEST_CASE(integers_that_do_not_fit_are_refused) {
  GgufWriter writer;
  writer.add("minus", int8_t{-1});
  writer.add("wide", uint64_t{1} << 32);
  writer.add("widest", UINT64_MAX);
  writer.add_array("list", std::vector<int64_t>{1, -2147483649});
  const GgufImage image = writer.image();
  const GgufFile file = reopened(image);
  for (const char* key : {"minus", "wide", "widest"})
    check_error(error_of([&] { file.get_u32(key); }), {key, "expected 0 to 4294967295", "offset", "memory"});
  check_error(error_of([&] { file.get_i32s("list"); }), {"list", "-2147483649", "offset"});
}

BOOST_AUTO_TEST_CASE(other_values_read_back) {
  GgufWriter writer;
  writer.add("f32", -0.15625f);
  writer.add("yes", true);
  writer.add("no", false);
  writer.add("text", std::string_view("a\0b", 3));
  writer.add("empty", "");
  writer.add_array("texts", std::vector<std::string>{"", "Ġthe", std::string(300, 'x')});
  writer.add_array("i16s", std::vector<int16_t>{-3, 4});
  writer.add_array("f32s", std::vector<float>{1.5f, -2.0f});
  writer.add_array("u8s", std::vector<uint8_t>{7, 8, 9});
  writer.add_array("none", std::vector<float>{});
  const GgufImage image = writer.image();
  const GgufFile file = reopened(image);
  BOOST_TEST(*file.get_f32("f32") == -0.15625f);
  BOOST_TEST(*file.get_bool("yes"));
  BOOST_TEST(!*file.get_bool("no"));
  BOOST_TEST((*file.get_string("text") == std::string_view("a\0b", 3)));
  BOOST_TEST(file.get_string("empty")->empty());
  BOOST_TEST(
      (*file.get_strings("texts") == std::vector<std::string_view>{"", "Ġthe", std::string(300, 'x')}));
  BOOST_TEST(*file.get_i32s("i16s") == (std::vector<int32_t>{-3, 4}));
  BOOST_TEST(*file.get_f32s("f32s") == (std::vector<float>{1.5f, -2.0f}));
  BOOST_TEST(*file.get_u32_or_array("u8s") == (std::vector<uint32_t>{7, 8, 9}));
  BOOST_TEST(file.get_f32s("none")->empty());
  BOOST_TEST((!file.get_f32("x") && !file.get_bool("x") && !file.get_string("x") && !file.get_strings("x") &&
              !file.get_i32s("x") && !file.get_f32s("x") && !file.get_u32_or_array("x")));
}

BOOST_AUTO_TEST_CASE(a_scalar_serves_as_an_array_of_one) {
  GgufWriter writer;
  writer.add("n", uint32_t{2048});
  const GgufImage image = writer.image();
  BOOST_TEST(*reopened(image).get_u32_or_array("n") == std::vector<uint32_t>{2048});
}

BOOST_AUTO_TEST_CASE(a_getter_of_another_type_names_key_and_types) {
  const GgufImage image = sound_gguf().image();
  const GgufFile file = reopened(image);
  check_error(error_of([&] { file.get_u32("a.string"); }),
              {"a.string", "type string", "an integer", "offset"});
  check_error(error_of([&] { file.get_u32("a.u32s"); }), {"a.u32s", "u32 array", "an integer", "offset"});
  check_error(error_of([&] { file.get_u32("a.bool"); }), {"a.bool", "type bool", "an integer"});
  check_error(error_of([&] { file.get_u32("a.f32"); }), {"a.f32", "type f32", "an integer"});
  check_error(error_of([&] { file.get_u32_or_array("a.strings"); }),
              {"a.strings", "string array", "an integer"});
  check_error(error_of([&] { file.get_i32s("a.u32"); }), {"a.u32", "an array of integers"});
  check_error(error_of([&] { file.get_f32("a.u32"); }), {"a.u32", "type u32", "expected f32"});
  check_error(error_of([&] { file.get_f32s("a.u32s"); }), {"a.u32s", "expected f32 array"});
  check_error(error_of([&] { file.get_bool("a.u32"); }), {"a.u32", "expected bool"});
  check_error(error_of([&] { file.get_string("a.strings"); }), {"a.strings", "expected string"});
  check_error(error_of([&] { file.get_strings("a.string"); }), {"a.string", "expected string array"});
}

BOOST_AUTO_TEST_CASE(numbers_that_are_not_finite_are_refused) {
  for (const float value : {NAN, INFINITY, -INFINITY}) {
    GgufWriter writer;
    writer.add("scale", value);
    const GgufImage image = writer.image();
    check_error(error_of([&] { reopened(image).get_f32("scale"); }), {"scale", "finite", "offset"});
  }
}

BOOST_AUTO_TEST_CASE(metadata_is_described_in_order_and_escaped) {
  GgufWriter writer;
  writer.add("b", "x\x1b[2J");
  writer.add("a", int64_t{-5});
  writer.add("u", UINT64_MAX);
  writer.add("t", true);
  writer.add("d", 123456789.5);
  writer.add("f", 16777217.0f / 3);
  writer.add_array("long", std::vector<uint8_t>{1, 2, 3, 4, 5, 6, 7});
  writer.add_array("words", std::vector<std::string>{"p", "\n"});
  const GgufImage image = writer.image();
  const GgufFile file = reopened(image);
  std::string lines;
  for (const GgufFile::KeyInfo& row : file.describe_metadata())
    lines += std::string(row.key) + "|" + row.type + "|" + row.value + ";";
  BOOST_TEST(
      lines ==
      "b|string|'x\\e[2J';a|i64|-5;u|u64|18446744073709551615;t|bool|true;d|f64|123456789.5;f|f32|5592405.5;"
      "long|u8[7]|[1, 2, 3, 4, 5, 6, ...];words|string[2]|['p', '\\n'];");
}

BOOST_AUTO_TEST_CASE(tensors_lie_where_they_were_written) {
  for (const uint32_t alignment : {8u, 32u, 4096u, 1u << 20}) {
    TempDir dir;
    GgufWriter writer = sound_gguf();
    writer.add("general.alignment", alignment);
    writer.set_alignment(alignment);
    writer.write(dir.file("m.gguf"));
    const GgufFile file(dir.file("m.gguf"));
    BOOST_TEST(file.tensors().size() == 3u);
    const GgufTensor* q = file.find_tensor("q");
    BOOST_REQUIRE(q);
    BOOST_TEST((q->type == TensorType::q8_0 && q->n_dims == 2 && q->n_bytes == 4 * 34 && q->part == 0));
    BOOST_TEST(q->ne == (std::array<uint64_t, 4>{64, 2, 1, 1}));
    BOOST_TEST(q->offset == writer.image().offset_of("tensor q data"));
    BOOST_TEST(Bytes(q->data, q->data + q->n_bytes) == Bytes(4 * 34, 2));
    const GgufTensor* b = file.find_tensor("b");
    BOOST_TEST(Bytes(b->data, b->data + b->n_bytes) == Bytes(32, 3));
    BOOST_TEST(!file.find_tensor("absent"));
    BOOST_TEST(file.n_parts() == 1u);
    BOOST_TEST(file.n_bytes() == std::filesystem::file_size(dir.file("m.gguf")));
    BOOST_TEST(file.path() == dir.file("m.gguf"));
  }
}

BOOST_AUTO_TEST_CASE(gaps_and_any_order_of_the_data_are_allowed) {
  GgufImage image = sound_gguf().image();
  image.poke("tensor a offset", uint64_t{0});
  image.poke("tensor q offset", uint64_t{96});
  image.poke("tensor b offset", uint64_t{32});
  image.bytes.resize(image.offset_of("data") + 96 + 4 * 34);
  BOOST_TEST(reopened(image).find_tensor("q")->offset == image.offset_of("data") + 96);
}

BOOST_AUTO_TEST_CASE(a_file_may_hold_neither_keys_nor_tensors) {
  const GgufImage image = GgufWriter().image();
  BOOST_TEST(reopened(image).tensors().empty());
  Bytes header(image.bytes.begin(), image.bytes.begin() + 24);
  BOOST_TEST(GgufFile(header, "memory").describe_metadata().empty());
}

BOOST_AUTO_TEST_CASE(views_survive_a_move) {
  TempDir dir;
  sound_gguf().write(dir.file("m.gguf"));
  GgufFile first(dir.file("m.gguf"));
  const GgufFile second = std::move(first);
  BOOST_TEST(*second.get_string("a.string") == "text");
  BOOST_TEST(second.find_tensor("a")->data[0] == 1);
}

BOOST_AUTO_TEST_CASE(damaged_files_are_refused_at_once) {
  TempDir dir;
  const std::string path = dir.file("model.gguf");
  const long before_kib = peak_kib();
  for (const DamagedGguf& damaged : damaged_ggufs()) {
    BOOST_TEST_CONTEXT(damaged.name) {
      GgufImage{damaged.bytes, {}}.write(path);
      const auto begin = std::chrono::steady_clock::now();
      check_error(open_error(path), {damaged.expected, "offset", path});
      BOOST_TEST(((std::chrono::steady_clock::now() - begin) < std::chrono::seconds(1)));
    }
  }
  BOOST_TEST(peak_kib() - before_kib < 64 * 1024);
}

// Whatever byte the file ends at, there is one error and no fault.
BOOST_AUTO_TEST_CASE(every_truncation_is_refused) {
  const Bytes bytes = sound_gguf().image().bytes;
  for (size_t n_bytes = 1; n_bytes < bytes.size(); ++n_bytes) {
    const Bytes head(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n_bytes));
    check_error(error_of([&] { GgufFile(head, "memory"); }), {"offset", "memory"});
  }
}

// A string past 1 GiB is refused even where the (sparse) file has room for it.
BOOST_AUTO_TEST_CASE(a_string_beyond_the_limit_is_refused) {
  TempDir dir;
  GgufImage image = sound_gguf().image();
  image.poke("key a.string value", (uint64_t{1} << 30) + 1);
  image.write(dir.file("m.gguf"));
  std::filesystem::resize_file(dir.file("m.gguf"), uint64_t{3} << 30);
  check_error(open_error(dir.file("m.gguf")), {"key a.string", "expected at most 1073741824", "offset"});
}

BOOST_AUTO_TEST_CASE(an_array_beyond_the_limit_is_refused) {
  TempDir dir;
  GgufImage image = sound_gguf().image();
  image.poke("key a.strings count", (uint64_t{1} << 24) + 1);
  image.write(dir.file("m.gguf"));
  std::filesystem::resize_file(dir.file("m.gguf"), uint64_t{3} << 30);
  check_error(open_error(dir.file("m.gguf")), {"key a.strings", "expected at most 16777216", "offset"});
}

BOOST_AUTO_TEST_CASE(a_key_beyond_the_limit_is_refused) {
  for (const size_t n_bytes : {65535, 65536}) {
    GgufWriter writer;
    writer.add(std::string(n_bytes, 'k'), uint32_t{1});
    const GgufImage image = writer.image();
    if (n_bytes == 65535)
      BOOST_TEST(reopened(image).has(std::string(n_bytes, 'k')));
    else
      check_error(error_of([&] { reopened(image); }), {"a key has a length of 65536", "at most 65535"});
  }
}

BOOST_AUTO_TEST_CASE(a_cursor_does_not_wrap) {
  const Bytes bytes(16);
  Cursor cursor(bytes, "memory");
  cursor.skip(2, 4, "two");
  BOOST_TEST(cursor.offset() == 8u);
  check_error(error_of([&] { cursor.skip(uint64_t{1} << 61, 8, "many"); }), {"many", "offset 8", "memory"});
  check_error(error_of([&] { cursor.skip(UINT64_MAX, 1, "many"); }), {"many", "offset 8"});
  BOOST_TEST(cursor.n_left() == 8u);
}

BOOST_AUTO_TEST_CASE(a_real_vocabulary_opens_quickly) {
  GgufWriter writer;
  std::vector<std::string> tokens;
  for (int i = 0; i < 129280; ++i) tokens.push_back("token" + std::to_string(i));
  writer.add_array("tokens", tokens);
  const GgufImage image = writer.image();
  const auto begin = std::chrono::steady_clock::now();
  const GgufFile file = reopened(image);
  BOOST_TEST(((std::chrono::steady_clock::now() - begin) < std::chrono::milliseconds(500)));
  BOOST_TEST(file.get_strings("tokens")->back() == "token129279");
}

BOOST_AUTO_TEST_CASE(what_is_no_regular_file_is_refused) {
  TempDir dir;
  std::filesystem::create_directory(dir.file("directory"));
  BOOST_REQUIRE(mkfifo(dir.file("pipe").c_str(), 0600) == 0);
  std::filesystem::create_symlink("loop", dir.file("loop"));
  GgufImage().write(dir.file("empty"));
  check_error(open_error(dir.file("directory")), {"directory", "regular file"});
  check_error(open_error(dir.file("pipe")), {"pipe", "regular file"});
  check_error(open_error("/dev/zero"), {"/dev/zero", "regular file"});
  check_error(open_error(dir.file("loop")), {"loop"});
  check_error(open_error(dir.file("empty")), {"is empty"});
  check_error(open_error(dir.file("absent")), {"absent", "No such file"});
}

BOOST_AUTO_TEST_CASE(hostile_file_names_are_escaped) {
  TempDir dir;
  GgufImage{Bytes(30, 'x'), {}}.write(dir.file("a\x1b]52;c.gguf"));
  check_error(open_error(dir.file("a\x1b]52;c.gguf")), {"'xxxx'", "a\\e]52;c.gguf"});
}

BOOST_AUTO_TEST_CASE(split_parts_become_one_model) {
  TempDir dir;
  write_split(dir);
  const GgufFile file(dir.file(part_name(1, 3)));
  BOOST_TEST(file.n_parts() == 3u);
  BOOST_TEST(file.tensors().size() == 3u);
  uint64_t n_bytes = 0;
  for (int no = 1; no <= 3; ++no) n_bytes += std::filesystem::file_size(dir.file(part_name(no, 3)));
  BOOST_TEST(file.n_bytes() == n_bytes);
  for (const auto& [name, part] : {std::pair{"a", 1}, std::pair{"b", 1}, std::pair{"c", 2}}) {
    const GgufTensor* tensor = file.find_tensor(name);
    BOOST_REQUIRE(tensor);
    BOOST_TEST(tensor->name == name);
    BOOST_TEST(tensor->part == part);
    BOOST_TEST(tensor->data[0] == part + 1);
  }
}

BOOST_AUTO_TEST_CASE(a_merged_file_is_not_split) {
  TempDir dir;
  for (const uint16_t count : {0, 1}) {
    split_part(0, count, 1, {"a"}).write(dir.file("merged.gguf"));
    BOOST_TEST(GgufFile(dir.file("merged.gguf")).n_parts() == 1u);
  }
}

BOOST_AUTO_TEST_CASE(another_part_than_the_first_is_refused_with_its_name) {
  TempDir dir;
  write_split(dir);
  const Error error = open_error(dir.file(part_name(2, 3)));
  check_error(error, {part_name(2, 3), "part 1 (split.no)"});
  BOOST_TEST(contains(error.hint(), dir.file(part_name(1, 3))));
}

BOOST_AUTO_TEST_CASE(split_parts_that_do_not_belong_together_are_refused) {
  const auto refuse = [](const std::function<void(const TempDir&)>& spoil,
                         const std::vector<std::string>& parts) {
    TempDir dir;
    write_split(dir);
    spoil(dir);
    check_error(open_error(dir.file(part_name(1, 3))), parts);
  };
  refuse([](const TempDir& dir) { std::filesystem::remove(dir.file(part_name(3, 3))); },
         {"1 of the 3 parts", part_name(3, 3)});
  refuse(
      [](const TempDir& dir) {
        std::filesystem::rename(dir.file(part_name(2, 3)), dir.file("x"));
        std::filesystem::rename(dir.file(part_name(3, 3)), dir.file(part_name(2, 3)));
        std::filesystem::rename(dir.file("x"), dir.file(part_name(3, 3)));
      },
      {part_name(2, 3), "split.no is 2, expected 1", "offset"});
  refuse(
      [](const TempDir& dir) {
        std::filesystem::copy_file(dir.file(part_name(2, 3)), dir.file(part_name(3, 3)),
                                   std::filesystem::copy_options::overwrite_existing);
      },
      {part_name(3, 3), "split.no is 1, expected 2"});
  refuse([](const TempDir& dir) { split_part(2, 4, 3, {"c"}).write(dir.file(part_name(3, 3))); },
         {part_name(3, 3), "split.count is 4, expected 3"});
  refuse([](const TempDir& dir) { split_part(0, 4, 3, {}).write(dir.file(part_name(1, 3))); },
         {part_name(1, 3), "of 4 (split.count)", "-00001-of-00004.gguf"});
  refuse([](const TempDir& dir) { split_part(0, 3, 4, {}).write(dir.file(part_name(1, 3))); },
         {part_name(1, 3), "split.tensors.count is 4", "3 tensors", "offset"});
  refuse([](const TempDir& dir) { split_part(2, 3, 3, {"a"}).write(dir.file(part_name(3, 3))); },
         {part_name(3, 3), "tensor a stands in an earlier part", "offset"});
  refuse([](const TempDir& dir) { sound_gguf().write(dir.file(part_name(2, 3))); },
         {part_name(2, 3), "no key split.no"});
}

BOOST_AUTO_TEST_CASE(all_parts_that_are_missing_are_named) {
  TempDir dir;
  write_split(dir);
  for (const int no : {2, 3}) std::filesystem::remove(dir.file(part_name(no, 3)));
  const Error error = open_error(dir.file(part_name(1, 3)));
  check_error(error, {"2 of the 3 parts", dir.file(part_name(2, 3)), dir.file(part_name(3, 3))});
  BOOST_TEST(!contains(error.hint(), "-m"));
  std::filesystem::create_symlink("gone", dir.file(part_name(2, 3)));  // as a pruned download leaves it
  check_error(open_error(dir.file(part_name(1, 3))), {"2 of the 3 parts"});
}

// Whether a tensor of such a type is of use shows when it is looked for.
BOOST_AUTO_TEST_CASE(types_that_are_not_computed_may_stand_in_a_file) {
  for (const uint32_t type : {UINT32_MAX, 4u, 5u, 26u, 31u, 34u, 43u, 1000u}) {
    GgufImage image = sound_gguf().image();
    image.poke("tensor a type", type);
    const GgufFile file = reopened(image);
    BOOST_TEST(file.find_tensor("a")->n_bytes == 0u);
    BOOST_TEST(file.find_tensor("b")->data[0] == 3);
  }
}

BOOST_AUTO_TEST_CASE(a_renamed_first_part_is_refused) {
  TempDir dir;
  write_split(dir);
  std::filesystem::rename(dir.file(part_name(1, 3)), dir.file("model.gguf"));
  check_error(open_error(dir.file("model.gguf")), {"model.gguf", "-00001-of-00003.gguf"});
}

BOOST_AUTO_TEST_CASE(raw_pieces_are_refused_with_the_command_that_joins_them) {
  TempDir dir;
  sound_gguf().write(dir.file("m.gguf.part1of12"));
  const Error error = open_error(dir.file("m.gguf.part1of12"));
  check_error(error, {"m.gguf.part1of12", "raw piece"});
  BOOST_TEST(contains(error.hint(), "cat "));
  BOOST_TEST(contains(error.hint(), "m.gguf.part12of12"));
}

BOOST_AUTO_TEST_SUITE_END()
