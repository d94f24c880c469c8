// See completion.h. Where no word of ours fits, files do.
#include "cli/completion.h"

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/help.h"
#include "cli/streams.h"

namespace dsv32 {
namespace {

// "run" of "run", "inspect" of "inspect plan".
std::string first_word(const CommandRow& row) { return row.name().substr(0, row.name().find(' ')); }
std::string second_word(const CommandRow& row) { return row.name().substr(first_word(row).size()); }

std::string letter_of(const FlagText& flag) {
  const std::string last = flag.spellings().back();
  return last.size() == 1 ? last : "";
}

// Without what stands in brackets or behind a semicolon.
std::string short_text(const FlagText& flag) {
  const std::string text = flag.text;
  return text.substr(0, std::min(text.find("; "), text.find(" (")));
}

bool takes_path(const FlagText& flag) {
  const std::string value = flag.value ? flag.value : "";
  return value == "FILE" || value == "DIR";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
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

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// For the shells that look at the words before: a case for each command, longer names first.
std::string cases(const std::function<std::string(const CommandRow&)>& body) {
  std::vector<const CommandRow*> rows;
  for (const CommandRow& row : commands()) rows.push_back(&row);
  std::ranges::stable_sort(rows, {}, [](const CommandRow* row) { return second_word(*row).empty(); });
  std::string text;
  for (const CommandRow* row : rows)
    text += format("    %s*) %s ;;\n", quoted(row->name() + " ").c_str(), body(*row).c_str());
  return text;
}

std::string second_words(const char* pattern) {
  std::string text;
  for (const std::string& first : words_at(1))
    if (const auto words = words_at(2, first); !words.empty())
      text += format(pattern, first.c_str(), joined(words).c_str());
  return text;
}

std::string for_bash() {
  std::string text = "# What bash completes for dsv32, made by: dsv32 completion bash\n_dsv32() {\n";
  text += "  local word=${COMP_WORDS[COMP_CWORD]} words=\n  COMPREPLY=()\n";
  text += "  case \"$((COMP_CWORD)) ${COMP_WORDS[1]}\" in\n";
  text += "    '1 '*) words=" + quoted(joined(words_at(1))) + " ;;\n";
  text += second_words("    '2 %s') words='%s' ;;\n") + "  esac\n";
  text += "  [[ $word == -* ]] && case \"${COMP_WORDS[1]} ${COMP_WORDS[2]-} \" in\n";
  text += cases([](const CommandRow& row) {
    std::vector<std::string> words;
    for (const FlagText* flag : flags_of(row.command)) words.push_back("--" + flag->name());
    return "words=" + quoted(joined(words));
  });
  return text +
         "  esac\n  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n}\n"
         "complete -o default -F _dsv32 dsv32\n";
}

std::string for_zsh() {
  std::string text = "#compdef dsv32\n# Made by: dsv32 completion zsh\n_dsv32() {\n  local -a flags\n";
  text += "  case \"$CURRENT $words[2]\" in\n    '2 '*) compadd -- " + joined(words_at(1)) + " ;;\n";
  text += second_words("    '3 %s') compadd -- %s ;;\n") + "  esac\n";
  text += "  [[ $PREFIX == -* ]] || { ((CURRENT > 2)) && _files; return; }\n";
  text += "  case \"$words[2] $words[3] \" in\n";
  text += cases([](const CommandRow& row) {
    std::string list;
    for (const FlagText* flag : flags_of(row.command))
      list += " " + quoted("--" + flag->name() + ":" + replaced(short_text(*flag), ":", "\\:"));
    return "flags=(" + list + ")";
  });
  return text +
         "  esac\n  _describe -o flag flags\n}\n"
         "if [[ $funcstack[1] == _dsv32 ]]; then _dsv32; else compdef _dsv32 dsv32; fi\n";
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
                     quoted(row.text.about).c_str());
      when += "; and __fish_seen_subcommand_from" + second;
    }
    for (const FlagText* flag : flags_of(row.command)) {
      const std::string letter = letter_of(*flag);
      text += format("complete -c dsv32 -n '%s' -l %s%s%s -d %s\n", when.c_str(), flag->name().c_str(),
                     letter.empty() ? "" : (" -s " + letter).c_str(),
                     !flag->value        ? ""
                     : takes_path(*flag) ? " -r -F"
                                         : " -x",
                     quoted(short_text(*flag)).c_str());
    }
  }
  return text;
}

// For man: hyphens that are typed, and no line that looks like a request.
std::string roff(std::string text) {
  text = replaced(replaced(text, "\\", "\\e"), "-", "\\-");
  return text.starts_with('.') || text.starts_with('\'') ? "\\&" + text : text;
}

// "--max-tokens, --predict, -n"
std::string names_of(const FlagText& flag) {
  std::string text;
  for (const std::string& name : flag.spellings())
    if (name.find('_') == name.npos)
      text += (text.empty() ? "" : ", ") + std::string(name.size() > 1 ? "--" : "-") + name;
  return text;
}

// A flag is described once, with the commands that take it so.
std::string flag_section() {
  std::string text;
  for (const Flag& flag : flags()) {
    std::vector<std::string> takers;
    for (const CommandRow& row : commands())
      if (flag.commands >> static_cast<unsigned>(row.command) & 1) takers.push_back(row.name() + ",");
    std::string of = joined(takers);
    of.pop_back();
    text +=
        ".TP\n\\fB" + roff(names_of(flag)) + "\\fR" + (flag.value ? " \\fI" + roff(flag.value) + "\\fR" : "");
    text += "\n" + roff(flag.text) + ".\n.br\n" +
            (takers.size() > commands().size() / 2 ? "most commands" : roff(of)) + "\n";
  }
  return text;
}

}  // namespace

std::string shell_completion(const std::string& shell) {
  if (shell == "bash") return for_bash();
  if (shell == "zsh") return for_zsh();
  if (shell == "fish") return for_fish();
  fail(ErrorKind::usage,
       format("completion takes bash, zsh, fish or man, not '%s'", visible(shell, false, 40).c_str()));
}

std::string manual_page() {
  std::string text = ".TH DSV32 1\n.SH NAME\ndsv32 \\- runs DeepSeek\\-V3.2 from a GGUF file\n.SH SYNOPSIS\n";
  text += ".B dsv32\n\\fICOMMAND\\fR [\\fIFLAGS\\fR] [\\fIWORDS\\fR]\n.SH COMMANDS\n";
  for (const CommandRow& row : commands())
    text +=
        ".TP\n\\fB" + roff(row.name()) + "\\fR " + roff(row.text.usage) + "\n" + roff(row.text.about) + "\n";
  text += ".SH FLAGS\n" + flag_section();
  text +=
      ".SH SETTINGS\n$XDG_CONFIG_HOME/dsv32/config, else ~/.config/dsv32/config, has lines\n.RS\n.nf\nflag = "
      "value\n.fi\n"
      ".RE\nfor all commands, and behind a line [\\fICOMMAND\\fR] for one. The command line wins.\n";
  return text + ".SH EXIT STATUS\n" + roff(exit_codes());
}

int completion_command(const Options& options) {
  const std::string what = options.words.size() == 1 ? options.words.front() : "";
  write_out(what == "man" ? manual_page() : shell_completion(what));
  return 0;
}

}  // namespace dsv32
