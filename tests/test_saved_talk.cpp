// cli/chat/talk, the talks: what is written comes back, what is not a talk is refused with its reason, and
// the one used last is found.
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/options/json.h"
#include "cli/options/options.h"
#include "tests/support/contains.h"
#include "tests/support/talk_fixture.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(saved_talk)

using namespace dsv32::talk_test;
namespace fs = std::filesystem;
namespace tt = boost::test_tools;

namespace {

std::string parse_complaint(const std::string& json) {
  return complaint([&] { parse_talk(json); });
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_field_comes_back) {
  const Talk talk = make_talk();
  check_same(parse_talk(talk_json(talk)), talk);
  Talk other = talk;
  other.thinking = true, other.used_ms = 0, other.model.clear(), other.messages.clear();
  check_same(parse_talk(talk_json(other)), other);
  other.used_ms = INT64_MAX;
  other.messages = {{Message::Role::system, "only this, as after /clear", {}}};
  check_same(parse_talk(talk_json(other)), other);
  const std::string json = talk_json(talk);
  BOOST_TEST(std::ranges::count(json, '\n') == 1);
}

// A question may come before all results are there, and a result may wait for its answer.
BOOST_AUTO_TEST_CASE(calls_and_their_results) {
  using enum Message::Role;
  Talk talk = make_talk();
  talk.messages = {{user, "q", ""},
                   {assistant, "text", "why", {{"f", R"({"b":1,"a":[]})"}, {"g", "{}"}}, "\n\n<calls>"},
                   {tool, "one", ""}};
  const std::string json = talk_json(talk);
  const Talk read = parse_talk(json);
  check_same(read, talk);
  BOOST_REQUIRE(read.messages[1].calls.size() == 2u);
  BOOST_TEST(read.messages[1].calls[0].arguments == R"({"b":1,"a":[]})");
  BOOST_TEST(read.messages[1].calls_text == "\n\n<calls>");
  BOOST_REQUIRE(read.next_call());
  BOOST_TEST(read.next_call()->name == "g");
  BOOST_TEST(!read.awaits_answer());
  Talk next = read;
  next.add_result("two");
  BOOST_TEST((!next.next_call() && next.awaits_answer()));
  check_same(parse_talk(talk_json(next)), next);
  next.messages.push_back({assistant, "done", ""});
  BOOST_TEST((!next.next_call() && !next.awaits_answer()));
  check_same(parse_talk(talk_json(next)), next);
  next = read;
  next.ask("never mind");
  check_same(parse_talk(talk_json(next)), next);
  BOOST_TEST(contains(parse_complaint(replaced(json, R"("role":"tool")", R"("role":"assistant")")),
                      "messages[2].role is 'assistant', expected tool"));
  BOOST_TEST(contains(parse_complaint(replaced(json, R"("name":"f",)", "")),
                      "messages[1].tool_calls.function.name is missing"));
  BOOST_TEST(contains(parse_complaint(replaced(json, R"("tool_calls":[)", R"("tool_calls":[7,)")),
                      "is no JSON object"));
}

BOOST_AUTO_TEST_CASE(bytes_that_json_cannot_carry_are_replaced) {
  Talk talk = make_talk();
  talk.messages[2].content = "cut \xe8\xaa";
  BOOST_TEST(parse_talk(talk_json(talk)).messages[2].content == "cut \xef\xbf\xbd");
}

BOOST_AUTO_TEST_CASE(names) {
  Fixture f;
  for (const std::string& name : {std::string("a"), std::string("-n"), std::string("A.b_c-9"),
                                  std::string("_"), std::string("x.json"), std::string(64, 'z')}) {
    f.folder.save(name, make_talk());
    BOOST_TEST(f.folder.load(name).has_value(), name);
  }
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string(".a"), std::string("a/b"),
        std::string("/a"), std::string("a b"), std::string("a\n"), std::string("a\0b", 3),
        std::string("\u00e9"), std::string("a\\"), std::string("*"), std::string("a:b"),
        std::string("\x1b[31m"), std::string(65, 'z')}) {
    const std::string said = complaint([&] { check_talk_name(name); });
    BOOST_TEST(contains(said, "is no name for a talk"), "'" << name << "' is taken");
    BOOST_TEST(!contains(said, "\x1b"));
    BOOST_CHECK_THROW(f.folder.load(name), Error);
    BOOST_CHECK_THROW(f.folder.save(name, make_talk()), Error);
    if (name.find('\0') == name.npos)  // which a command line cannot carry
      BOOST_CHECK_THROW(parse_options(Command::chat, {"--talk", name}), Error);
  }
  BOOST_TEST(names_in(f.path).size() == 6u);
}

