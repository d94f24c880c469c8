// See line_editor.h.
//
// libedit only edits. Its output is discarded; the line is drawn here before each wait for input. Characters
// are read here too, because libedit's own reader does not return when a signal arrives, and knows fewer
// keys. The terminal whose modes libedit sets and whose size it allocates is one that nobody sees. libedit
// works in wide characters of the locale: C.UTF-8, whatever the environment says.
#include "cli/terminal/line_editor.h"

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <histedit.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/terminal/user_files.h"

namespace dsv32 {
namespace {

constexpr char kEndOfInput = 4, kEscape = 27;  // Ctrl-D, Esc
constexpr int kPollMilliseconds = 100;         // longest delay of a signal that comes just before poll()
constexpr int kMostPolls = 5;                  // for the rest of a key's sequence
constexpr size_t kMostInLine = 1000;           // bytes of a paste that is shown as it is
constexpr size_t kMostPasted = size_t{64} << 20;
constexpr std::string_view kPasteEnd = "\x1b[201~";

// Keys and libedit's commands; each row has a character of its own: kFirstKey plus its index.
constexpr std::pair<const char*, const char*> kKeys[] = {
    {"[A OA [1;2A", "ed-prev-history"},
    {"[B OB [1;2B", "ed-next-history"},
    {"[C OC [1;2C", "ed-next-char"},
    {"[D OD [1;2D", "ed-prev-char"},
    {"[H OH [1~ [7~ [1;2H", "ed-move-to-beg"},
    {"[F OF [4~ [8~ [1;2F", "ed-move-to-end"},
    {"[3~", "ed-delete-next-char"},
    {"[1;5C [1;3C [5C O5C Oc", "em-next-word"},
    {"[1;5D [1;3D [5D O5D Od", "ed-prev-word"},
    {"[3;5~ [3;3~ [3^", "em-delete-next-word"},
    {"[200~", "take-paste"},
};
constexpr wchar_t kFirstKey = 0x80, kLastKey = 0x9f;
static_assert(std::size(kKeys) <= kLastKey - kFirstKey + 1);

size_t n_lines(std::string_view text) { return static_cast<size_t>(std::ranges::count(text, '\n')) + 1; }

// Terminals send the line ends of a paste as the Enter key's \r.
std::string with_line_ends(std::string_view pasted) {
  std::string text;
  for (size_t i = 0; i < pasted.size(); ++i)
    if (!pasted.substr(i).starts_with("\r\n")) text += pasted[i] == '\r' ? '\n' : pasted[i];
  if (text.ends_with('\n')) text.pop_back();
  return sanitize_utf8(text);
}

// Ignores a failed write: the next read notices that the terminal is gone.
void draw_out(const std::string& text) {
  try {
    write_out_as_is(text);
  } catch (const Error&) {
  }
}

}  // namespace

size_t sequence_length(std::string_view input) {
  constexpr size_t kMouseBytes = 3;                 // after ESC [ M, the old form: button, column, row
  size_t at = input.starts_with("\x1b[[") ? 3 : 2;  // function keys of a Linux console have two brackets
  while (at < input.size() && input[at] >= ' ' && input[at] <= '?') ++at;
  if (at >= input.size()) return 0;
  const bool is_cut = input[at] < '@' || input[at] > '~';  // bytes of UTF-8 are negative
  const size_t n = at + !is_cut + (input.starts_with("\x1b[M") ? kMouseBytes : 0);
  return n <= input.size() ? n : 0;
}

wchar_t character_of(std::string_view sequence) {
  for (size_t i = 0; i < std::size(kKeys); ++i)
    if (std::ranges::count(split(kKeys[i].first, ' '), sequence) > 0)
      return kFirstKey + static_cast<wchar_t>(i);
  return 0;
}

// A terminal for libedit alone.
struct UnseenTerminal {
  OwnedFd outer, inner;
};

UnseenTerminal open_unseen_terminal() {
  termios modes{};  // have the keys that erase
  tcgetattr(STDIN_FILENO, &modes);
  // Of a terminal without a size libedit asks the terminal's own description.
  const WindowSize window = window_size();
  const winsize size{static_cast<uint16_t>(window.rows), static_cast<uint16_t>(window.columns), 0, 0};
  int outer = -1, inner = -1;
  if (openpty(&outer, &inner, nullptr, &modes, &size) != 0)
    fail(ErrorKind::io, std::string("cannot open a pseudo-terminal: ") + std::strerror(errno));
  for (const int fd : {outer, inner}) fcntl(fd, F_SETFD, FD_CLOEXEC);
  return {{real_file_system(), outer}, {real_file_system(), inner}};
}

struct LineEditor::Edit {
  const GracefulStop& stop;
  const Expand expand;
  HistoryFile file;
  const UnseenTerminal unseen = open_unseen_terminal();
  HeldTerminal terminal;
  LineDrawing drawing;
  std::FILE* const nowhere = std::fopen("/dev/null", "w");
  EditLine* line = nullptr;
  History* history = history_init();
  const char* prompt = "";
  std::string input;                // read and not yet taken
  std::vector<std::string> pastes;  // of the line
  bool has_paste = false;           // the sent line had one of them

