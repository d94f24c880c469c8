// src/constrain against tests/golden/json_schema.json, whose validities the package jsonschema has checked:
// every valid document can be written, byte by byte and with the tokens of any tokenisation; no invalid one
// can end; what is not supported is refused by its path and keyword.
#include <boost/test/unit_test.hpp>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "tests/support/constrained_vocabulary.h"
#include "tests/support/contains.h"
#include "tests/support/golden_schemas.h"

namespace dsv32 {

BOOST_AUTO_TEST_SUITE(constrain)

namespace {

// Whether the bytes are a whole document.
bool accepts(const std::shared_ptr<Grammar>& grammar, std::string_view text) {
  Constraint constraint(grammar, demo_vocabulary().trie());
  for (size_t at = 0; at < text.size(); ++at)
    if (!constraint.take(text.substr(at, 1))) return false;
  return constraint.is_complete();
}

bool accepts_any(const std::shared_ptr<Grammar>& grammar, const std::vector<std::string>& texts) {
  return std::any_of(texts.begin(), texts.end(), [&](const auto& text) { return accepts(grammar, text); });
}

// The same document with a space after each comma and colon.
std::string with_spaces(std::string_view text) {
  std::string spaced;
  bool is_inside = false;
  for (size_t at = 0; at < text.size(); ++at) {
    spaced += text[at];
    if (is_inside && text[at] == '\\')
      spaced += text[++at];
    else if (text[at] == '"')
      is_inside = !is_inside;
    else if (!is_inside && (text[at] == ',' || text[at] == ':'))
      spaced += ' ';
  }
  return spaced;
}

// Whether a schema gives objects or lists as values, which are written without spaces.
bool has_compound_constant(const nlohmann::json& schema) {
  if (!schema.is_structured()) return false;
  for (const auto& [key, value] : schema.items()) {
    if (key == "const" && value.is_structured()) return true;
    if (key == "enum" &&
        std::any_of(value.begin(), value.end(), [](const auto& one) { return one.is_structured(); }))
      return true;
    if (has_compound_constant(value)) return true;
  }
  return false;
}

bool all_ends_allowed(const std::vector<uint32_t>& mask, const ConstrainedVocabulary& vocabulary) {
  for (const int32_t id : vocabulary.end_ids())
    if (!is_allowed(mask, id)) return false;
  return !vocabulary.end_ids().empty();
}

// Pushes the tokens, each of which the mask must allow. Returns where that fails, -1 when the document is
// complete after them.
int64_t fails_at(const std::shared_ptr<Grammar>& grammar, const ConstrainedVocabulary& vocabulary,
                 const std::vector<int32_t>& ids) {
  Constraint constraint(grammar, vocabulary.trie());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!is_allowed(mask_of(constraint, vocabulary), ids[i])) return static_cast<int64_t>(i);
    constraint.push(ids[i]);
  }
  const bool is_done =
      constraint.is_complete() && all_ends_allowed(mask_of(constraint, vocabulary), vocabulary);
  return is_done ? -1 : static_cast<int64_t>(ids.size());
}

// Of the spellings that `text` has: the first that the grammar accepts byte by byte.
std::string accepted_spelling(const std::shared_ptr<Grammar>& grammar,
                              const std::vector<std::string>& texts) {
  for (const std::string& text : texts)
    if (accepts(grammar, text)) return text;
  return texts.front();
}

