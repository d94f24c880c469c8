// See completion.h. Where no word of ours fits, files do.
#include "cli/inspect/completion.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "cli/chat/talk.h"
#include "cli/inspect/manual.h"
#include "cli/options/commands.h"
#include "cli/options/flags.h"
#include "cli/options/model_lookup.h"
#include "cli/terminal/streams.h"
#include "cli/terminal/user_files.h"

namespace dsv32 {
namespace {

// "run" of "run", "inspect" of "inspect plan".
std::string first_word(const CommandRow& row) { return row.name().substr(0, row.name().find(' ')); }
std::string second_word(const CommandRow& row) { return row.name().substr(first_word(row).size()); }

// Without what stands in brackets or behind a semicolon.
std::string short_text(const Flag& flag) {
  const std::string text = flag.about;
  return text.substr(0, std::min(text.find("; "), text.find(" (")));
}

std::string quoted(const std::string& text) { return "'" + replaced(text, "'", "'\\''") + "'"; }

// What may come first, and behind that word second.
std::vector<std::string> words_at(size_t place, const std::string& first = {}) {
  std::vector<std::string> words;
  for (const CommandRow& row : commands()) {
    const std::string word =
        place == 1 ? first_word(row) : second_word(row).substr(second_word(row).size() > 0);
    if ((place == 1 || first_word(row) == first) && !word.empty() && std::ranges::count(words, word) == 0)
      words.push_back(word);
  }
  return words;
}

std::string second_words(const char* pattern) {
  std::string text;
  for (const std::string& first : words_at(1))
    if (const auto words = words_at(2, first); !words.empty())
      text += format(pattern, first.c_str(), joined(words).c_str());
  return text;
}

// What may stand in a place: words, names that the program lists when it is asked, or files.
struct Offer {
  std::vector<std::string> words;
  std::string listed;  // what `dsv32 completion` is asked for
  bool has_files = false;
};

// Of a few words as the flag's own parser says them, which is asked with a value that it does not take.
std::vector<std::string> choices_of(const Flag& flag) {
  try {
    Options options;
    flag.apply(options, {});
  } catch (const WrongChoice& wrong) {
    return wrong.words;
  } catch (const Error&) {
  }
  return {};
}

Offer values_of(const Flag& flag) {
  const std::string name = flag.name(), value = flag.value ? flag.value : "";
  if (name == "talk") return {{}, "talks", false};
  if (name == "model") return {{}, "models", true};
  return {choices_of(flag), "", value == "FILE" || value == "DIR"};
}

// Of words that are no flags.
Offer values_of(const CommandRow& row) {
  const std::string usage = row.usage;
  if (usage.find("NAME") != usage.npos) return {{}, "talks", false};
  if (usage.find("COMMAND") != usage.npos) return {words_at(1), "", false};
  if (usage.find('|') != usage.npos) return {split(usage, '|'), "", false};
  return {{}, "", true};
}

// "--model|-m"
std::string pattern_of(const Flag& flag) {
  std::string text;
  for (const std::string& name : flag.spellings())
    text += (text.empty() ? "" : "|") + std::string(name.size() > 1 ? "--" : "-") + name;
  return text;
}

// For the shells that look at the words before: a case for each command, longer names first. `offered` says
// what may come behind a flag or else, `shown` a flag in a list, `when_flag` what is done where one begins.
std::string cases(std::string (*offered)(const Offer&), std::string (*shown)(const Flag&),
                  const char* when_flag) {
  std::vector<const CommandRow*> rows;
  for (const CommandRow& row : commands()) rows.push_back(&row);
  std::ranges::stable_sort(rows, {}, [](const CommandRow* row) { return second_word(*row).empty(); });
  std::string text;
  for (const CommandRow* row : rows) {
    std::vector<std::string> flags;
    text += "    " + quoted(row->name() + " ") + "*) case $flag in\n";
    for (const Flag* flag : flags_of(row->command)) {
      flags.push_back(shown(*flag));
      if (flag->value) text += "      " + pattern_of(*flag) + ") " + offered(values_of(*flag)) + " ;;\n";
    }
    text += "      *) if " + replaced(when_flag, "%", joined(flags)) + "else " + offered(values_of(*row)) +
            "; fi ;;\n      esac ;;\n";
  }
  return text;
}

std::string in_bash(const Offer& offer) {
  const std::string files = offer.has_files ? " files=-f" : "";
  if (!offer.listed.empty())
    return "words=$(\"$program\" completion " + offer.listed + " 2>/dev/null)" + files;
  return "words=" + quoted(joined(offer.words)) + files;
}

// Bash parts words at "=".
std::string for_bash() {
  std::string text = "# What bash completes for dsv32, made by: dsv32 completion bash\n_dsv32() {\n";
  text +=
      "  local word=${COMP_WORDS[COMP_CWORD]} flag=${COMP_WORDS[COMP_CWORD-1]} program=${COMP_WORDS[0]}\n";
  text += "  local words= files=\n  COMPREPLY=()\n";
  text +=
      "  if [[ $word == = ]]; then word=; elif [[ $flag == = ]]; then flag=${COMP_WORDS[COMP_CWORD-2]}; fi\n";
  text += "  case \"$((COMP_CWORD)) ${COMP_WORDS[1]}\" in\n";
  text += "    '1 '*) words=" + quoted(joined(words_at(1))) + " ;;\n";
  text += second_words("    '2 %s') words='%s' ;;\n");
  text += "    *) case \"${COMP_WORDS[1]} ${COMP_WORDS[2]-} \" in\n";
  text += cases(
      in_bash, [](const Flag& flag) { return "--" + flag.name(); }, "[[ $word == -* ]]; then words='%'; ");
  return text +
         "    esac ;;\n  esac\n  [[ -n $files ]] && compopt -o filenames 2>/dev/null\n"
         "  mapfile -t COMPREPLY < <(compgen $files -W \"$words\" -- \"$word\")\n}\n"
         "complete -o default -F _dsv32 dsv32\n";
}

std::string in_zsh(const Offer& offer) {
  std::string text = offer.has_files ? "_files; " : "";
  if (!offer.listed.empty())
    return text + "compadd -- ${(f)\"$($words[1] completion " + offer.listed + " 2>/dev/null)\"}";
  return text + (offer.words.empty() ? "" : "compadd -- " + joined(offer.words));
}

std::string for_zsh() {
  std::string text = "#compdef dsv32\n# Made by: dsv32 completion zsh\n_dsv32() {\n";
  text += "  local -a flags\n  local flag=$words[CURRENT-1]\n";
  text += "  if [[ $PREFIX == --*=* ]]; then flag=${PREFIX%%=*}; compset -P '*='; fi\n";
  text += "  case \"$CURRENT $words[2]\" in\n    '2 '*) compadd -- " + joined(words_at(1)) + "; return ;;\n";
  text += second_words("    '3 %s') compadd -- %s; return ;;\n") + "  esac\n";
  text += "  case \"$words[2] $words[3] \" in\n";
  text += cases(
      in_zsh,
      [](const Flag& flag) {
        return quoted("--" + flag.name() + ":" + replaced(short_text(flag), ":", "\\:"));
      },
      "[[ $PREFIX == -* ]]; then\n        flags=(%)\n        _describe -o flag flags\n      ");
  return text +
         "  esac\n}\n"
         "if [[ $funcstack[1] == _dsv32 ]]; then _dsv32; else compdef _dsv32 dsv32; fi\n";
}

// " -a 'fp8 bf16 f32'", or nothing.
std::string in_fish(const Offer& offer) {
  if (!offer.listed.empty()) return " -a '(dsv32 completion " + offer.listed + " 2>/dev/null)'";
  return offer.words.empty() ? "" : " -a " + quoted(joined(offer.words));
}

std::string for_fish() {
  std::string text = "# What fish completes for dsv32, made by: dsv32 completion fish\n";
  for (const std::string& word : words_at(1))
    text += "complete -c dsv32 -f -n __fish_use_subcommand -a " + word + "\n";
  for (const CommandRow& row : commands()) {
    const std::string first = first_word(row), second = second_word(row);
    std::string when = "__fish_seen_subcommand_from " + first;
    if (!second.empty()) {
      text += format("complete -c dsv32 -f -n '%s; and not __fish_seen_subcommand_from %s' -a %s -d %s\n",
                     when.c_str(), joined(words_at(2, first)).c_str(), second.substr(1).c_str(),
                     quoted(row.about).c_str());
      when += "; and __fish_seen_subcommand_from" + second;
    }
    if (const Offer words = values_of(row); !words.has_files)
      text += format("complete -c dsv32 -f -n '%s'%s\n", when.c_str(), in_fish(words).c_str());
    for (const Flag* flag : flags_of(row.command)) {
      const std::string letter = flag->spellings().back();
      const Offer values = values_of(*flag);
      text += format("complete -c dsv32 -n '%s' -l %s%s%s%s -d %s\n", when.c_str(), flag->name().c_str(),
                     letter.size() > 1 ? "" : (" -s " + letter).c_str(),
                     !flag->value       ? ""
                     : values.has_files ? " -r -F"
                                        : " -x",
                     in_fish(values).c_str(), quoted(short_text(*flag)).c_str());
    }
  }
  return text;
}

// What the scripts ask for.
std::string names_for(const std::string& what) {
  std::vector<std::string> names;
  if (what == "models") names = model_names();
  const std::string state = user_folder(UserFolder::state);
  std::error_code error;
  if (what == "talks" && std::filesystem::exists(state + "/talks", error))
    names = TalkStore(state + "/talks").names();
  return names.empty() ? "" : joined(names, "\n") + "\n";
}

}  // namespace

std::string shell_completion(const std::string& shell) {
  if (shell == "bash") return for_bash();
  if (shell == "zsh") return for_zsh();
  if (shell == "fish") return for_fish();
  fail(ErrorKind::usage,
       format("completion takes bash, zsh, fish or man, not '%s'", visible(shell, false, 40).c_str()));
}

int completion_command(const Options& options) {
  const std::string what = options.words.size() == 1 ? options.words.front() : "";
  if (what == "man")
    write_out(manual_page());
  else if (what == "models" || what == "talks")
    write_out(names_for(what));
  else
    write_out(shell_completion(what));
  return 0;
}

}  // namespace dsv32
