// See line_editor.h.
//
// libedit edits and draws nothing: its output goes nowhere, and the line is drawn here whenever more input is
// waited for (line_drawing.h). It gets its characters from here too, because its own reader does not come
// back when a signal arrives, and knows fewer keys (key_sequences.h). It thinks in wide characters of the
// locale: the C.UTF-8 one, whatever the environment says.
#include "cli/terminal/line_editor.h"

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <optional>
#include <utility>

#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/terminal/attachment.h"
#include "cli/terminal/held_terminal.h"
#include "cli/terminal/history_file.h"
#include "cli/terminal/key_sequences.h"
#include "cli/terminal/line_drawing.h"
#include "cli/terminal/streams.h"
#include "cli/terminal/terminal.h"
#include "cli/terminal/user_folders.h"

namespace dsv32 {
namespace {

constexpr char kEndOfInput = 4, kEscape = 27;  // Ctrl-D, Esc
constexpr int kPollMilliseconds = 100;  // how long a signal may go unnoticed that comes just before poll()
constexpr int kMostPolls = 5;           // for the rest of a key's sequence
constexpr size_t kMostInLine = 1000;    // bytes of a paste that is shown as it is
constexpr size_t kMostPasted = size_t{64} << 20;
constexpr std::string_view kPasteEnd = "\x1b[201~";

// Waits for input. False when a stop was requested first.
bool wait_for_input(const GracefulStop& stop) {
  pollfd readable{STDIN_FILENO, POLLIN, 0};
  while (!stop.is_requested())
    if (poll(&readable, 1, kPollMilliseconds) > 0) return true;
  return false;
}

size_t n_lines(std::string_view text) { return static_cast<size_t>(std::ranges::count(text, '\n')) + 1; }

// Terminals send a line's end as the key does.
std::string with_line_ends(std::string_view pasted) {
  std::string text;
  for (size_t i = 0; i < pasted.size(); ++i) {
    if (pasted[i] == '\r' && i + 1 < pasted.size() && pasted[i + 1] == '\n') continue;
    text += pasted[i] == '\r' ? '\n' : pasted[i];
  }
  if (text.ends_with('\n')) text.pop_back();
  return sanitize_utf8(text);
}

// A terminal that takes no more is met again when it is read.
void draw_out(const std::string& text) {
  try {
    write_out_as_is(text);
  } catch (const Error&) {
  }
}

}  // namespace

struct LineEditor::Edit {
  EditLine* line = nullptr;
  History* history = nullptr;
  HistoryFile file;
  HeldTerminal terminal;
  LineDrawing drawing;
  const bool draws;  // false: libedit does, for a terminal that cannot move its cursor
  std::FILE* const nowhere = std::fopen("/dev/null", "w");
  const char* prompt = "";
  const GracefulStop* stop = nullptr;
  Completer complete = nullptr;
  std::string ahead;                // read and not yet taken
  std::vector<std::string> pastes;  // of the line
  bool has_paste = false;           // one of them is in the line
  bool is_begun = false;            // libedit has set the modes for it

  Edit(const std::string& path, bool draws_itself)
      : file(path), terminal(draws_itself), draws(draws_itself) {}
  ~Edit() {
    if (nowhere) std::fclose(nowhere);
  }
  static Edit& of(EditLine* line) {
    void* self = nullptr;
    el_get(line, EL_CLIENTDATA, &self);
    return *static_cast<Edit*>(self);
  }
  std::string text() const {
    const LineInfo* info = el_line(line);
    return {info->buffer, info->lastchar};
  }
  static char* show_prompt(EditLine* line) { return const_cast<char*>(of(line).prompt); }