BOOST_AUTO_TEST_CASE(missing_keys_and_wrong_types) {
  const nlohmann::json good = nlohmann::json::parse(talk_json(make_talk()));
  for (const char* key : {"used_ms", "model", "thinking", "messages"}) {
    nlohmann::json bad = good;
    bad.erase(key);
    BOOST_TEST(contains(parse_complaint(bad.dump()), std::string("damaged, ") + key + " is missing"));
    for (const Json& value :
         {Json(nullptr), Json(-1), Json(1.5), Json(Json::object()), Json(Json::array({1}))}) {
      bad[key] = value;
      BOOST_TEST(contains(parse_complaint(bad.dump()), "it is damaged, "), key << " may be " << value.dump());
    }
  }
  for (const char* key : {"role", "content", "reasoning_content"}) {
    nlohmann::json bad = good;
    for (const Json& value : {Json(1), Json(true), Json(Json::object())}) {
      bad["messages"][3][key] = value;
      BOOST_TEST(contains(parse_complaint(bad.dump()),
                          std::string("messages[3].") + key + " is " + value.dump() + ", expected a text"));
    }
  }
  for (const Json& value :
       {Json(nullptr), Json(1), Json::array({1}), Json::array({{1, 2, 3}}), Json::array({{-1, 2}}),
        Json::array({{1, 1.5}}), Json::array({{1, UINT64_MAX}})}) {
    nlohmann::json bad = good;
    bad["decoded"] = value;
    BOOST_TEST(contains(parse_complaint(bad.dump()), "it is damaged, decoded"), value.dump());
  }
  nlohmann::json former = good;  // of a time when this was not saved
  former.erase("decoded");
  BOOST_TEST(parse_talk(former.dump()).decoded.empty());
  nlohmann::json extended = good;
  extended["more"] = {{"unknown", 1}};
  check_same(parse_talk(extended.dump()), make_talk());
  extended["messages"][1]["more"] = true;
  BOOST_TEST(contains(parse_complaint(extended.dump()), "messages[1].more is not supported"));
  extended["messages"][1].erase("more");
  extended["used_ms"] = UINT64_MAX;
  BOOST_TEST(contains(parse_complaint(extended.dump()), "used_ms"));
}

BOOST_AUTO_TEST_CASE(roles_take_turns) {
  const auto said = [](const std::vector<const char*>& roles) {
    nlohmann::json bad = nlohmann::json::parse(talk_json(make_talk()));
    bad["messages"] = Json::array();
    for (const char* role : roles) bad["messages"].push_back({{"role", role}, {"content", ""}});
    return parse_complaint(bad.dump());
  };
  BOOST_TEST(said({}) == "");
  BOOST_TEST(said({"system"}) == "");
  BOOST_TEST(said({"user", "assistant"}) == "");
  BOOST_TEST(said({"user"}) == "");  // asked, and not answered yet
  BOOST_TEST(contains(said({"assistant"}), "messages[0].role is 'assistant', expected user"));
  BOOST_TEST(contains(said({"system", "system"}), "messages[1].role is 'system', expected user"));
  BOOST_TEST(contains(said({"user", "user"}), "messages[1].role is 'user', expected assistant"));
  BOOST_TEST(contains(said({"user", "assistant", "tool"}), "messages[2].role is 'tool', expected user"));
  BOOST_TEST(!contains(said({"\x1b[31m"}), "\x1b"));
}

