// cli/options and cli/flags: what a command line means, and what is said about a wrong one.
//
// The exit codes and the one line on standard error are checked on the real binary by test_cli.sh.
#include <boost/test/unit_test.hpp>

#include <set>

#include "base/error.h"
#include "base/text.h"
#include "cli/inspect/inspect.h"
#include "cli/options/flags.h"
#include "cli/options/options.h"
#include "cli/options/schema.h"
#include "tests/support/contains.h"
#include "tests/support/settings_file.h"
#include "tests/support/temp_dir.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(options)

namespace {

using Words = std::vector<std::string>;

Options run_options(const Words& words) { return parse_options(Command::run, words); }

// The message of the Error{usage} that the words cause; empty when there is none.
std::string complaint(Command command, const Words& words) {
  try {
    parse_options(command, words);
  } catch (const Error& error) {
    BOOST_TEST((error.kind() == ErrorKind::usage));
    return error.what();
  }
  return {};
}

}  // namespace

BOOST_AUTO_TEST_CASE(defaults) {
  const Options options = run_options({"hi"});
  BOOST_TEST(options.generation.max_answer == -1);
  BOOST_TEST(options.generation.sampling.temperature == 1.0f);
  BOOST_TEST(options.generation.sampling.top_k == 0);
  BOOST_TEST(options.generation.sampling.top_p == 0.95f);
  BOOST_TEST(options.generation.sampling.min_p == 0.0f);
  BOOST_TEST(options.generation.thinking);
  BOOST_TEST(options.generation.n_top_logprobs == -1);
  BOOST_TEST(!options.seed.has_value());
  BOOST_TEST(!options.engine.context.has_value());
  BOOST_TEST(!options.engine.topk_buffer.has_value());
  BOOST_TEST((options.engine.kv_type == KvType::fp8));
  BOOST_TEST((options.shown_thinking() == ThinkingDisplay::show));
}

BOOST_AUTO_TEST_CASE(every_spelling_of_a_flag) {
  for (const Words& words : {Words{"-n", "5"}, Words{"-n5"}, Words{"--max-tokens", "5"},
                             Words{"--max-tokens=5"}, Words{"--max_tokens", "5"}, Words{"--predict=5"},
                             Words{"--n-predict", "5"}, Words{"--n_predict=5"}, Words{"--tokens", "5"}})
    BOOST_TEST(run_options(words).generation.max_answer == 5);
  BOOST_TEST(run_options({"--ctx-size", "64"}).engine.context.value() == 64);
  BOOST_TEST(run_options({"--temperature=0.5"}).generation.sampling.temperature == 0.5f);
  BOOST_TEST(!run_options({"--nothink"}).generation.thinking);
  BOOST_TEST(!run_options({"--reasoning", "off"}).generation.thinking);
  BOOST_TEST(run_options({"--reasoning=on"}).generation.thinking);
  BOOST_TEST(run_options({"--reasoning-budget", "5"}).generation.max_thinking == 5);
  BOOST_TEST(run_options({"--system-prompt", "S"}).system_text == "S");
  BOOST_TEST(run_options({"--json-schema", "true"}).schema == "true");
  const Options batch =
      parse_options(Command::batch, {"--input-file", "in", "--output-file", "out", "--no-think"});
  BOOST_TEST((batch.batch.input_path == "in" && batch.output_path == "out"));
  BOOST_TEST(run_options({"-sys", "S"}).system_text == "S");
  BOOST_TEST(run_options({"-sysf", "F"}).system_file == "F");
  const Options group = run_options({"-vn", "3"});
  BOOST_TEST((group.verbose && group.generation.max_answer == 3));
}

BOOST_AUTO_TEST_CASE(words_and_flags_in_any_order) {
  const Options options = run_options({"one", "--temp", "0", "two", "--", "--three", "-n"});
  BOOST_TEST(options.words == (Words{"one", "two", "--three", "-n"}), boost::test_tools::per_element());
  BOOST_TEST(options.generation.sampling.temperature == 0.0f);
}

