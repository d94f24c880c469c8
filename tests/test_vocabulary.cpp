// text/vocabulary.h: what is read from a model file, and every contradiction in it that Tokenizer::make()
// must refuse.
#include <boost/test/unit_test.hpp>

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "base/text.h"
#include "tests/support/bpe_vocabulary.h"
#include "tests/support/contains.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/tiny_vocabulary.h"
#include "text/tokenizer.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(vocabulary)

namespace {

// 256 byte tokens, 7 to 262, between a few of the other kinds.
Vocabulary small_spm() {
  Vocabulary vocabulary;
  vocabulary.model = "llama";
  const auto add = [&](const std::string& token, TokenType type, float score) {
    vocabulary.tokens.push_back(token);
    vocabulary.types.push_back(type);
    vocabulary.scores.push_back(score);
  };
  add("<unk>", TokenType::unknown, 0);
  add("<s>", TokenType::control, 0);
  add("</s>", TokenType::control, 0);
  for (const char* name : {"<a>", "<b>", "<c>", "<d>"}) add(name, TokenType::user_defined, 0);
  for (int byte = 0; byte < 256; ++byte) add(format("<0x%02X>", byte), TokenType::byte, 0);
  float score = 0;
  for (const char* token : {"\u2581h", "\u2581he", "\u2581", "h", "e"})
    add(token, TokenType::normal, --score);
  vocabulary.bos_id = 1;
  vocabulary.eos_id = 2;
  return vocabulary;
}

void expect_refused(Vocabulary vocabulary, const std::string& part_of_message) {
  BOOST_TEST_CONTEXT("expecting: " << part_of_message) {
    BOOST_CHECK_EXCEPTION(Tokenizer::make(std::move(vocabulary)), Error, [&](const Error& error) {
      BOOST_TEST_INFO("message: " << error.what());
      return error.kind() == ErrorKind::model && contains(error.what(), part_of_message);
    });
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(contradictions_in_the_vocabulary_are_refused) {
  const auto damaged = [](Vocabulary vocabulary, const std::function<void(Vocabulary&)>& damage) {
    damage(vocabulary);
    return vocabulary;
  };
  const auto bpe = [&](auto damage) { return damaged(bpe_vocabulary(), damage); };
  const auto spm = [&](auto damage) { return damaged(small_spm(), damage); };
  BOOST_CHECK_NO_THROW(Tokenizer::make(bpe_vocabulary()));
  BOOST_CHECK_NO_THROW(Tokenizer::make(small_spm()));
  expect_refused(bpe([](Vocabulary& v) { v.model = "t5\n"; }), "tokenizer.ggml.model is \"t5\\n\"");
  expect_refused(bpe([](Vocabulary& v) { v.pre = "default"; }), "tokenizer.ggml.pre is \"default\"");
  for (const char* pre : {"deepseek-v3.1", "deepseek-v3.2", "deepseek-v3-0324"})
    BOOST_CHECK_NO_THROW(Tokenizer::make(bpe([=](Vocabulary& v) { v.pre = pre; })));
  expect_refused(bpe([](Vocabulary& v) { v.pre = "deepseek-llm"; }), "is \"deepseek-llm\"");
  expect_refused(bpe([](Vocabulary& v) { v.tokens.clear(); }), "tokenizer.ggml.tokens has 0 tokens");
  expect_refused(bpe([](Vocabulary& v) { v.types.pop_back(); }), "tokenizer.ggml.token_type has");
  expect_refused(bpe([](Vocabulary& v) { v.scores = {1}; }), "tokenizer.ggml.scores has 1 entries");
  expect_refused(spm([](Vocabulary& v) { v.scores.clear(); }), "tokenizer.ggml.scores has 0 entries");
  expect_refused(spm([](Vocabulary& v) { v.scores[265] = NAN; }),
                 "tokenizer.ggml.scores is not finite for token 265");
  expect_refused(bpe([](Vocabulary& v) { v.types[9] = TokenType(7); }),
                 "tokenizer.ggml.token_type is 7 for token 9");
  expect_refused(bpe([](Vocabulary& v) { v.tokens[9] = ""; }), "token 9 has 0 bytes");
  expect_refused(bpe([](Vocabulary& v) { v.tokens[9].assign(70000, 'x'); }), "token 9 has 70000 bytes");
  expect_refused(bpe([](Vocabulary& v) { v.tokens[9] = v.tokens[8]; }), "token 9 repeats the earlier token");
  expect_refused(bpe([](Vocabulary& v) { v.tokens[9] = "\u00ff\u00ff"; }), "has no token for byte 0x");
  expect_refused(bpe([](Vocabulary& v) { v.types[9] = TokenType::control; }), "has no token for byte 0x");
  for (const int32_t id : {-1, 100000, INT32_MIN}) {
    expect_refused(bpe([=](Vocabulary& v) { v.bos_id = id; }),
                   format("tokenizer.ggml.bos_token_id is %d", id));
    expect_refused(bpe([=](Vocabulary& v) { v.eos_id = id; }),
                   format("tokenizer.ggml.eos_token_id is %d", id));
  }
  for (const char* token : {"<0x-1>", "<0xZZ>", "<0x1>", "<0x100>", "0x41", "<0X41>"})
    expect_refused(spm([=](Vocabulary& v) { v.tokens[50] = token; }), "byte token 50 is written");
  expect_refused(spm([](Vocabulary& v) { v.tokens[7 + 0x0a] = "<0x0b>"; }), "occurs twice");
  expect_refused(spm([](Vocabulary& v) { v.types[50] = TokenType::normal; }),
                 "has 255 byte tokens, expected 256");
}

BOOST_AUTO_TEST_CASE(merges_that_do_not_fit_the_vocabulary_are_refused) {
  const auto with_merge = [](const std::string& line) {
    Vocabulary vocabulary = bpe_vocabulary();
    vocabulary.merges[0] = line;
    return vocabulary;
  };
  for (const char* line : {"", " ", "a", "a ", " a", "a b c", "a  b"})
    expect_refused(with_merge(line), "is not of the form");
  expect_refused(with_merge(bpe_vocabulary().merges[1]), "occurs twice");
  Vocabulary none = bpe_vocabulary();
  none.merges.clear();
  expect_refused(none, "tokenizer.ggml.merges is absent or empty");
}

BOOST_AUTO_TEST_CASE(merges_without_a_token_are_passed_over_with_a_warning) {
  const std::string text = "zzz there is the zz";
  const auto usual = Tokenizer::make(bpe_vocabulary());
  BOOST_TEST(usual->warning() == "");
  const size_t n_sound = bpe_vocabulary().merges.size();
  for (const std::string line : {"\x1b[2J a", "a zzz", "z z"}) {
    Vocabulary vocabulary = bpe_vocabulary();
    vocabulary.merges.insert(vocabulary.merges.begin() + 2, line);
    vocabulary.merges.push_back("q q");
    const auto tokenizer = Tokenizer::make(vocabulary);
    const std::string expected = format(
        "2 of %zu tokenizer.ggml.merges are passed over, as they join or make what is no token of text, "
        "such as line 2, \"%s\"",
        n_sound + 2, visible(line).c_str());
    BOOST_TEST(tokenizer->warning() == expected);
    BOOST_TEST(tokenizer->encode(text, false) == usual->encode(text, false));
  }
  // Merges must not spell what only the prompt format may write.
  Vocabulary forging = bpe_vocabulary();
  forging.tokens.push_back("zz");
  forging.types.push_back(TokenType::control);
  forging.merges.push_back("z z");
  const auto tokenizer = Tokenizer::make(forging);
  BOOST_TEST(contains(tokenizer->warning(), "\"z z\""));
  BOOST_TEST(tokenizer->encode(text, false) == usual->encode(text, false));
}

BOOST_AUTO_TEST_CASE(the_vocabulary_is_read_from_a_gguf_file) {
  const std::string path =
      (std::filesystem::temp_directory_path() / format("dsv32_vocabulary_%d.gguf", getpid())).string();
  const auto load = [&](const std::string& left_out, const std::string& model) {
    const TinyVocabulary tiny = tiny_vocabulary();
    GgufWriter writer;
    const auto wanted = [&](const char* key) { return left_out != key; };
    writer.add("general.architecture", "deepseek32");
    if (wanted("tokenizer.ggml.model")) writer.add("tokenizer.ggml.model", model);
    if (wanted("tokenizer.ggml.pre")) writer.add("tokenizer.ggml.pre", "deepseek-v3");
    if (wanted("tokenizer.ggml.tokens")) writer.add_array("tokenizer.ggml.tokens", tiny.tokens);
    if (wanted("tokenizer.ggml.token_type")) writer.add_array("tokenizer.ggml.token_type", tiny.types);
    if (wanted("tokenizer.ggml.merges")) writer.add_array("tokenizer.ggml.merges", tiny.merges);
    if (wanted("tokenizer.ggml.bos_token_id")) writer.add("tokenizer.ggml.bos_token_id", tiny.bos_id);
    if (wanted("tokenizer.ggml.eos_token_id")) writer.add("tokenizer.ggml.eos_token_id", tiny.eos_id);
    writer.add_tensor("t", TensorType::f32, {8}, Bytes(32));
    writer.write(path);
    return load_vocabulary(GgufFile(path));
  };
  const Vocabulary loaded = load("", "gpt2"), expected = bpe_vocabulary();
  BOOST_TEST(loaded.tokens == expected.tokens);
  BOOST_TEST((loaded.types == expected.types));
  BOOST_TEST(loaded.merges == expected.merges);
  BOOST_TEST(loaded.bos_id == expected.bos_id);
  BOOST_TEST(loaded.eos_id == expected.eos_id);
  BOOST_TEST(!loaded.add_space_prefix);
  for (const char* key :
       {"tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"}) {
    BOOST_CHECK_EXCEPTION(load(key, "gpt2"), Error, [&](const Error& error) {
      return error.kind() == ErrorKind::model && contains(error.what(), key);
    });
  }
  BOOST_CHECK_EXCEPTION(load("", "rwkv"), Error,
                        [](const Error& error) { return error.kind() == ErrorKind::model; });
  BOOST_CHECK_EXCEPTION(load("", "llama"), Error, [](const Error& error) {  // it has no scores
    return contains(error.what(), "tokenizer.ggml.scores");
  });
  std::filesystem::remove(path);
}

BOOST_AUTO_TEST_SUITE_END()
