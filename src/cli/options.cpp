// See options.h. cxxopts splits the words; its exceptions become Errors of ours here and nowhere else.
//
// Values stay text for cxxopts and are converted by the flags' own functions: no value is split at commas,
// and messages are ours.
#include "cli/options.h"

#include <algorithm>

#include <cxxopts.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/flags.h"
#include "cli/help.h"

namespace dsv32 {
namespace {

struct CommandText {
  const char* name;
  const char* usage;
  const char* about;
};

const CommandText& text_of(Command command) {
  static constexpr CommandText kTexts[] = {
      {"run", "[flags] [PROMPT...]",
       "Answers one prompt. What comes first: standard input, then files, then the prompt."},
      {"chat", "[flags]", "A conversation at the terminal. /help lists what can be typed there."},
      {"inspect model", "[flags]", "The model file's metadata and tensors."},
      {"inspect plan", "[flags]", "What would lie where, in bytes, without loading anything."},
      {"inspect tokens", "[flags] [TEXT]", "The token ids of a text, or of standard input."},
      {"inspect prompt", "[flags] [PROMPT...]", "The prompt as the model would read it."},
      {"inspect logits", "--tokens IDS --out FILE [flags]",
       "The logits of every token of a prompt, to a file."},
      {"check", "[flags] [PROMPT...]",
       "Whether this machine computes the model as it should: the top-k buffer, and the GPU."},
      {"cache list", "[flags]", "The models whose prefixes are kept on disk."},
      {"cache show", "[flags] [FINGERPRINT]", "The kept segments, of all models or of one."},
      {"cache verify", "[flags]", "Reads all that is kept and removes what is damaged."},
      {"cache prune", "[flags] SIZE", "Removes what the policy lets go first, until SIZE is left."},
      {"cache clear", "[flags]", "Removes all kept prefixes."},
      {"cache path", "[flags]", "Where prefixes are kept."},
  };
  return kTexts[static_cast<size_t>(command)];
}

constexpr Command kCommands[] = {Command::run,
                                 Command::chat,
                                 Command::inspect_model,
                                 Command::inspect_plan,
                                 Command::inspect_tokens,
                                 Command::inspect_prompt,
                                 Command::inspect_logits,
                                 Command::check,
                                 Command::cache_list,
                                 Command::cache_show,
                                 Command::cache_verify,
                                 Command::cache_prune,
                                 Command::cache_clear,
                                 Command::cache_path};

bool takes(Command command, const Flag& flag) { return flag.commands >> static_cast<unsigned>(command) & 1u; }

std::vector<std::string> split_names(const std::string& names) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    parts.push_back(names.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// `name` without hyphens, any of its spellings. Null when the command has no such flag.
const Flag* find_flag(Command command, const std::string& name) {
  for (const Flag& flag : flags())
    if (takes(command, flag) && std::ranges::count(split_names(flag.names), name) > 0) return &flag;
  return nullptr;
}

cxxopts::Options make_parser(Command command) {
  const CommandText& text = text_of(command);
  cxxopts::Options parser(std::string("dsv32 ") + text.name, text.about);
  parser.custom_help(text.usage).set_width(100);
  for (const Flag& flag : flags()) {
    if (!takes(command, flag)) continue;
    if (flag.value)
      parser.add_options(flag.group)(flag.names, flag.text, cxxopts::value<std::string>(), flag.value);
    else
      parser.add_options(flag.group)(flag.names, flag.text);
  }
  return parser;
}

std::string without_hyphens(const std::string& word) {
  return word.substr(std::min(word.find_first_not_of('-'), word.size()));
}

// `word`: with its hyphens.
[[noreturn]] void fail_unknown(Command command, const std::string& word) {
  std::vector<std::string> known;
  for (const Flag& flag : flags())
    if (takes(command, flag))
      for (const std::string& spelling : split_names(flag.names))
        if (spelling.size() > 1) known.push_back(spelling);
  const std::string name = without_hyphens(word);
  const std::string near = name.size() > 1 ? nearest(name, known) : "";
  fail(ErrorKind::usage, format("unknown flag %s%s, see dsv32 %s --help", visible(word, false, 40).c_str(),
                                near.empty() ? "" : format(" (did you mean --%s?)", near.c_str()).c_str(),
                                command_name(command)));
}

// What cxxopts is to see: the multi-letter names behind one hyphen that hands know from elsewhere by their
// long form. A flag's value is left as it is.
std::vector<std::string> rewrite(Command command, const std::vector<std::string>& args) {
  std::vector<std::string> words;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--") {
      words.insert(words.end(), args.begin() + static_cast<ptrdiff_t>(i), args.end());
      break;
    }
    const std::string word = args[i] == "-sys" ? "--system" : args[i] == "-sysf" ? "--system-file" : args[i];
    const bool is_flag = word.size() > 1 && word[0] == '-';
    const Flag* flag = is_flag ? find_flag(command, without_hyphens(word)) : nullptr;
    words.push_back(word);
    if (flag && flag->value && i + 1 < args.size()) words.push_back(args[++i]);
  }
  return words;
}

// cxxopts puts the name in question between its quotation marks, and nowhere else.
std::string quoted_part(const std::string& message) {
  const size_t begin = message.find(cxxopts::LQUOTE), end = message.rfind(cxxopts::RQUOTE);
  if (begin == std::string::npos || end == std::string::npos) return message;
  return message.substr(begin + cxxopts::LQUOTE.size(), end - begin - cxxopts::LQUOTE.size());
}

std::string dashed(Command command, const std::string& name) {
  const Flag* flag = find_flag(command, name);
  return flag ? "--" + split_names(flag->names).front() : "--" + visible(name, false, 80);
}

cxxopts::ParseResult parse_words(Command command, const std::vector<std::string>& args) {
  std::vector<const char*> argv{"dsv32"};
  for (const std::string& arg : args) argv.push_back(arg.c_str());
  try {
    return make_parser(command).parse(static_cast<int>(argv.size()), argv.data());
  } catch (const cxxopts::exceptions::no_such_option& error) {
    const std::string name = quoted_part(error.what());
    fail_unknown(command, (name.size() == 1 ? "-" : "--") + name);
  } catch (const cxxopts::exceptions::missing_argument& error) {
    fail(ErrorKind::usage, format("%s needs a value, see dsv32 %s --help",
                                  dashed(command, quoted_part(error.what())).c_str(), command_name(command)));
  } catch (const cxxopts::exceptions::exception& error) {
    fail(ErrorKind::usage,
         format("cannot read '%s', see dsv32 %s --help",
                visible(quoted_part(error.what()), false, 80).c_str(), command_name(command)));
  }
}

void apply_flags(Options& options, const cxxopts::ParseResult& parsed) {
  for (const cxxopts::KeyValue& argument : parsed.arguments()) {
    const Flag& flag = *find_flag(options.command, argument.key());
    if (flag.value || argument.value() == "true")
      flag.apply(options, argument.value(), "--" + argument.key());
    else if (argument.value() != "false")
      fail(ErrorKind::usage, format("--%s takes no value", argument.key().c_str()));
  }
}

void check_words(const Options& options) {
  constexpr Command kWithWords[] = {Command::run,   Command::inspect_prompt, Command::inspect_tokens,
                                    Command::check, Command::cache_show,     Command::cache_prune};
  const bool takes_words = std::ranges::count(kWithWords, options.command) > 0;
  if (options.words.empty() || takes_words) return;
  fail(ErrorKind::usage,
       format("%s takes no words, but got '%s'", command_name(options.command),
              visible(options.words.front(), false, 80).c_str()),
       options.command == Command::chat ? "dsv32 run answers a prompt from the command line" : "");
}

void check_together(const Options& options) {
  check_words(options);
  options.generation.sampling.check();
  if (options.prompt && !options.words.empty())
    fail(ErrorKind::usage, "the prompt is given twice, with --prompt and as words; expected one of them");
  if (!options.system_text.empty() && !options.system_file.empty())
    fail(ErrorKind::usage, "--system and --system-file are both given, expected one of them");
  if (options.is_raw && !(options.system_text.empty() && options.system_file.empty()))
    fail(ErrorKind::usage, "--raw means that the prompt is rendered already, --system cannot be added to it");
  if (options.generation.n_top_logprobs >= 0 && !options.json)
    fail(ErrorKind::usage, "--logprobs needs --json, which carries them");
  if (options.continues && !options.session.empty())
    fail(ErrorKind::usage, "--session and --continue are both given, expected one of them");
  const bool names_stdin_twice =
      std::ranges::count(options.files, "-") + (options.prompt == "-") + (options.system_file == "-") > 1;
  if (names_stdin_twice) fail(ErrorKind::usage, "standard input (-) is named more than once");
  if (options.command == Command::inspect_logits &&
      (options.token_list.empty() || options.output_path.empty()))
    fail(ErrorKind::usage, "inspect logits needs --tokens IDS and --out FILE");
}

}  // namespace