// A value may look like a flag, hold commas, line ends, equals signs, or nothing at all.
BOOST_AUTO_TEST_CASE(values_are_left_as_they_are) {
  BOOST_TEST(run_options({"-p", "-x y\nz"}).prompt.value() == "-x y\nz");
  BOOST_TEST(run_options({"--prompt=--max_tokens"}).prompt.value() == "--max_tokens");
  BOOST_TEST(run_options({"--prompt=a=b,c\nd"}).prompt.value() == "a=b,c\nd");
  BOOST_TEST(run_options({"--prompt="}).prompt.value() == "");
  BOOST_TEST(run_options({"-f", "a,b", "--file", "-"}).files == (Words{"a,b", "-"}),
             boost::test_tools::per_element());
  BOOST_TEST(run_options({"--stop", ",", "--stop=\n\n"}).generation.stops == (Words{",", "\n\n"}),
             boost::test_tools::per_element());
  BOOST_TEST(run_options({"-p", std::string(1 << 20, 'x')}).prompt.value().size() == 1u << 20);
}

BOOST_AUTO_TEST_CASE(numbers_at_their_bounds) {
  BOOST_TEST(run_options({"--seed", "0"}).seed.value() == 0u);
  BOOST_TEST(run_options({"--seed", "18446744073709551615"}).seed.value() == UINT64_MAX);
  BOOST_TEST(!run_options({"--seed", "-1"}).seed.has_value());  // random
  BOOST_TEST(!complaint(Command::batch, {"--seed", "-1", "in", "-o", "out"}).empty());
  BOOST_TEST(run_options({"--top-k", "2147483647"}).generation.sampling.top_k == INT32_MAX);
  BOOST_TEST(run_options({"--top-k", "-1"}).generation.sampling.top_k == -1);
  BOOST_TEST(run_options({"-n", "2147483647"}).generation.max_answer == INT32_MAX);
  BOOST_TEST(run_options({"-n", "0"}).generation.max_answer == 0);
  BOOST_TEST(run_options({"--topk-buffer", "2048"}).engine.topk_buffer.value() == 2048);
  BOOST_TEST(!run_options({"--topk-buffer", "auto"}).engine.topk_buffer.has_value());
  for (const Words& words :
       {Words{"-n", "-2"}, Words{"-n", "2147483648"}, Words{"-n", "5 "}, Words{"-n", ""}, Words{"-n", "0x5"},
        Words{"-c", "0"}, Words{"--temp", "nan"}, Words{"--temp", "inf"}, Words{"--temp", "1e99"},
        Words{"--temp", "-0.1"}, Words{"--top-p", "2"}, Words{"--min-p", "-1"}, Words{"--top-k", "-2"},
        Words{"--top-k", "2147483648"}, Words{"--seed", "-2"}, Words{"--seed", "18446744073709551616"},
        Words{"--json", "--logprobs", "21"}, Words{"--topk-buffer", "-5"}})
    BOOST_TEST(!complaint(Command::run, words).empty(),
               "no complaint about " << words[0] << " " << words.back());
}

// Commands that answer draft where it pays; what is measured or looked at has no drafts unless asked for.
BOOST_AUTO_TEST_CASE(how_many_guesses) {
  using Given = std::pair<const char*, std::optional<int64_t>>;
  for (const auto& [text, n] : {Given{"auto", std::nullopt}, {"off", 0}, {"0", 0}, {"1", 1}, {"3", 3}}) {
    BOOST_TEST((run_options({"--draft", text}).engine.n_guesses == n), text);
    BOOST_TEST((parse_options(Command::bench, {"--synthetic", "--draft", text}).engine.n_guesses == n), text);
  }
  for (const Command command : {Command::run, Command::chat, Command::warm_start, Command::inspect_plan})
    BOOST_TEST(!parse_options(command, {}).engine.n_guesses, row_of(command).name());
  BOOST_TEST(!parse_options(Command::batch, {"in", "-o", "out"}).engine.n_guesses);
  for (const Command command : {Command::bench, Command::check})
    BOOST_TEST((parse_options(command, {}).engine.n_guesses == 0), row_of(command).name());
  for (const char* text : {"4", "-1", "on", ""})
    BOOST_TEST(contains(complaint(Command::run, {"--draft", text}), "--draft takes a number, off or auto"));
  const SettingsFile file("--draft=2\n");
  BOOST_TEST((parse_options(Command::batch, {"in", "-o", "out"}).engine.n_guesses == 2));
}