  // Whether `ahead` has at least as many bytes. False with errno 0 at the end of input, EINTR when stopped,
  // and EAGAIN when they did not come within so many polls.
  bool have(size_t n_bytes, int n_polls = -1) {
    while (ahead.size() < n_bytes) {
      if (!wait(n_polls)) return false;
      char block[4096];
      const ssize_t n_read = ::read(STDIN_FILENO, block, sizeof block);
      if (n_read == 0) errno = 0;
      if (n_read <= 0) return false;
      ahead.append(block, static_cast<size_t>(n_read));
    }
    return true;
  }

  // For input. The line is drawn meanwhile as it is, also when the window has changed or others have had it.
  bool wait(int n_polls) {
    pollfd readable{STDIN_FILENO, POLLIN, 0};
    for (draw(); !stop->is_requested(); follow_terminal()) {
      if (poll(&readable, 1, kPollMilliseconds) > 0) return true;
      errno = EAGAIN;
      if (n_polls >= 0 && --n_polls < 0) return false;
    }
    errno = EINTR;
    return false;
  }

  void follow_terminal() {
    const HeldTerminal::Fate fate = terminal.fate();
    if (!draws || (fate == HeldTerminal::Fate::kept && drawing.width() == window_size().columns)) return;
    if (fate == HeldTerminal::Fate::taken_again) drawing.begin();
    draw(true);
  }

  void draw(bool again = false) {
    if (!draws) return;
    const LineInfo* info = el_line(line);
    const std::string before = as_sent(prompt + std::string(info->buffer, info->cursor)),
                      after = as_sent({info->cursor, info->lastchar});
    draw_out(again ? drawing.show_again(before, after, window_size())
                   : drawing.show(before, after, window_size()));
  }

  // What is written next begins on a row of its own, or behind `text`, the whole line, when nothing ends it.
  void leave_line(const std::string& text, bool is_ended) {
    if (!draws) return;
    draw_out(drawing.show(as_sent(prompt + text), "", {SIZE_MAX, window_size().columns}) +
             (is_ended ? "\r\n" : ""));
    drawing.begin();
  }

  // One character for libedit: 1, 0 at the end of input, -1 when stopped.
  static int get_character(EditLine* line, wchar_t* character) {
    Edit& self = of(line);
    if (!std::exchange(self.is_begun, true)) self.terminal.keep_modes();
    do {
      if (!self.have(1)) return errno == EINTR ? -1 : 0;
      *character = self.ahead[0] == kEscape ? self.take_key() : self.take_character();
    } while (*character == 0);
    return 1;
  }

  // Of what is `ahead`; 0 for what is dropped.
  wchar_t take_character() {
    while (incomplete_utf8_tail(ahead) == ahead.size() && have(ahead.size() + 1)) continue;
    uint32_t code_point = 0;
    const int n_bytes = decode_utf8(ahead, 0, &code_point);
    ahead.erase(0, static_cast<size_t>(std::max(n_bytes, 1)));  // what follows a character that is cut stays
    if (n_bytes == 0) return 0xfffd;
    // A Ctrl-D typed before the terminal was ours has become NUL on its way to raw mode.
    if (code_point == 0) return kEndOfInput;
    if (code_point == kTextAt) return 0xfffd;
    const auto character = static_cast<wchar_t>(code_point);
    return character >= kFirstKey && character <= kLastKey ? 0 : character;
  }

  // The same of ESC: a key of several bytes, or one that libedit takes together with what comes next.
  wchar_t take_key() {
    const bool is_key = have(2, kMostPolls) && (ahead[1] == '[' || ahead[1] == 'O');
    const bool is_twice = ahead.size() > 1 && ahead[1] == kEscape;
    if (!is_key) {
      ahead.erase(0, 1);
      return is_twice ? 0 : kEscape;
    }
    size_t n_bytes = 0;
    while ((n_bytes = sequence_length(ahead)) == 0 && have(ahead.size() + 1, kMostPolls)) continue;
    const std::string key = ahead.substr(0, n_bytes > 0 ? n_bytes : ahead.size());
    ahead.erase(0, key.size());
    return character_of(std::string_view(key).substr(1));
  }