  Edit(const GracefulStop& its_stop, Expand its_expand, const std::string& path)
      : stop(its_stop), expand(its_expand), file(path) {
    HistEvent event;
    ::history(history, &event, H_SETSIZE, static_cast<int>(HistoryFile::kMaxLines));
    ::history(history, &event, H_SETUNIQUE, 1);
    if (file.shorten()) ::history(history, &event, H_LOAD, file.path().c_str());
    if (!nowhere) fail_file("open", "/dev/null");
    line = el_init_fd("dsv32", stdin, nowhere, nowhere, unseen.inner.get(), unseen.inner.get(),
                      unseen.inner.get());
    set_up();
  }

  ~Edit() {
    el_end(line);
    history_end(history);
    std::fclose(nowhere);
  }

  void set_up() {
    el_set(line, EL_CLIENTDATA, this);
    el_set(line, EL_EDITOR, "emacs");
    el_set(line, EL_PROMPT, &Edit::show_prompt);
    el_set(line, EL_HIST, ::history, history);
    el_set(line, EL_GETCFN, &Edit::get_character);
    el_set(line, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_set(line, EL_ADDFN, "complete-word", "completes commands and paths", &Edit::complete_word);
    el_set(line, EL_BIND, "^I", "complete-word", nullptr);
    el_set(line, EL_ADDFN, "take-paste", "takes a text that is pasted", &Edit::take_paste);
    el_set(line, EL_ADDFN, "clear-window", "leaves the line alone in the window", &Edit::clear_screen);
    el_set(line, EL_BIND, "^L", "clear-window", nullptr);
    for (size_t i = 0; i < std::size(kKeys); ++i) {
      std::string key;
      append_utf8(key, static_cast<uint32_t>(kFirstKey) + static_cast<uint32_t>(i));
      el_set(line, EL_BIND, key.c_str(), kKeys[i].second, nullptr);
    }
  }

  static Edit& of(EditLine* line) {
    void* self = nullptr;
    el_get(line, EL_CLIENTDATA, &self);
    return *static_cast<Edit*>(self);
  }

  // The line up to the cursor, and the rest.
  std::string before() const {
    const LineInfo* info = el_line(line);
    return {info->buffer, info->cursor};
  }
  std::string after() const {
    const LineInfo* info = el_line(line);
    return {info->cursor, info->lastchar};
  }
  static char* show_prompt(EditLine* line) { return const_cast<char*>(of(line).prompt); }

  // Whether `input` has at least n_bytes. False with errno 0 at the end of input, EINTR when stopped, and
  // EAGAIN when they did not come within n_polls (-1: no limit).
  bool have(size_t n_bytes, int n_polls = -1) {
    while (input.size() < n_bytes) {
      if (!wait(n_polls)) return false;
      char block[4096];
      const ssize_t n_read = ::read(STDIN_FILENO, block, sizeof block);
      if (n_read == 0) errno = 0;
      if (n_read <= 0) return false;
      input.append(block, static_cast<size_t>(n_read));
    }
    return true;
  }

  // Waits for input and keeps the line drawn, also after a change of the window or another program's output.
  bool wait(int n_polls) {
    pollfd readable{STDIN_FILENO, POLLIN, 0};
    for (draw(); !stop.is_requested(); follow_terminal()) {
      if (poll(&readable, 1, kPollMilliseconds) > 0) return true;
      errno = EAGAIN;
      if (n_polls >= 0 && --n_polls < 0) return false;
    }
    errno = EINTR;
    return false;
  }

  void follow_terminal() {
    const bool was_lost = terminal.was_lost();
    if (was_lost) drawing.begin();
    if (was_lost || drawing.width() != window_size().columns) draw();
  }

  void draw() { draw_out(drawing.show(as_sent(prompt + before()), as_sent(after()), window_size())); }

  // Draws the line for the last time. The next output begins a new row if `is_ended`, else after the line.
  void leave_line(const std::string& text, bool is_ended) {
    draw_out(drawing.show(as_sent(prompt + text), "", {SIZE_MAX, window_size().columns}) +
             (is_ended ? "\r\n" : ""));
    drawing.begin();
  }

  // Gives libedit one character: 1, 0 at the end of input, -1 when stopped.
  static int get_character(EditLine* line, wchar_t* character) {
    Edit& self = of(line);
    do {
      if (!self.have(1)) return errno == EINTR ? -1 : 0;
      *character = self.input[0] == kEscape ? self.take_key() : self.take_character();
    } while (*character == 0);
    return 1;
  }

  // Takes a character from `input`; 0 for one that is dropped.
  wchar_t take_character() {
    while (incomplete_utf8_tail(input) == input.size() && have(input.size() + 1)) continue;
    uint32_t code_point = 0;
    const int n_bytes = decode_utf8(input, 0, &code_point);
    input.erase(0, static_cast<size_t>(std::max(n_bytes, 1)));  // bytes after a cut character stay
    if (n_bytes == 0 || code_point == kTextAt) return 0xfffd;
    // A Ctrl-D typed before the editor set raw mode arrives as NUL.
    if (code_point == 0) return kEndOfInput;
    const auto character = static_cast<wchar_t>(code_point);
    return character >= kFirstKey && character <= kLastKey ? 0 : character;
  }

  // The same for ESC: takes a key's whole sequence, or ESC alone, to which libedit adds the next character.
  wchar_t take_key() {
    const bool is_key = have(2, kMostPolls) && (input[1] == '[' || input[1] == 'O');
    const bool is_twice = input.size() > 1 && input[1] == kEscape;
    if (!is_key) {
      input.erase(0, 1);
      return is_twice ? 0 : kEscape;
    }
    size_t n_bytes = 0;
    while ((n_bytes = sequence_length(input)) == 0 && have(input.size() + 1, kMostPolls)) continue;
    const std::string key = input.substr(0, n_bytes > 0 ? n_bytes : input.size());
    input.erase(0, key.size());
    return character_of(std::string_view(key).substr(1));
  }

  static unsigned char take_paste(EditLine* line, int) {
    Edit& self = of(line);
    size_t end = 0, from = 0;
    while ((end = self.input.find(kPasteEnd, from)) == std::string::npos) {
      from = self.input.size() - std::min(self.input.size(), kPasteEnd.size());
      if (self.input.size() <= kMostPasted && self.have(self.input.size() + 1)) continue;
      self.input.clear();  // drops an incomplete paste
      return CC_REFRESH;
    }
    std::string text = with_line_ends(std::string_view(self.input).substr(0, end));
    self.input.erase(0, end + kPasteEnd.size());
    if (n_lines(text) == 1 && text.size() <= kMostInLine && text.find('\0') == std::string::npos) {
      text = as_text(text);
    } else {
      self.pastes.push_back(std::move(text));
      text = self.paste_name(self.pastes.size() - 1);
    }
    return text.empty() || el_insertstr(line, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  std::string paste_name(size_t i) const {
    const size_t n = n_lines(pastes[i]);
    return n > 1 ? format("[paste %zu: %zu lines]", i + 1, n)
                 : format("[paste %zu: %zu bytes]", i + 1, pastes[i].size());
  }

  // The line with its pastes in place of their names. A name that was edited stays as text.
  std::string whole(std::string text) {
    size_t from = 0;
    has_paste = false;
    for (size_t i = 0; i < pastes.size(); ++i) {
      const std::string name = paste_name(i), pasted = as_text(pastes[i]);
      const size_t at = text.find(name, from);
      if (at == std::string::npos) continue;
      text.replace(at, name.size(), pasted);
      from = at + pasted.size();
      has_paste = true;
    }
    return text;
  }

  static unsigned char complete_word(EditLine* line, int) {
    Edit& self = of(line);
    const Expansion found = self.expand(self.before());
    if (!found.more.empty()) return el_insertstr(line, found.more.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
    if (found.choices.empty()) {
      draw_out("\a");
      return CC_REFRESH;
    }
    self.leave_line(self.before() + self.after(), true);
    std::string list;
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
                       const std::string& history_path, Expand expand)
    : stop_(stop), is_terminal_(is_terminal) {
  if (is_terminal && can_draw) {
    std::setlocale(LC_CTYPE, "C.UTF-8");
    edit_ = std::make_unique<Edit>(stop, expand, history_path);
  } else {
    plain_.emplace(STDIN_FILENO, "standard input", SIZE_MAX);
  }
}

LineEditor::~LineEditor() = default;

LineEditor::Event LineEditor::read(const char* prompt, std::string& line) {
  line.clear();
  if (!edit_) return read_plainly(prompt, line);
  edit_->prompt = prompt;
  edit_->pastes.clear();
  edit_->terminal.was_lost();  // earlier losses do not concern this line
  int n_chars = 0;
  const char* typed = el_gets(edit_->line, &n_chars);
  const bool is_there = typed && n_chars > 0;
  line = is_there ? std::string(typed) : edit_->before() + edit_->after();
  const bool is_sent = is_there && line.ends_with('\n');  // before any signal
  if (is_sent) line.pop_back();
  edit_->leave_line(line, is_sent);
  if (stop_.is_requested() && !is_sent) return Event::interrupted;
  if (!is_there) return Event::end;
  line = edit_->whole(std::move(line));
  return Event::line;
}

LineEditor::Event LineEditor::read_plainly(const char* prompt, std::string& line) {
  if (is_terminal_) draw_out(prompt);
  LineReader::Line read;
  LineReader::Result result;
  while ((result = plain_->next(read, kPollMilliseconds)) == LineReader::Result::later)
    if (stop_.is_requested()) return Event::interrupted;
  if (result == LineReader::Result::end) return Event::end;
  line = as_typed(std::move(read.text));
  return Event::line;
}

bool LineEditor::has_paste() const { return edit_ && edit_->has_paste; }

void LineEditor::remember(const std::string& line) {
  HistEvent event;
  if (!edit_ || line.empty() || line[0] == ' ' || line.find('\0') != std::string::npos) return;
  const bool is_new = history(edit_->history, &event, H_ENTER, line.c_str()) > 0;  // false: like the last
  if (is_new && line.find('\n') == std::string::npos) edit_->file.append(line);
}

bool LineEditor::edit_elsewhere(std::string& text) {
  std::optional<HeldTerminal::Loan> loan;
  if (edit_) loan.emplace();
  return edit_text(text);
}

}  // namespace dsv32