BOOST_AUTO_TEST_CASE(which_guesses_a_bench_takes_as_right) {
  const auto accepted = [](const char* text) {
    return parse_options(Command::bench, {"--draft", "auto", "--accept", text}).bench.accepted;
  };
  using Shares = std::vector<double>;
  BOOST_TEST(accepted("0.5") == (Shares{0.5, 0.5, 0.5}), boost::test_tools::per_element());
  BOOST_TEST(accepted("1,0.5") == (Shares{1, 0.5, 0.5}), boost::test_tools::per_element());
  BOOST_TEST(accepted("0.5,1,0") == (Shares{0.5, 1, 0}), boost::test_tools::per_element());
  for (const char* text : {"1.1", "-0.5", "", "0.5,", "1,1,1,1", "half"})
    BOOST_TEST(!complaint(Command::bench, {"--draft", "2", "--accept", text}).empty(), text);
  BOOST_TEST(contains(complaint(Command::bench, {"--accept", "1"}), "--draft"));
  BOOST_TEST(contains(complaint(Command::bench, {"--accept", "1", "--draft", "off"}), "--draft"));
}

BOOST_AUTO_TEST_CASE(complaints_name_the_flag_and_are_one_line) {
  const std::string unknown = complaint(Command::run, {"--tmep", "1"});
  BOOST_TEST(contains(unknown, "--tmep"));
  BOOST_TEST(contains(unknown, "did you mean --temp?"));
  BOOST_TEST(contains(unknown, "dsv32 run --help"));
  BOOST_TEST(contains(complaint(Command::run, {"--temp"}), "--temp needs a value"));
  BOOST_TEST(contains(complaint(Command::run, {"-n"}), "--max-tokens needs a value"));
  BOOST_TEST(contains(complaint(Command::run, {"-n", "x"}), "--max-tokens"));
  BOOST_TEST(contains(complaint(Command::run, {"-Z"}), "-Z"));
  BOOST_TEST(contains(complaint(Command::chat, {"--json"}), "--json"));  // a flag of another command
  const std::string hostile = complaint(Command::run, {"--\x1b[31m\nred"});
  BOOST_TEST(!hostile.empty());
  BOOST_TEST(!contains(hostile, "\x1b"));
  BOOST_TEST(!contains(hostile, "\n"));
}

BOOST_AUTO_TEST_CASE(flags_that_contradict_each_other) {
  for (const Words& words : {Words{"-p", "a", "b"}, Words{"--system", "a", "--system-file", "b", "c"},
                             Words{"--raw", "--system", "a", "b"}, Words{"--logprobs", "3", "a"},
                             Words{"-f", "-", "-p", "-"}, Words{"-f", "-", "-f", "-", "a"}})
    BOOST_TEST(!complaint(Command::run, words).empty(), "no complaint about " << words[0]);
  BOOST_TEST(contains(complaint(Command::chat, {"hello"}), "hello"));
}