BOOST_AUTO_TEST_CASE(versions) {
  nlohmann::json talk = nlohmann::json::parse(talk_json(make_talk())), former = talk;
  former["dsv32_talk"] = 1;
  for (auto& message : former["messages"]) {
    message["reasoning"] = message["reasoning_content"];
    message.erase("reasoning_content");
  }
  check_same(parse_talk(former.dump()), make_talk());
  talk["dsv32_talk"] = 3;
  talk["messages"] = "in some new form";
  BOOST_TEST(contains(parse_complaint(talk.dump()), "newer version 3, this program reads version 2"));
  for (const Json& value : {Json(0), Json(-1), Json("1"), Json(1.0), Json(nullptr)}) {
    talk["dsv32_talk"] = value;
    BOOST_TEST(contains(parse_complaint(talk.dump()), "is no version"), value.dump());
  }
  talk.erase("dsv32_talk");
  for (const std::string& other :
       {talk.dump(), std::string("{}"), std::string("[]"), std::string("1"), std::string("null")})
    BOOST_TEST(contains(parse_complaint(other), "it is no talk of dsv32"), other);
}

// Cut anywhere, and any one byte changed: refused, or a talk all the same, and never anything but
// Error{usage}.
BOOST_AUTO_TEST_CASE(damage) {
  const std::string json = talk_json(make_talk());
  for (size_t n = 0; n + 1 < json.size(); ++n)
    BOOST_TEST(contains(parse_complaint(json.substr(0, n)), "it is damaged, invalid JSON at byte"));
  size_t n_refused = 0;
  for (size_t at = 0; at < json.size(); ++at)
    for (const int flip : {0x01, 0x04, 0x10, 0x80}) {
      std::string bad = json;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      n_refused += !parse_complaint(bad).empty();
    }
  BOOST_TEST(n_refused > json.size());
  BOOST_TEST(contains(parse_complaint(json + "x"), "invalid JSON"));
  const std::string deep(1 << 20, '[');
  BOOST_TEST(contains(parse_complaint(deep), "the JSON is nested too deeply"));
  BOOST_TEST(contains(parse_complaint("{\"dsv32_talk\":" + deep), "the JSON is nested too deeply"));
}

