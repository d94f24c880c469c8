// The lists of generation options and of flags: each option is in every place that is made of them, and so is
// one more, whose row is all that this program adds.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <sstream>

#include "base/text.h"
#include "cli/batch/batch_item.h"
#include "cli/chat/chat.h"
#include "cli/inspect/inspect.h"
#include "cli/options/flags.h"
#include "cli/warm/warm_wire.h"
#include "tests/support/contains.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/settings_file.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(option_lists)

namespace {

// Whether this program was started as `unit_tests ... -- one-more`.
bool has_one_more() {
  const auto& suite = boost::unit_test::framework::master_test_suite();
  return suite.argc > 1 && suite.argv[suite.argc - 1] == std::string("one-more");
}

// Runs this case in a program of its own with one more row in each list, unless this is that program. Other
// cases talk to programs that have the lists as they are.
bool is_run_with_one_more(const std::string& name) {
  if (has_one_more()) return false;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string line = "'" + program + "' --run_test=option_lists/" + name +
                           " --log_sink=stderr --report_level=no -- one-more >/dev/null";
  BOOST_TEST(std::system(line.c_str()) == 0);
  return true;
}

// A row for each list, over fields that no other row sets in these places. Added before any test, since
// flags() is made from both lists once.
struct OneMore {
  OneMore() {
    if (!has_one_more()) return;
    generation().push_back({"one_more",
                            [](GenerationOptions& o) -> GenerationOption::Field { return &o.max_tokens; }, -1,
                            kMostTokenLimit, "one-more", "one-more,M", "N", "an option more", true});
    Flag flag = *std::ranges::find(engine(), "host-mem", &Flag::name);
    flag.names = "one-more-engine", flag.about = "an engine more", flag.unset = nullptr;
    flag.field = [](Options& o) {
      return FlagField{[&o](const FlagValue& value) { o.output_path = value.text; },
                       [&o] { return o.output_path; }};
    };
    engine().push_back(flag);
  }
  static std::vector<GenerationOption>& generation() {
    return const_cast<std::vector<GenerationOption>&>(generation_options());
  }
  static std::vector<Flag>& engine() { return const_cast<std::vector<Flag>&>(engine_flags()); }
};
BOOST_TEST_GLOBAL_FIXTURE(OneMore);

// With single spaces, as no window breaks it.
std::string unbroken(const std::string& text) {
  std::istringstream words(text);
  std::string out;
  for (std::string word; words >> word;) out += word + " ";
  return out;
}

// A value that the option does not have by itself.
void change(bool* field) { *field = !*field; }
void change(int64_t* field) { *field = *field == 7 ? 8 : 7; }
void change(uint64_t* field) { *field += 1; }
void change(float* field) { *field = 0.5f; }
void change(std::string* field) { *field = R"({"schema":{}})"; }
void change(std::vector<std::string>* field) { *field = {"\xff", "b"}; }

GenerationOptions changed(const GenerationOption& option) {
  GenerationOptions options;
  std::visit([](auto* field) { change(field); }, option.field(options));
  return options;
}

std::string text_in(const GenerationOption& option, GenerationOptions options) {
  return text_of(option.field(options));
}

Hash256 hash_of(const GenerationOptions& options) {
  ChatRequest request;
  request.options = options;
  request.has_seed = true;
  LineMaker maker(Hash256{}, request);
  Hash256 hash{};
  std::ranges::copy(maker.from_text(1, "hello").digest, hash.begin());
  return hash;
}

// Of a flag that is not what it is by default; nothing where no text of these is taken.
std::optional<Options> changed(const Flag& flag) {
  for (const char* text :
       {"7", "2", "cpu", "1G", "bf16", "lfu", "back", "all", "0.5", "some", "true", "rows"})
    try {
      Options options;
      flag.field(options).set({flag.name(), text});
      if (flag.text_in(options) != flag.text_in({})) return options;
    } catch (const Error&) {
    }
  return std::nullopt;
}

// With what the command cannot do without.
std::vector<std::string> asked(Command command, std::vector<std::string> args) {
  if (command == Command::batch) args.insert(args.end(), {"-i", "-", "-o", "-"});
  if (command == Command::bench) args.push_back("--synthetic");
  return args;
}

// What the shells' lists have for a command.
std::string offers(Command command) {
  const std::string script = completion_script("bash"), begin = "'" + row_of(command).name() + " '*) list='";
  const size_t at = script.find(begin) + begin.size();
  return " " + script.substr(at, script.find('\'', at) - at) + " ";
}

// Whether help, completions and the manual page tell of the flag with this text.
bool is_told_of(Command command, const std::string& name, const std::string& help) {
  return contains(unbroken(command_help(command)), help) && contains(offers(command), " --" + name + " ") &&
         contains(unbroken(replaced(manual_page(), "\\-", "-")), help);
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_generation_option_goes_everywhere) {
  for (const GenerationOption& option : generation_options()) {
    const GenerationOptions options = changed(option);
    const std::string value = text_in(option, options);
    BOOST_TEST(value != text_in(option, {}), option.name);
    Request request;
    request.options = options;
    request.prompt = {1};
    const Json json = request_json(request);
    JsonFields fields(json, "it");
    BOOST_TEST(text_in(option, read_request(fields, {}).options) == value, option.name);
    BOOST_TEST((hash_of(options) != hash_of({})), option.name);
    if (option.most > 1) {
      GenerationOptions wrong = options;
      if (const auto field = option.field(wrong); std::holds_alternative<int64_t*>(field))
        *std::get<int64_t*>(field) = int64_t{1} << 40;
      else
        *std::get<float*>(field) = 1e9f;
      BOOST_CHECK_THROW(wrong.check(), Error);
    }
    if (option.is_batch_field) {
      LineMaker maker(Hash256{}, {});
      const Json line = {{"prompt", "hello"}, {option.name, Json::parse(value)}};
      BOOST_TEST(text_in(option, maker.from_json(1, line.dump()).request.options) == value, option.name);
    }
    if (option.setting) {
      BOOST_TEST(contains(unbroken(Conversation::help()), option.setting), option.name);
      BOOST_TEST(find_flag(flags_of(Command::chat), option.setting), option.name);
    }
    if (option.flag)
      BOOST_TEST(std::ranges::any_of(flags(), [&](const Flag& flag) { return flag.option == &option; }));
    BOOST_TEST((option.flag || option.is_batch_field ||
                std::ranges::count(
                    std::vector<std::string>{"seed", "thinking", "top_logprobs", "constraint", "tools"},
                    option.name)),
               option.name << " cannot be given");
  }
}

// Help, manual page and completions of each command that takes it.
BOOST_AUTO_TEST_CASE(every_flag_is_told_of_everywhere) {
  const std::string page = unbroken(replaced(manual_page(), "\\-", "-"));
  for (const CommandRow& row : commands()) {
    const std::string help = unbroken(command_help(row.command));
    for (const Flag* flag : flags_of(row.command)) {
      BOOST_TEST(contains(help, unbroken(flag->help())), row.name() << " " << flag->name());
      BOOST_TEST(contains(page, unbroken(replaced(flag->help(), "\\", "\\e") + ".")), flag->name());
      for (const std::string& name : flag->spellings())
        BOOST_TEST((name.size() == 1 || contains(offers(row.command), " --" + name + " ")), name);
    }
  }
}

// A process answers for those flags alone that it was started with.
BOOST_AUTO_TEST_CASE(every_flag_of_an_engine_names_its_socket) {
  const GgufImage image = GgufWriter().image();
  const GgufFile file(image.bytes, "a.gguf");
  const std::vector<std::string> others{"model", "with"};  // the files themselves count
  size_t n_flags = 0;
  for (const Flag* flag : flags_of(Command::warm_start)) {
    if (flag->group != std::string("Model") && flag->group != std::string("Prefix cache")) continue;
    if (std::ranges::count(others, flag->name()) > 0) continue;
    const std::optional<Options> options = changed(*flag);
    BOOST_REQUIRE_MESSAGE(options, flag->name() << " took none of the values");
    BOOST_TEST(warm_path(*options, file) != warm_path({}, file), flag->name());
    ++n_flags;
  }
  BOOST_TEST(n_flags == 20u);
  Options away, elsewhere;  // what is not used does not count
  away.uses_cache = elsewhere.uses_cache = false;
  elsewhere.cache.directory = "/elsewhere";
  BOOST_TEST(warm_path(away, file) == warm_path(elsewhere, file));
}

BOOST_AUTO_TEST_CASE(one_more_row_of_a_generation_option_is_enough) {
  if (is_run_with_one_more("one_more_row_of_a_generation_option_is_enough")) return;
  for (const Command command : {Command::run, Command::batch, Command::chat}) {
    BOOST_TEST(parse_options(command, asked(command, {"--one-more", "7"})).generation.max_tokens == 7);
    BOOST_TEST(parse_options(command, asked(command, {"-M", "7"})).generation.max_tokens == 7);
    BOOST_CHECK_THROW(parse_options(command, asked(command, {"--one-more", "-2"})), Error);
    BOOST_TEST(is_told_of(command, "one-more", "an option more (default: -1)"));
    const SettingsFile file("--one-more=9\n");
    BOOST_TEST(parse_options(command, asked(command, {})).generation.max_tokens == 9);
  }
  BOOST_TEST(!is_told_of(Command::check, "one-more", "an option more"));
  GenerationOptions options;
  options.max_tokens = 7;
  BOOST_TEST(request_json({nullptr, nullptr, {1}, options}).at("one_more") == 7);
  options.max_tokens = -2;
  BOOST_CHECK_THROW(options.check(), Error);
  LineMaker maker(Hash256{}, {});
  const BatchItem item = maker.from_json(1, R"({"prompt": "hello", "one_more": 7})");
  BOOST_TEST(item.request.options.max_tokens == 7);
  BOOST_TEST(std::ranges::count(chat_settings(), "one-more") == 1);
  BOOST_TEST(contains(unbroken(Conversation::help()), "one-more"));
}

BOOST_AUTO_TEST_CASE(one_more_row_of_an_engine_flag_is_enough) {
  if (is_run_with_one_more("one_more_row_of_an_engine_flag_is_enough")) return;
  for (const Command command : {Command::run, Command::warm_start, Command::check, Command::bench}) {
    BOOST_TEST(parse_options(command, asked(command, {"--one-more-engine", "7"})).output_path == "7");
    BOOST_TEST(is_told_of(command, "one-more-engine", "an engine more"));
    const SettingsFile file("--one-more-engine=9\n");
    BOOST_TEST(parse_options(command, asked(command, {})).output_path == "9");
  }
  const GgufImage image = GgufWriter().image();
  const GgufFile file(image.bytes, "a.gguf");
  Options other;
  other.output_path = "7";
  BOOST_TEST(warm_path(other, file) != warm_path({}, file));
}

// What the help shows is read as what it was.
BOOST_AUTO_TEST_CASE(a_value_is_shown_as_it_is_typed) {
  for (const Flag& flag : flags()) {
    Options none;
    const std::optional<Options> options = flag.field(none).text && flag.value ? changed(flag) : std::nullopt;
    if (!options) continue;
    Options again;
    flag.field(again).set({flag.name(), flag.text_in(*options)});
    BOOST_TEST(flag.text_in(again) == flag.text_in(*options), flag.name());
  }
}

BOOST_AUTO_TEST_SUITE_END()