BOOST_AUTO_TEST_CASE(what_is_given_twice_agrees) {
  for (const Words& words :
       {Words{"--temp", "0", "--temp", "1"}, Words{"-n", "1", "--predict", "2"}, Words{"-m", "a", "-m", "b"},
        Words{"--think", "--no-think"}, Words{"--think", "--reasoning", "on"}, Words{"-qv"}})
    BOOST_TEST(!complaint(Command::run, words).empty(), "no complaint about " << words[0]);
  BOOST_TEST(
      contains(complaint(Command::run, {"-n", "1", "-n", "2"}), "--max-tokens is given twice, as '1'"));
  BOOST_TEST(complaint(Command::run, {"-n", "1", "--predict", "1", "-q", "-q", "x"}).empty());
  BOOST_TEST(run_options({"-f", "a", "-f", "b"}).files.size() == 2u);
  const SettingsFile settings("--temp=0.5\n--no-think\n");
  BOOST_TEST(complaint(Command::run, {"--temp", "1", "--think"}).empty());
}

// In a command, in a mode, beside another flag. Only those of the command line: a settings file has defaults.
BOOST_AUTO_TEST_CASE(a_flag_that_does_nothing_is_an_error) {
  for (const auto& [command, words, flag] : std::vector<std::tuple<Command, Words, std::string>>{
           {Command::run, {"--no-cache", "--cache-dir", "x"}, "--cache-dir"},
           {Command::run, {"--no-cache", "--cache-size", "1G"}, "--cache-size"},
           {Command::chat, {"--no-cache", "--cache-policy", "lru"}, "--cache-policy"},
           {Command::chat, {"--no-cache", "--cache-write", "back"}, "--cache-write"},
           {Command::warm_start, {"--no-cache", "--cache-wait", "all"}, "--cache-wait"},
           {Command::warm_start, {"--no-cache", "--cache-size", "1G"}, "--cache-size"},
           {Command::inspect_plan, {"--type", "Q2_K", "--draft-model", "x"}, "--with"},
           {Command::inspect_plan, {"--on", "0+9G", "--backend", "cpu"}, "--backend"},
           {Command::inspect_plan, {"--on", "2xH100+9G", "--gpus", "0"}, "--gpus"},
           {Command::bench, {"--layers", "7"}, "--layers"},
           {Command::bench, {"--capacity", "--sequences", "1"}, "--sequences"},
           {Command::bench, {"--capacity", "--decode", "1"}, "--decode"},
           {Command::bench, {"--sequences", "2", "--n-prompt", "1"}, "--n-prompt"},
           {Command::bench, {"--capacity", "--locality", "1"}, "--locality"},
           {Command::bench, {"--capacity", "--expert-locality", "1"}, "--expert-locality"},
           {Command::bench, {"--capacity", "--draft", "1", "--accept", "1"}, "--accept"},
           {Command::batch, {"in", "-o", "-", "--retry-failed"}, "--retry-failed"},
           {Command::run, {"--parallel", "2"}, "--parallel"},
           {Command::run, {"--json", "--thinking", "show"}, "--thinking"},
           {Command::run, {"--lines", "--thinking", "hide"}, "--thinking"},
           {Command::run, {"--no-think", "--thinking", "hide"}, "--thinking"},
           {Command::run, {"--no-think", "--think-max", "1"}, "--think-max"},
           {Command::run, {"--lines", "--no-stdin"}, "--no-stdin"},
           {Command::run, {"--raw", "--chat-format", "r1"}, "--chat-format"},
           {Command::run, {"--raw", "--think"}, "--think"},
           {Command::inspect_tokens, {"--raw", "--no-think"}, "--think"},
           {Command::run, {"--raw", "--reasoning", "off"}, "--reasoning"}})
    BOOST_TEST(contains(complaint(command, words), flag + " does nothing"), joined(words));
  BOOST_TEST(contains(complaint(Command::inspect_tokens, {"--with", "x"}), "unknown flag --with"));
  for (const auto& [command, words] : std::vector<std::pair<Command, Words>>{
           {Command::batch,
            {"in", "-o", "out", "--raw", "--no-think", "--chat-format", "r1", "--think-max", "1"}},
           {Command::run, {"--lines", "--parallel", "2"}},
           {Command::chat, {"--no-think", "--think-max", "1"}},
           {Command::bench, {"--draft", "1", "--draft-model", "x"}},
           {Command::check, {"--with", "x", "--with", "y"}},
           {Command::inspect_model, {"--draft-model", "x"}}})
    BOOST_TEST(complaint(command, words) == "", joined(words));
  const SettingsFile settings("--cache-dir=x\n--parallel=2\n--think-max=3\n--layers=4\n");
  for (const Command command : {Command::run, Command::bench}) BOOST_TEST(complaint(command, {}) == "");
  BOOST_TEST(complaint(Command::run, {"--no-cache", "--no-think"}) == "");
}

