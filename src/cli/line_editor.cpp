// See line_editor.h.
//
// libedit gets its characters from here, because its own reader does not come back when a signal arrives. It
// thinks in wide characters of the locale: the C.UTF-8 one, whatever the environment says.
#include "cli/line_editor.h"

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <utility>

#include <fcntl.h>
#include <histedit.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/history_file.h"
#include "cli/streams.h"
#include "cli/terminal.h"
#include "cli/user_folders.h"
#include "cli/word_wrap.h"

namespace dsv32 {
namespace {

constexpr char kEndOfInput = 4;         // Ctrl-D
constexpr int kPollMilliseconds = 100;  // how long a signal may go unnoticed that comes just before poll()
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

// Rows above the end of `text`, which libedit has drawn in rows of `drawn` columns, once the window has
// `now`. A terminal joins the rows that were full; those that end in a space are not, since libedit leaves it
// away.
size_t rows_above(std::string_view text, size_t drawn, size_t now) {
  size_t n_rows = 0, column = 0, n_joined = 0;
  char last = ' ';
  for (size_t at = 0, n = 1; at < text.size(); at += n) {
    for (n = 1; at + n < text.size() && (text[at + n] & 0xc0) == 0x80;) ++n;
    const size_t n_columns = columns_of(text.substr(at, n));
    const bool is_full = column + n_columns > drawn;
    if (text[at] == '\n' || (is_full && last == ' '))
      n_rows += 1 + (n_joined - (n_joined > 0)) / now, n_joined = 0;
    if (text[at] == '\n' || is_full) column = 0;
    column += n_columns, n_joined += n_columns;
    last = text[at];
  }
  return n_rows + n_joined / now;
}

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

}  // namespace

struct LineEditor::Edit {
  EditLine* line = nullptr;
  History* history = nullptr;
  HistoryFile file;
  const char* prompt = "";
  const GracefulStop* stop = nullptr;
  Completer complete = nullptr;
  bool marks_pastes = false;
  termios former{};                 // of the terminal, before all this
  std::string ahead;                // read and not yet taken
  std::vector<std::string> pastes;  // of the line
  bool has_lines = false;           // one of them, of several, is in the line
  size_t width = 0;                 // of the window, as it was drawn

  explicit Edit(const std::string& path) : file(path) {}
  static Edit& of(EditLine* line) {
    void* self = nullptr;
    el_get(line, EL_CLIENTDATA, &self);
    return *static_cast<Edit*>(self);
  }
  static char* show_prompt(EditLine* line) { return const_cast<char*>(of(line).prompt); }

  void mark_pastes(bool on) const {
    if (marks_pastes) write_err(on ? "\x1b[?2004h" : "\x1b[?2004l");
  }

  // Whether there is a byte in `ahead`. False with errno 0 at the end of input, and EINTR when stopped.
  bool fill() {
    while (ahead.empty()) {
      errno = EINTR;
      if (!wait()) return false;
      char block[4096];
      const ssize_t n_read = ::read(STDIN_FILENO, block, sizeof block);
      if (n_read == 0) errno = 0;
      if (n_read <= 0) return false;
      ahead.assign(block, static_cast<size_t>(n_read));
    }
    return true;
  }

  // For input. False when a stop was requested first.
  bool wait() {
    pollfd readable{STDIN_FILENO, POLLIN, 0};
    while (!stop->is_requested()) {
      if (poll(&readable, 1, kPollMilliseconds) > 0) return true;
      follow_window();
    }
    return false;
  }

  // A window of another width: its terminal has broken the line anew, and what is drawn goes from the line's
  // first row on.
  void follow_window() {
    const size_t now = columns(), drawn = std::exchange(width, now);
    if (drawn == now) return;
    const LineInfo* info = el_line(line);
    const size_t n_rows = rows_above(prompt + std::string(info->buffer, info->cursor), drawn, now);
    write_err("\r" + (n_rows > 0 ? format("\x1b[%zuA", n_rows) : "") + "\x1b[J");
    el_resize(line);
    el_set(line, EL_REFRESH);
  }

  // One character for libedit: 1, 0 at the end of input, -1 when stopped.
  static int get_character(EditLine* line, wchar_t* character) {
    Edit& self = of(line);
    std::string bytes;
    uint32_t code_point = 0xfffd;
    do {
      if (!self.fill()) return errno == EINTR ? -1 : 0;
      const char byte = self.ahead.front();
      self.ahead.erase(0, 1);
      // A Ctrl-D typed before the terminal was ours has become NUL on its way to raw mode.
      bytes += byte == 0 ? kEndOfInput : byte;
    } while (incomplete_utf8_tail(bytes) > 0);
    decode_utf8(bytes, 0, &code_point);
    *character = static_cast<wchar_t>(code_point);
    return 1;
  }