void check_tokenisations(const std::shared_ptr<Grammar>& grammar, const ConstrainedVocabulary& vocabulary,
                         const std::string& text) {
  BOOST_TEST_CONTEXT(text) {
    BOOST_TEST(fails_at(grammar, vocabulary, vocabulary.tokenizer().encode(text, false)) == -1);
    BOOST_TEST(fails_at(grammar, vocabulary, vocabulary.longest_tokens(text)) == -1);
    BOOST_TEST(fails_at(grammar, vocabulary, vocabulary.byte_tokens(text)) == -1);
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_golden_file_has_what_is_promised) {
  BOOST_TEST(golden_schemas().size() >= 380U);
  BOOST_TEST(supported_schemas().size() >= 220U);
  size_t n_valid = 0, n_invalid = 0;
  for (const GoldenSchema& schema : golden_schemas())
    n_valid += schema.valid.size(), n_invalid += schema.invalid.size();
  BOOST_TEST(n_valid >= 500U);
  BOOST_TEST(n_invalid >= 500U);
}

BOOST_AUTO_TEST_CASE(valid_documents_are_accepted) {
  for (const GoldenSchema* schema : supported_schemas()) BOOST_TEST_CONTEXT(schema->name) {
      std::shared_ptr<Grammar> grammar;
      BOOST_REQUIRE_NO_THROW(grammar = compile_constraint(schema->constraint));
      for (const std::vector<std::string>& texts : schema->valid) BOOST_TEST_CONTEXT(texts.front()) {
          BOOST_TEST(accepts_any(grammar, texts));
          if (!has_compound_constant(nlohmann::json::parse(schema->constraint)))
            BOOST_TEST(accepts(grammar, with_spaces(accepted_spelling(grammar, texts))));
        }
    }
}

BOOST_AUTO_TEST_CASE(valid_documents_are_reached_by_tokens) {
  for (const GoldenSchema* schema : supported_schemas()) BOOST_TEST_CONTEXT(schema->name) {
      const std::shared_ptr<Grammar> grammar = compile_constraint(schema->constraint);
      for (const std::vector<std::string>& texts : schema->valid) {
        const std::string text = accepted_spelling(grammar, texts);
        check_tokenisations(grammar, demo_vocabulary(), text);
        check_tokenisations(grammar, crossing_vocabulary(), text);
        if (!has_compound_constant(nlohmann::json::parse(schema->constraint)))
          check_tokenisations(grammar, crossing_vocabulary(), with_spaces(text));
      }
    }
}

BOOST_AUTO_TEST_CASE(invalid_documents_never_end) {
  for (const GoldenSchema* schema : supported_schemas()) BOOST_TEST_CONTEXT(schema->name) {
      const std::shared_ptr<Grammar> grammar = compile_constraint(schema->constraint);
      for (const std::string& text : schema->invalid) {
        BOOST_TEST(!accepts(grammar, text), text);
        BOOST_TEST(!accepts(grammar, with_spaces(text)), with_spaces(text));
      }
      for (const std::string& text : golden_no_json()) BOOST_TEST(!accepts(grammar, text), visible(text));
    }
}

// Tokens lead nowhere that bytes do not.
BOOST_AUTO_TEST_CASE(invalid_documents_are_cut_off_by_tokens) {
  for (const GoldenSchema* schema : supported_schemas()) BOOST_TEST_CONTEXT(schema->name) {
      const std::shared_ptr<Grammar> grammar = compile_constraint(schema->constraint);
      for (const std::string& text : schema->invalid) {
        BOOST_TEST(fails_at(grammar, crossing_vocabulary(), crossing_vocabulary().longest_tokens(text)) >= 0,
                   text);
        BOOST_TEST(
            fails_at(grammar, demo_vocabulary(), demo_vocabulary().tokenizer().encode(text, false)) >= 0,
            text);
      }
    }
}

BOOST_AUTO_TEST_CASE(what_is_not_supported_is_refused_by_name) {
  for (const GoldenSchema& schema : golden_schemas()) {
    if (schema.is_supported()) continue;
    BOOST_TEST_CONTEXT(schema.name << " " << schema.constraint) {
      BOOST_CHECK_EXCEPTION(compile_constraint(schema.constraint), Error, [&](const Error& error) {
        BOOST_TEST_MESSAGE(schema.name << ": " << error.what());
        const auto names = [&](const auto& place) {
          return contains(error.what(), visible(place.first)) &&
                 contains(error.what(), visible(place.second));
        };
        BOOST_TEST(visible(error.what()) == error.what());
        BOOST_TEST(std::any_of(schema.refused.begin(), schema.refused.end(), names), error.what());
        return error.kind() == ErrorKind::usage;
      });
    }
  }
}

BOOST_AUTO_TEST_CASE(what_is_no_constraint_is_refused) {
  for (const char* text : {"", "{", "1", "[]", "null", "{}", R"({"schema":{})", R"({"schema":{}} x)",
                           R"({"tools":1})", "{\"schema\":{\"const\":\"\xff\"}}"})
    BOOST_TEST_CONTEXT(visible(text)) {
      BOOST_CHECK_EXCEPTION(compile_constraint(text), Error,
                            [](const Error& error) { return error.kind() == ErrorKind::usage; });
    }
}

std::shared_ptr<Grammar> grammar_of(const std::string& schema) {
  return compile_constraint("{\"schema\":" + schema + "}");
}

// `parts` of the message.
void check_refused(const std::string& schema, const std::vector<std::string>& parts) {
  BOOST_TEST_CONTEXT(schema)
  BOOST_CHECK_EXCEPTION(grammar_of(schema), Error, [&](const Error& error) {
    BOOST_TEST_MESSAGE(error.what());
    return std::ranges::all_of(parts, [&](const auto& part) { return contains(error.what(), part); });
  });
}

// Past 64 bits too: as bounds, constants, and parts of constants.
BOOST_AUTO_TEST_CASE(whole_numbers_keep_their_digits) {
  const auto takes = [](const std::string& schema, const std::vector<const char*>& valid,
                        const std::vector<const char*>& invalid) {
    const auto grammar = grammar_of(schema);
    for (const char* text : valid) BOOST_TEST(accepts(grammar, text), schema << " " << text);
    for (const char* text : invalid) BOOST_TEST(!accepts(grammar, text), schema << " " << text);
  };
  takes(R"({"type":"integer","minimum":18446744073709551616,"maximum":18446744073709551617})",
        {"18446744073709551616", "18446744073709551617"}, {"18446744073709551615", "18446744073709551618"});
  takes(R"({"type":"integer","minimum":-9223372036854775810,"exclusiveMaximum":-9223372036854775809})",
        {"-9223372036854775810"}, {"-9223372036854775809", "-9223372036854775808", "-9223372036854775811"});
  takes(R"({"const":12345678901234567890123})", {"12345678901234567890123"},
        {"12345678901234567890122", "1.2345678901234568e+22"});
  takes(R"({"enum":[18446744073709551617,{"a":[-9223372036854775809]}]})",
        {"18446744073709551617", R"({"a":[-9223372036854775809]})"}, {"18446744073709551616"});
  takes(R"({"type":"integer","enum":[1e16,2E3,1.0,-0.0,1e19,12345678901234567890123,1e30,0.5]})",
        {"10000000000000000", "2000", "1", "0", "10000000000000000000", "12345678901234567890123", "1e+30"},
        {"1e+16", "1e16", "1.0", "0.5"});
  takes(R"({"minimum":1e-30,"enum":[1e-25,1e-35,3]})", {"1e-25", "3"}, {"1e-35"});
  takes(
      R"({"allOf":[{"enum":[1e16,18446744073709551617]},{"enum":[10000000000000000,18446744073709551616]}]})",
      {"10000000000000000"}, {"18446744073709551616", "18446744073709551617"});
  takes(R"({"type":"integer","minimum":-1e30,"maximum":1e30})", {"99999999999999999999", "-1"},
        {"100000000000000000000"});
  takes(R"({"type":"string","maxLength":18446744073709551616,"minimum":1e30})", {"\"a\""}, {});
}

BOOST_AUTO_TEST_CASE(bounds_beyond_what_is_written_are_refused) {
  for (const char* bounds : {R"("minimum":1e30)", R"("minimum":100000000000000000000)",
                             R"("exclusiveMaximum":-1e21)", R"("exclusiveMinimum":0,"maximum":1e-21)"})
    check_refused(R"({"properties":{"a":{"type":"number",)" + std::string(bounds) + "}}}",
                  {"/properties/a", "20 digits"});
}

// A schema with $id is a document of its own, to whose parts its references point.
BOOST_AUTO_TEST_CASE(an_id_below_the_root_is_refused) {
  const std::string part =
      R"({"$id":"https://example.test/part","$defs":{"b":{"const":1},"c":{"$ref":"#/$defs/b"}},"$ref":"#/$defs/b"})";
  const std::string defs = R"("$defs":{"a":)" + part + R"(,"b":{"const":2}})";
  check_refused(R"({"properties":{"x":)" + part + "}," + defs + "}", {"/properties/x", "$id"});
  check_refused(R"({"$ref":"#/$defs/a",)" + defs + "}", {"/$defs/a", "$id"});
  check_refused(R"({"$ref":"#/$defs/a/$defs/c",)" + defs + "}", {"/$defs/a", "$id"});
  const auto own = grammar_of(
      R"({"$id":"https://example.test/","properties":{"$id":{"const":1},"x":{"$ref":"#/properties/$id"}}})");
  BOOST_TEST(accepts(own, R"({"$id":1,"x":1})"));
  BOOST_TEST(!accepts(own, R"({"$id":1,"x":2})"));
}

BOOST_AUTO_TEST_CASE(a_reference_to_nothing_is_refused) {
  for (const char* path :
       {"b", "a/type/x", "~2", "list/1", "list/01", "list/-", "list/99999999999999999999", "a%2"})
    check_refused(R"({"$defs":{"a":{"type":"null"},"list":[{}]},"allOf":[{"$ref":"#/$defs/)" +
                      std::string(path) + "\"}]}",
                  {"/allOf/0", "points to nothing"});
  const auto first = grammar_of(R"({"$defs":{"a/b%":[{"const":1}]},"$ref":"#/$defs/a~1b%25/0"})");
  BOOST_TEST((accepts(first, "1") && !accepts(first, "2")));
}

// Which of them other keywords accept depends on values within them.
BOOST_AUTO_TEST_CASE(values_within_values_are_accepted) {
  const auto grammar =
      compile_constraint(R"({"schema":{"enum":[[1],[2],[3]],"items":{"enum":[1,3],"minimum":2}}})");
  BOOST_TEST(accepts(grammar, "[3]"));
  BOOST_TEST(!accepts(grammar, "[1]"));
  BOOST_TEST(!accepts(grammar, "[2]"));
}

// Its oneOf says all that it says.
BOOST_AUTO_TEST_CASE(a_discriminator_beside_oneOf_adds_nothing) {
  const std::string cat = R"({"type":"object","properties":{"kind":{"const":"cat"}},"required":["kind"]})",
                    dog = R"({"type":"object","properties":{"kind":{"const":"dog"}},"required":["kind"]})";
  const std::string named = R"("discriminator":{"propertyName":"kind","mapping":{"cat":"#/$defs/Cat"}})";
  const auto pet = grammar_of(R"({"type":"object",)" + named + R"(,"oneOf":[)" + cat + "," + dog + "]}");
  BOOST_TEST(accepts(pet, R"({"kind":"cat"})"));
  BOOST_TEST(!accepts(pet, R"({"kind":"cow"})"));
  check_refused(R"({"type":"object",)" + named + "}", {"discriminator"});
}

// As ECMA-262 reads it without the flag u. Spaces are those of ECMA-262 and of Python.
BOOST_AUTO_TEST_CASE(a_hyphen_beside_a_class_is_itself) {
  const auto takes = [](const std::string& pattern, const std::string& text) {
    return accepts(grammar_of(nlohmann::json{{"type", "string"}, {"pattern", pattern}}.dump()),
                   nlohmann::json(text).dump());
  };
  for (const char* text : {"a-b.c", "-", "_."}) BOOST_TEST(takes(R"(^[\w-\.]+$)", text));
  BOOST_TEST(!takes(R"(^[\w-\.]+$)", "a/b"));
  for (const char* text : {"+-7", "-"}) BOOST_TEST(takes(R"(^[+-\d]+$)", text));
  BOOST_TEST(!takes(R"(^[+-\d]+$)", ","));
  BOOST_TEST(takes(R"(^[^\w-\.]$)", "/"));
  BOOST_TEST(!takes(R"(^[^\w-\.]$)", "-"));
  check_refused(R"({"pattern":"[z-a]"})", {"a range in a class"});
  for (const char* doubtful : {"\uFEFF", "\u0085", "\x1c"})
    for (const char* pattern : {"^\\s$", "^\\S$", "^[\\s]$", "^[^\\s]$", "^[^\\S]$"})
      BOOST_TEST(!takes(pattern, doubtful), pattern);
  for (const char* space : {" ", "\t", "\u00A0"}) {
    BOOST_TEST((takes("^\\s$", space) && takes("^[^\\S]$", space)));
    BOOST_TEST((!takes("^\\S$", space) && !takes("^[^\\s]$", space)));
  }
}

// take() takes all or nothing.
BOOST_AUTO_TEST_CASE(bytes_that_do_not_fit_change_nothing) {
  Constraint constraint(compile_constraint(R"({"schema":{"enum":["abc","abd"]}})"), demo_vocabulary().trie());
  BOOST_TEST(constraint.take("\"ab"));
  BOOST_TEST(!constraint.take("c\"x"));
  BOOST_TEST(!constraint.take("x"));
  BOOST_TEST(!constraint.is_complete());
  BOOST_TEST(constraint.take("d\""));
  BOOST_TEST(constraint.is_complete());
  BOOST_TEST(!constraint.take(" "));
  BOOST_TEST(constraint.is_complete());
}

// Answers that share a grammar do not meet: in turns they get the masks that each gets alone.
BOOST_AUTO_TEST_CASE(answers_that_share_a_grammar_do_not_meet) {
  const ConstrainedVocabulary& vocabulary = crossing_vocabulary();
  const std::string schema = R"({"schema":{"type":"array","items":{"type":["string","integer"]}}})";
  const std::vector<std::string> texts = {R"(["a","bc",1])", "[12,345,6,7]", R"(["","\n"])"};
  const auto masks_alone = [&](const std::string& text) {
    Constraint constraint(compile_constraint(schema), vocabulary.trie());
    std::vector<std::vector<uint32_t>> masks;
    for (const char byte : text) {
      masks.push_back(mask_of(constraint, vocabulary));
      BOOST_REQUIRE(constraint.take({&byte, 1}));
    }
    return masks;
  };
  const std::shared_ptr<Grammar> shared = compile_constraint(schema);
  std::vector<Constraint> together(texts.size(), Constraint(shared, vocabulary.trie()));
  for (size_t at = 0; at < 13; ++at)
    for (size_t i = 0; i < texts.size(); ++i) {
      if (at >= texts[i].size()) continue;
      BOOST_TEST(mask_of(together[i], vocabulary) == masks_alone(texts[i])[at]);
      BOOST_REQUIRE(together[i].take(texts[i].substr(at, 1)));
    }
}

// Those that were asked for last stay, as many as there is room for.
BOOST_AUTO_TEST_CASE(constraints_are_kept_by_their_bytes) {
  Constraints constraints(1, 4 << 20);
  const auto asked = [&](const std::string& value) {
    const std::shared_ptr<Compiled> one = constraints.ask(R"({"schema":{"const":")" + value + "\"}}");
    while (!one->is_done) constraints.wait();
    return std::weak_ptr(one);
  };
  const auto first = asked("first"), second = asked("second");
  for (int i = 0; i < 200; ++i) asked(std::to_string(i));
  BOOST_TEST(asked("first").lock() == first.lock());
  for (int i = 0; i < 10; ++i) asked(std::to_string(i) + std::string(20000, 'x'));
  BOOST_TEST(!first.expired());
  BOOST_TEST(!second.expired());
  const auto large = asked(std::string(700000, 'x'));
  asked("what is there counts when the next one comes");
  BOOST_TEST(first.expired());
  BOOST_TEST(!large.expired());
  asked(std::string(600000, 'x'));
  asked("so does this");
  BOOST_TEST(large.expired());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsv32