BOOST_AUTO_TEST_CASE(a_schema_in_each_of_its_forms) {
  const auto constraint = [](const Words& words) { return run_options(words).generation.constraint; };
  const std::string of_file = R"({"type":"object","properties":{"b":{},"a":{}}})";
  const TempDir dir;
  const auto file = [&](const std::string& name, const std::string& text) {
    write_file(dir.file(name), text);
    return dir.file(name);
  };
  BOOST_TEST(constraint({"hi"}).empty());
  BOOST_TEST(constraint({"hi", "--schema", file("a, b", "\n" + of_file + "\n")}) ==
             R"({"schema":)" + of_file + "}");
  BOOST_TEST(constraint({"hi", "--schema", " " + of_file}) == R"({"schema":)" + of_file + "}");
  BOOST_TEST(constraint({"hi", "--schema", "true"}) == R"({"schema":true})");
  const std::string person = R"({"schema":{"type":"object","properties":{"name":{"type":"string"},)"
                             R"("age":{"type":"integer"},"tags":{"type":"string"}},)"
                             R"("required":["name","age","tags"],"additionalProperties":false}})";
  for (const char* form : {"name, age int, tags", "name str,age  int,,tags,", "name\n age int\r\n\ntags\n"})
    BOOST_TEST(constraint({"hi", "--schema", form}) == person, form);
  const Json described = parse_short_schema("ok bool : yes, or no \nfrom-to_2 float:a:b\n\xc3\xa9: ");
  BOOST_TEST(described["properties"].dump() == R"({"ok":{"type":"boolean","description":"yes, or no"},)"
                                               R"("from-to_2":{"type":"number","description":"a:b"},)"
                                               "\"\xc3\xa9\":{\"type\":\"string\"}}");
  for (const auto& [given, why] : std::vector<std::pair<std::string, std::string>>{
           {"", "--schema is empty"},
           {"absent.json", "there is no file absent.json with a schema"},
           {"my folder/absent.json", "is none of str, int, float and bool"},
           {"age integer, name", "the type 'integer' of a field"},
           {"age int in years, name", "is no name and type"},
           {"a, a int", "the field ' a int' is there twice"},
           {": what, b", "is no name and type"},
           {"{\"type\":", "the JSON given: invalid JSON"},
           {"{\"uniqueItems\":true}", "uniqueItems"},
           {".", "there is no file . with a schema"}})
    BOOST_TEST(contains(complaint(Command::run, {"hi", "--schema", given}), why), given);
  const std::string broken = file("broken", "{"), number = file("number", "7"),
                    large = file("large", std::string((1 << 20) + 1, ' '));
  BOOST_TEST(contains(complaint(Command::batch, {"in", "-o", "out", "--schema", broken}),
                      broken + ": invalid JSON"));
  BOOST_TEST(contains(complaint(Command::chat, {"--schema", number}), number + ": "));
  BOOST_TEST(contains(complaint(Command::run, {"hi", "--schema", large}), "is longer than"));
}