  static unsigned char take_paste(EditLine* line, int) {
    Edit& self = of(line);
    std::string pasted;
    size_t end = 0;
    while ((end = pasted.find(kPasteEnd, end)) == std::string::npos) {
      end = pasted.size() - std::min(pasted.size(), kPasteEnd.size());
      if (pasted.size() > kMostPasted || !self.fill()) return CC_REFRESH;
      pasted += std::exchange(self.ahead, {});
    }
    self.ahead = pasted.substr(end + kPasteEnd.size());
    std::string text = with_line_ends(std::string_view(pasted).substr(0, end));
    if (n_lines(text) > 1 || text.size() > kMostInLine) {
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
    has_lines = false;
    for (size_t i = 0; i < pastes.size(); ++i) {
      const std::string name = paste_name(i);
      const size_t at = text.find(name, from);
      if (at == std::string::npos) continue;
      text.replace(at, name.size(), pastes[i]);
      from = at + pastes[i].size();
      has_lines |= n_lines(pastes[i]) > 1;
    }
    return text;
  }

  static unsigned char complete_word(EditLine* line, int) {
    const LineInfo* info = el_line(line);
    const std::string before(info->buffer, info->cursor);
    const Completion found = of(line).complete(before);
    if (!found.more.empty()) return el_insertstr(line, found.more.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
    if (found.choices.empty()) return CC_REFRESH_BEEP;
    std::string list = "\n";
    for (const std::string& choice : found.choices) list += visible(choice) + "\n";
    write_err(list);
    return CC_REDISPLAY;
  }
};

LineEditor::LineEditor(bool is_terminal, bool marks_pastes, const GracefulStop& stop,
                       const std::string& history_path, Completer complete)
    : stop_(stop) {
  if (!is_terminal) return;
  std::setlocale(LC_CTYPE, "C.UTF-8");
  edit_ = std::make_unique<Edit>(history_path);
  edit_->stop = &stop;
  edit_->complete = complete;
  edit_->marks_pastes = marks_pastes;
  tcgetattr(STDIN_FILENO, &edit_->former);
  edit_->history = history_init();
  HistEvent event;
  history(edit_->history, &event, H_SETSIZE, static_cast<int>(HistoryFile::kMaxLines));
  history(edit_->history, &event, H_SETUNIQUE, 1);
  if (edit_->file.shorten()) history(edit_->history, &event, H_LOAD, edit_->file.path().c_str());
  edit_->line = el_init("dsv32", stdin, stdout, stderr);
  EditLine* line = edit_->line;
  el_set(line, EL_CLIENTDATA, edit_.get());
  el_set(line, EL_EDITOR, "emacs");
  el_set(line, EL_PROMPT, &Edit::show_prompt);
  el_set(line, EL_HIST, history, edit_->history);
  el_set(line, EL_GETCFN, &Edit::get_character);
  el_set(line, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  el_set(line, EL_ADDFN, "take-paste", "takes a text that is pasted", &Edit::take_paste);
  el_set(line, EL_BIND, "\\e[200~", "take-paste", nullptr);
  el_set(line, EL_ADDFN, "complete-word", "completes commands and paths", &Edit::complete_word);
  el_set(line, EL_BIND, "^I", "complete-word", nullptr);
  // Between lines nothing is echoed, and a signal's key drops nothing of what was typed ahead.
  el_set(line, EL_SETTY, "-x", "-icanon", "-echo", "+noflsh", nullptr);
  edit_->mark_pastes(true);
}

LineEditor::~LineEditor() {
  if (!edit_) return;
  edit_->mark_pastes(false);
  el_end(edit_->line);
  tcsetattr(STDIN_FILENO, TCSADRAIN, &edit_->former);
  history_end(edit_->history);
}

LineEditor::Event LineEditor::read(const char* prompt, std::string& line) {
  if (!edit_) return read_plainly(line);
  edit_->prompt = prompt;
  edit_->pastes.clear();
  edit_->width = columns();
  el_resize(edit_->line);
  int n_chars = 0;
  const char* typed = el_gets(edit_->line, &n_chars);
  const bool is_sent =
      typed && n_chars > 0 && typed[n_chars - 1] == '\n';  // before the signal, if there was one
  if (stop_.is_requested() && !is_sent) return Event::interrupted;
  if (!typed || n_chars <= 0) return Event::end;
  line = typed;
  if (line.ends_with('\n')) line.pop_back();
  line = edit_->whole(std::move(line));
  return Event::line;
}

bool LineEditor::has_paste() const { return edit_ && edit_->has_lines; }

void LineEditor::lend_terminal(const std::function<void()>& user) {
  if (!edit_) return user();
  termios ours{};
  tcgetattr(STDIN_FILENO, &ours);
  edit_->mark_pastes(false);
  tcsetattr(STDIN_FILENO, TCSADRAIN, &edit_->former);
  user();
  tcsetattr(STDIN_FILENO, TCSADRAIN, &ours);
  edit_->mark_pastes(true);
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
  line = waiting_.substr(0, end);
  waiting_.erase(0, end + 1);
  return Event::line;
}

void LineEditor::remember(const std::string& line) {
  HistEvent event;
  if (!edit_ || line.empty() || line[0] == ' ') return;
  const bool is_new = history(edit_->history, &event, H_ENTER, line.c_str()) > 0;  // not the last once more
  if (is_new) edit_->file.append(line);
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