  static unsigned char take_paste(EditLine* line, int) {
    Edit& self = of(line);
    size_t end = 0, from = 0;
    while ((end = self.ahead.find(kPasteEnd, from)) == std::string::npos) {
      from = self.ahead.size() - std::min(self.ahead.size(), kPasteEnd.size());
      if (self.ahead.size() <= kMostPasted && self.have(self.ahead.size() + 1)) continue;
      self.ahead.clear();  // half a paste is nothing that was typed
      return CC_REFRESH;
    }
    std::string text = with_line_ends(std::string_view(self.ahead).substr(0, end));
    self.ahead.erase(0, end + kPasteEnd.size());
    const bool fits_a_line =
        n_lines(text) == 1 && text.size() <= kMostInLine && text.find('\0') == std::string::npos;
    if (fits_a_line) {
      text = as_text(text);
    } else {
      self.pastes.push_back(std::move(text));
      text = self.paste_name(self.pastes.size() - 1);
    }
    if (!text.empty() && el_insertstr(line, text.c_str()) != 0) return CC_ERROR;
    return CC_REFRESH;
  }

  std::string paste_name(size_t i) const {
    const size_t n = n_lines(pastes[i]);
    return n > 1 ? format("[paste %zu: %zu lines]", i + 1, n)
                 : format("[paste %zu: %zu bytes]", i + 1, pastes[i].size());
  }

  // The line with its pastes in the places of their names. A name that was edited is text.
  std::string whole(std::string text) {
    size_t from = 0;
    has_paste = false;
    for (size_t i = 0; i < pastes.size(); ++i) {
      const std::string name = paste_name(i);
      const size_t at = text.find(name, from);
      if (at == std::string::npos) continue;
      const std::string pasted = as_text(pastes[i]);
      text.replace(at, name.size(), pasted);
      from = at + pasted.size();
      has_paste = true;
    }
    return text;
  }