BOOST_AUTO_TEST_CASE(what_a_document_cannot_be_had_with) {
  for (const auto& [command, words, why] : std::vector<std::tuple<Command, Words, std::string>>{
           {Command::run, {"--schema", "true", "--stop", "}", "x"}, "--schema and --stop are both given"},
           {Command::run, {"--schema", "true", "--thinking", "stdout", "x"}, "--thinking takes show or hide"},
           {Command::run, {"--schema", "-", "-"}, "more than once"},
           {Command::run, {"--schema", "-", "-f", "-"}, "more than once"},
           {Command::run, {"--schema", "-", "--lines"}, "more than once"},
           {Command::batch, {"--schema", "-", "-", "-o", "x"}, "more than once"},
           {Command::batch, {"--schema", "-", "-i", "-", "-o", "x"}, "more than once"},
           {Command::chat, {"--schema", "-"}, "standard input"}})
    BOOST_TEST(contains(complaint(command, words), why), joined(words));
  const SettingsFile settings("--stop=x\n");
  BOOST_TEST(run_options({"--schema", "true", "hi"}).generation.stops.empty());
  BOOST_TEST(run_options({"hi"}).generation.stops.size() == 1u);
}

BOOST_AUTO_TEST_CASE(tools_and_conversations_from_files) {
  const std::string tool = R"([{"type":"function","function":{"name":"f"}}])";
  const Options options = run_options({"hi", "--tools", tool});
  BOOST_TEST((options.tools == tool && options.generation.tools && options.generation.constraint.empty()));
  BOOST_TEST(!run_options({"hi", "--tools", "[]"}).generation.tools);
  const TempDir dir;
  const std::string file = dir.file("tools.json");
  write_file(file, "\n" + replaced(tool, "\"f\"", "\"f\", \"strict\": true"));
  BOOST_TEST(parse_options(Command::chat, {"--tools", file}).generation.constraint ==
             R"({"tools":[{"name":"f","parameters":{"type":"object","properties":{}},"strict":true}],)"
             R"("choice":"auto","parallel":true})");
  BOOST_TEST(run_options({"--messages", "absent.json"}).messages == "absent.json");
  for (const auto& [command, words, why] : std::vector<std::tuple<Command, Words, std::string>>{
           {Command::run, {"--tools", "absent.json", "x"}, "there is no file absent.json with tools"},
           {Command::run, {"--tools", "[{}]", "x"}, "the JSON given: tools.type is ''"},
           {Command::run, {"--tools", "", "x"}, "--tools is empty"},
           {Command::run, {"--tools", "[]", "--schema", "true", "x"}, "--schema and --tools are both given"},
           {Command::run, {"--tools", "[]", "--raw", "x"}, "--raw and --tools are both given"},
           {Command::run, {"--tools", "[]", "--talk", "x", "y"}, "in chat alone"},
           {Command::run, {"--tools", file, "--stop", "x", "y"}, "stop would cut"},
           {Command::run, {"--tools", "-", "-"}, "more than once"},
           {Command::run, {"--messages", "-", "--tools", "-"}, "more than once"},
           {Command::chat, {"--tools", "-"}, "standard input"},
           {Command::batch, {"in", "-o", "out", "--tools", "[]"}, "unknown flag --tools"}})
    BOOST_TEST(contains(complaint(command, words), why), joined(words) << ": " << complaint(command, words));
  for (const Words& words :
       {Words{"hi"}, Words{"-p", "hi"}, Words{"-f", "x"}, Words{"--system", "x"}, Words{"--system-file", "x"},
        Words{"--raw"}, Words{"--lines"}, Words{"--talk", "x"}, Words{"--continue"}}) {
    Words all{"--messages", "x"};
    all.insert(all.end(), words.begin(), words.end());
    BOOST_TEST(contains(complaint(Command::run, all), "--messages"), words[0]);
  }
  const SettingsFile settings("--system=Be brief.\n");
  BOOST_TEST(run_options({"--messages", "x"}).system_text.empty());
}

BOOST_AUTO_TEST_CASE(help_before_everything_else) {
  BOOST_TEST(run_options({"-n", "nonsense", "--help"}).wants_help);
  // Every flag is in the help of the commands that take it.
  for (const Flag& flag : flags())
    for (const CommandRow& row : commands()) {
      const bool is_taken = flag.is_of(row.command);
      const std::string shown = " --" + flag.name() + (flag.value ? " " : "");
      BOOST_TEST(contains(command_help(row.command), shown) >= is_taken);
    }
}