const char* command_name(Command command) { return text_of(command).name; }

Command find_command(const std::vector<std::string>& words, size_t& n_taken) {
  const bool inspects = words[0] == "inspect", is_cache = words[0] == "cache";
  if (inspects && words.size() == 1)
    fail(ErrorKind::usage, "inspect what? one of model, plan, tokens, prompt, logits");
  if (is_cache && words.size() == 1)
    fail(ErrorKind::usage, "cache what? one of list, show, verify, prune, clear, path");
  if (words[0].starts_with("-"))
    fail(ErrorKind::usage, format("%s comes before a command, expected it after one, see dsv32 help",
                                  visible(words[0], false, 40).c_str()));
  n_taken = inspects || is_cache ? 2 : 1;
  const std::string name = n_taken == 2 ? words[0] + " " + words[1] : words[0];
  std::vector<std::string> names{"bench", "help", "inspect", "cache"};
  for (const Command command : kCommands) {
    if (name == command_name(command)) return command;
    names.push_back(command_name(command));
  }
  const std::string near = nearest(name, names);
  fail(ErrorKind::usage, format("unknown command '%s'%s, see dsv32 help", visible(name, false, 40).c_str(),
                                near.empty() ? "" : format(" (did you mean %s?)", near.c_str()).c_str()));
}

Options parse_options(Command command, const std::vector<std::string>& args) {
  const cxxopts::ParseResult parsed = parse_words(command, rewrite(command, args));
  Options options;
  options.command = command;
  options.wants_help = parsed.count("help") > 0;
  options.wants_version = parsed.count("version") > 0;
  if (options.wants_help || options.wants_version) return options;
  apply_flags(options, parsed);
  options.words = parsed.unmatched();
  check_together(options);
  return options;
}

std::string command_help(Command command) {
  std::vector<std::string> groups;
  for (const Flag& flag : flags())
    if (takes(command, flag) && std::ranges::count(groups, flag.group) == 0) groups.push_back(flag.group);
  return make_parser(command).help(groups) + "\n" + exit_codes();
}

std::string nearest(const std::string& word, const std::vector<std::string>& names) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  if (word.size() > 64) return best;
  for (const std::string& name : names) {
    const size_t distance = edit_distance(word, name);
    if (distance < best_distance) best = name, best_distance = distance;
  }
  return best;
}

}  // namespace dsv32