  static unsigned char complete_word(EditLine* line, int) {
    Edit& self = of(line);
    const LineInfo* info = el_line(line);
    const std::string before(info->buffer, info->cursor);
    const Completion found = self.complete(before);
    if (!found.more.empty()) return el_insertstr(line, found.more.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
    if (found.choices.empty()) {
      draw_out("\a");
      return CC_REFRESH;
    }
    self.leave_line(self.text(), true);
    std::string list = self.draws ? "" : "\n";
    for (const std::string& choice : found.choices) list += visible(choice) + "\n";
    write_err(list);
    return CC_REDISPLAY;
  }

  static unsigned char clear_screen(EditLine* line, int) {
    draw_out("\x1b[H\x1b[2J");
    of(line).drawing.begin();
    return CC_REFRESH;
  }
};

LineEditor::LineEditor(bool is_terminal, bool can_draw, const GracefulStop& stop,
                       const std::string& history_path, Completer complete)
    : stop_(stop) {
  if (!is_terminal) return;
  std::setlocale(LC_CTYPE, "C.UTF-8");
  edit_ = std::make_unique<Edit>(history_path, can_draw);
  edit_->stop = &stop;
  edit_->complete = complete;
  edit_->history = history_init();
  HistEvent event;
  history(edit_->history, &event, H_SETSIZE, static_cast<int>(HistoryFile::kMaxLines));
  history(edit_->history, &event, H_SETUNIQUE, 1);
  if (edit_->file.shorten()) history(edit_->history, &event, H_LOAD, edit_->file.path().c_str());
  std::FILE* const out = can_draw && edit_->nowhere ? edit_->nowhere : stdout;
  edit_->line =
      el_init_fd("dsv32", stdin, out, can_draw ? out : stderr, STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO);
  EditLine* line = edit_->line;
  el_set(line, EL_CLIENTDATA, edit_.get());
  el_set(line, EL_EDITOR, "emacs");
  el_set(line, EL_PROMPT, &Edit::show_prompt);
  el_set(line, EL_HIST, history, edit_->history);
  el_set(line, EL_GETCFN, &Edit::get_character);
  el_set(line, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  el_set(line, EL_ADDFN, "complete-word", "completes commands and paths", &Edit::complete_word);
  el_set(line, EL_BIND, "^I", "complete-word", nullptr);
  el_set(line, EL_ADDFN, "take-paste", "takes a text that is pasted", &Edit::take_paste);
  el_set(line, EL_ADDFN, "clear-window", "leaves the line alone in the window", &Edit::clear_screen);
  if (can_draw) el_set(line, EL_BIND, "^L", "clear-window", nullptr);
  std::string key;
  for (const KeySequences& keys : key_sequences()) {
    key.clear();
    append_utf8(key, static_cast<uint32_t>(kFirstKey + (&keys - key_sequences().data())));
    el_set(line, EL_BIND, key.c_str(), keys.command, nullptr);
  }
  // Between lines nothing is echoed, and a signal's key drops nothing of what was typed ahead.
  el_set(line, EL_SETTY, "-x", "-icanon", "-echo", "+noflsh", nullptr);
  edit_->terminal.keep_modes();
}

LineEditor::~LineEditor() {
  if (!edit_) return;
  el_end(edit_->line);
  history_end(edit_->history);
}

LineEditor::Event LineEditor::read(const char* prompt, std::string& line) {
  line.clear();
  if (!edit_) return read_plainly(line);
  edit_->prompt = prompt;
  edit_->pastes.clear();
  edit_->is_begun = false;
  edit_->terminal.fate();  // what was in the window before is nothing to this line
  if (!edit_->draws) el_resize(edit_->line);
  int n_chars = 0;
  const char* typed = el_gets(edit_->line, &n_chars);
  edit_->terminal.keep_modes();
  const bool is_there = typed && n_chars > 0;
  if (is_there) line = typed;
  const bool is_sent = line.ends_with('\n');  // before the signal, if there was one
  if (is_sent) line.pop_back();
  if (!is_there) line = edit_->text();
  edit_->leave_line(line, is_sent);
  if (stop_.is_requested() && !is_sent) return Event::interrupted;
  if (!is_there) return Event::end;
  line = edit_->whole(std::move(line));
  return Event::line;
}

bool LineEditor::has_paste() const { return edit_ && edit_->has_paste; }

void LineEditor::lend_terminal(const std::function<void()>& user) {
  edit_ ? edit_->terminal.lend(user) : user();
}

LineEditor::Event LineEditor::read_plainly(std::string& line) {
  size_t end = waiting_.find('\n');
  while (end == std::string::npos) {
    if (!wait_for_input(stop_)) return Event::interrupted;
    char block[4096];
    const ssize_t n_read = ::read(STDIN_FILENO, block, sizeof block);
    if (n_read < 0 && errno == EINTR) continue;
    if (n_read <= 0 && waiting_.empty()) return Event::end;
    waiting_.append(n_read <= 0 ? "\n" : std::string_view(block, static_cast<size_t>(n_read)));
    end = waiting_.find('\n');
  }
  line = as_typed(std::string(plain_text(std::string_view(waiting_).substr(0, end), "standard input")));
  waiting_.erase(0, end + 1);
  return Event::line;
}

void LineEditor::remember(const std::string& line) {
  HistEvent event;
  if (!edit_ || line.empty() || line[0] == ' ' || line.find('\0') != std::string::npos) return;
  const bool is_new = history(edit_->history, &event, H_ENTER, line.c_str()) > 0;  // not the last once more
  if (is_new && line.find('\n') == std::string::npos) edit_->file.append(line);
}

std::string history_path() {
  try {
    const std::string folder = make_user_folder(UserFolder::state);
    return folder.empty() ? folder : folder + "/history";
  } catch (const Error&) {
    return {};  // talks are not kept either, which says why
  }
}

}  // namespace dsv32