// The letter of a flag stands last in its row, and each name is in one row: a settings file knows no command.
BOOST_AUTO_TEST_CASE(the_table_is_in_order) {
  std::set<std::string> seen;
  BOOST_TEST(flags().size() <= 80u);
  for (const Flag& flag : flags()) {
    const std::string names = flag.names;
    for (const std::string& spelling : flag.spellings()) BOOST_TEST(seen.insert(spelling).second, spelling);
    for (size_t at = names.find(','); at != std::string::npos; at = names.find(',', at + 1))
      BOOST_TEST((names.find(',', at + 1) != at + 2), names);
    BOOST_TEST(names.find(',') != 1u, names);
    BOOST_TEST(flag.commands != 0u, names);
  }
}

BOOST_AUTO_TEST_CASE(commands_by_their_words) {
  size_t n_taken = 0;
  BOOST_TEST((find_command({"run", "hi"}, n_taken).command == Command::run && n_taken == 1));
  BOOST_TEST(
      (find_command({"inspect", "tokens", "x"}, n_taken).command == Command::inspect_tokens && n_taken == 2));
  BOOST_TEST((find_command({"bench", "x"}, n_taken).command == Command::bench && n_taken == 1));
  for (const Words& words :
       {Words{"rn"}, Words{"inspect"}, Words{"inspect", "x"}, Words{"-m", "x"}, Words{""}})
    BOOST_CHECK_THROW(find_command(words, n_taken), Error);
  for (size_t i = 0; i < commands().size(); ++i) {
    const CommandRow& row = commands()[i];
    BOOST_TEST(static_cast<size_t>(row.command) == i, row.name());  // row_of() counts on it
    BOOST_TEST(contains(overview(), "\n  " + row.name().substr(0, row.name().find(' '))), row.name());
  }
}

BOOST_AUTO_TEST_CASE(what_bench_measures) {
  const Options none = parse_options(Command::bench, {});
  BOOST_TEST((none.bench.contexts.empty() && !none.bench.is_synthetic && none.bench.locality == Locality{}));
  const Options some =
      parse_options(Command::bench, {"--synthetic", "--layers", "4", "--contexts", "64,0,8", "--type",
                                     "q6_k-pure", "--decode", "3", "--locality", "0.5", "--expert-locality",
                                     "0.25", "--topk-buffer", "full", "--sequences", "32,1,8", "--json"});
  BOOST_TEST((some.bench.is_synthetic && some.bench.n_layers == 4));
  BOOST_TEST(some.bench.contexts == (std::vector<int64_t>{0, 8, 64}), boost::test_tools::per_element());
  BOOST_TEST((some.bench.types.matrices == TensorType::q6_k));
  BOOST_TEST((some.bench.n_decode == 3 && some.bench.locality == Locality{0.5, 0.25} && some.json));
  BOOST_TEST(some.bench.sequences == (std::vector<int64_t>{1, 8, 32}), boost::test_tools::per_element());
  BOOST_TEST(parse_options(Command::bench, {"--capacity", "--contexts", "512"}).bench.is_capacity);
  BOOST_TEST(some.engine.topk_buffer.value() == kEveryRow);
  for (const Words& words :
       {Words{"--contexts", "1,,2"}, Words{"--contexts", "-1"}, Words{"--contexts", "1048577"},
        Words{"--type", "Q4"}, Words{"--locality", "1.1"}, Words{"--decode", "0"},
        Words{"--synthetic", "-m", "x"}, Words{"--sequences", "0"}, Words{"--sequences", ""},
        Words{"--ctx", "64"}, Words{"--dir", "."}})
    BOOST_TEST(!complaint(Command::bench, words).empty(), "no complaint about " << words[0]);
}