BOOST_AUTO_TEST_CASE(the_talk_used_last) {
  Fixture f;
  BOOST_TEST(!f.folder.latest().has_value());
  const auto save = [&](const char* name, int64_t used_ms) {
    Talk talk = make_talk();
    talk.used_ms = used_ms;
    f.folder.save(name, talk);
  };
  save("b", 2000), save("a", 1000), save("c", 1500);
  BOOST_TEST(f.folder.latest().value() == "b");
  set_clock(f.file("a.json"), 4'000'000'000);  // as copying does
  BOOST_TEST(f.folder.latest().value() == "b");
  save("c", 2000);
  BOOST_TEST(f.folder.latest().value() == "b");
  save("c", 2001);
  BOOST_TEST(f.folder.latest().value() == "c");
  // The beginning of a file is enough; and another program may have put its keys in another order.
  Talk talk = make_talk();
  talk.used_ms = 3000;
  f.folder.save("long", talk);
  fs::resize_file(f.file("long.json"), talk_json(talk).size() / 2);
  set_clock(f.file("long.json"), 1);
  BOOST_TEST(f.folder.latest().value() == "long");
  nlohmann::json sorted = nlohmann::json::parse(talk_json(talk));  // by their names
  sorted["used_ms"] = 3001;
  write_file(f.file("sorted.json"), sorted.dump(2));
  set_clock(f.file("sorted.json"), 1);
  BOOST_TEST(f.folder.latest().value() == "sorted");
}

// Such a talk counts with the clock of its file: one that was used last is complained about, an old one is in
// nobody's way.
BOOST_AUTO_TEST_CASE(a_last_talk_that_is_damaged_is_not_passed_over) {
  Fixture f;
  Talk talk = make_talk();
  talk.used_ms = 5'000'000;
  f.folder.save("good", talk);
  const std::string inner = R"({"dsv32_talk":1,"messages":[{"used_ms":9000000}],"used_ms":"9000000"})";
  for (const std::string& bytes :
       {std::string("{"), std::string(), inner, std::string(R"({"used_ms":-9000000})")}) {
    write_file(f.file("bad.json"), bytes);
    set_clock(f.file("bad.json"), 4999);
    BOOST_TEST(f.folder.latest().value() == "good");
    set_clock(f.file("bad.json"), 5001);
    BOOST_TEST(f.folder.latest().value() == "bad");
  }
  fs::remove(f.file("bad.json"));
  fs::create_symlink("good.json", f.file("link.json"));
  set_clock(f.file("link.json"), 5001);
  BOOST_TEST(f.folder.latest().value() == "link");
  BOOST_CHECK_THROW(f.folder.load("link"), Error);
  fs::remove(f.file("link.json"));
  for (const char* other : {"notes.txt", ".hidden.json", "a b.json", ".json", ".good.0123456789abcdef.tmp"})
    write_file(f.file(other), talk_json(make_talk()));
  BOOST_TEST(f.folder.latest().value() == "good");
}

BOOST_AUTO_TEST_CASE(how_long_ago) {
  const auto ago = [](int64_t seconds) { return time_ago(1'000'000, 1'000'000 + seconds * 1000); };
  BOOST_TEST(ago(-100) == "just now");
  BOOST_TEST(ago(0) == "just now");
  BOOST_TEST(ago(59) == "just now");
  BOOST_TEST(ago(60) == "1 minute ago");
  BOOST_TEST(ago(3599) == "59 minutes ago");
  BOOST_TEST(ago(3600) == "1 hour ago");
  BOOST_TEST(ago(86399) == "23 hours ago");
  BOOST_TEST(ago(86400 * 3) == "3 days ago");
  BOOST_TEST(ago(86400 * 365) == "1 year ago");
  BOOST_TEST(time_ago(INT64_MAX, 0) == "just now");
}

BOOST_AUTO_TEST_CASE(flags) {
  for (const char* flag : {"--talk", "--session"})
    BOOST_TEST(parse_options(Command::chat, {flag, "work"}).talk == "work");
  BOOST_TEST(parse_options(Command::chat, {"--continue"}).continues);
  const Options neither = parse_options(Command::chat, {});
  BOOST_TEST((neither.talk.empty() && !neither.continues && !neither.is_thinking_given()));
  BOOST_TEST(parse_options(Command::chat, {"--no-think"}).is_thinking_given());
  BOOST_TEST(parse_options(Command::chat, {"--think"}).is_thinking_given());
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--talk", "a", "--continue"},
                                                {"--continue", "--talk=a"},
                                                {"--talk"},
                                                {"--talk="},
                                                {"--continue=a"}})
    BOOST_CHECK_THROW(parse_options(Command::chat, words), Error);
  BOOST_TEST((neither.keeps_talk && neither.keeps_history));
  BOOST_TEST(!parse_options(Command::chat, {"--no-save"}).keeps_talk);
  BOOST_TEST(!parse_options(Command::chat, {"--no-history"}).keeps_history);
  BOOST_TEST(parse_options(Command::run, {"--talk", "a", "hi"}).talk == "a");
  BOOST_CHECK_THROW(parse_options(Command::run, {"--talk", "a", "--raw", "hi"}), Error);
  BOOST_CHECK_THROW(parse_options(Command::run, {"--continue", "--lines"}), Error);
}

BOOST_AUTO_TEST_SUITE_END()