// A mix by llama-quantize's name; one format by a plain format's, or behind -pure. Both commands read it
// alike.
BOOST_AUTO_TEST_CASE(a_type_means_the_same_to_a_bench_and_a_plan) {
  for (const Command command : {Command::bench, Command::inspect_plan}) {
    const auto types = [&](const char* name) {
      const BenchOptions bench = parse_options(command, {"--type", name}).bench;
      BOOST_TEST(bench.is_synthetic);
      return bench.types;
    };
    BOOST_TEST(types("q2_k").mix == find_mix("Q2_K"));
    BOOST_TEST((!types("Q2_K-pure").mix && types("Q2_K-pure").matrices == TensorType::q2_k));
    BOOST_TEST((!types("Q4_K").mix && types("Q4_K").matrices == TensorType::q4_k));
    BOOST_TEST(
        contains(complaint(command, {"--type", "Q9"}), "one format for all matrices (Q2_K-pure) or a mix"));
  }
  BOOST_TEST(parse_options(Command::inspect_plan, {}).bench.types.mix == find_mix("Q4_K_M"));
  BOOST_TEST(contains(complaint(Command::bench, {"--layers", "4"}), "--synthetic"));
}

// Who leaves the unit out does not mean bytes.
BOOST_AUTO_TEST_CASE(a_size_has_a_unit) {
  for (const char* flag : {"--host-mem", "--gpu-mem", "--cache-size"}) {
    BOOST_TEST(contains(complaint(Command::run, {flag, "24"}), "takes a size such as 512M or 40G"));
    BOOST_TEST(complaint(Command::run, {flag, "1048576"}).empty());
  }
  BOOST_TEST(run_options({"--cache-size", "0"}).cache.limits.max_bytes.value() == 0u);
  const auto of_machine = [](const char* on) { return complaint(Command::inspect_plan, {"--on", on}); };
  BOOST_TEST(contains(of_machine("24+256G"), "lacks a unit of memory"));
  BOOST_TEST(contains(of_machine("2x4080+256G"), "GPUs, by memory or name (RTX3090, "));
}

BOOST_AUTO_TEST_CASE(a_letter_that_stands_alone_takes_no_value) {
  BOOST_TEST(contains(complaint(Command::run, {"-q=yes", "x"}), "--quiet takes no value"));
}

// Also of those that no double holds.
BOOST_AUTO_TEST_CASE(a_size_is_exact_or_refused) {
  const auto size = [](const char* text) {
    return run_options({"--host-mem", text}).engine.host_mem.value();
  };
  BOOST_TEST(size("9007199254740993") == 9007199254740993u);
  BOOST_TEST(size("9223372036854775807") == 9223372036854775807u);
  BOOST_TEST(size("1.5G") == 3u << 29);
  BOOST_TEST(size("0.1M") == 104857u);
  BOOST_TEST(size("8388607T") == uint64_t{8388607} << 40);
  BOOST_TEST(run_options({"--gpu-mem", "9007199254740993"}).engine.gpu_mem.front() == 9007199254740993u);
  for (const char* text :
       {"9223372036854775808", "8388608T", "99999999999999999999G", "1e400", "1e9", "1e3G", "0x40G", "inf",
        "nan", "-1G", "+1G", " 1G", "1 G", "1..5G", "1.0000001G", "1048576.5", "G", "", "1GiBs"})
    for (const char* flag : {"--host-mem", "--gpu-mem", "--cache-size"})
      BOOST_TEST(contains(complaint(Command::run, {flag, text}), "takes a size"), flag << " " << text);
}

BOOST_AUTO_TEST_CASE(nearest_name) {
  const Words names{"temp", "top-k", "top-p"};
  BOOST_TEST(nearest("tmp", names) == "temp");
  BOOST_TEST(nearest("temp", names) == "temp");
  BOOST_TEST(nearest("seed", names) == "");
  BOOST_TEST(nearest(std::string(1 << 16, 'x'), names) == "");
}

BOOST_AUTO_TEST_SUITE_END()
