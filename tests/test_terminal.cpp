// cli/terminal and cli/chat/answer: where text goes, how it looks, what is escaped, and what keys send.
//
// Sinks that collect stand for the streams.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <filesystem>
#include <random>
#include <sstream>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/chat/answer.h"
#include "cli/chat/chat.h"
#include "cli/terminal/line_editor.h"
#include "cli/terminal/streams.h"
#include "tests/support/contains.h"
#include "tests/support/plain_files.h"
#include "tests/support/screen.h"

using namespace dsv32;

BOOST_AUTO_TEST_SUITE(terminal)

namespace {

// A printer and what it has printed; one at a time.
struct Printed {
  explicit Printed(const AnswerPrinter::Style& style)
      : printer(
            style, status, stop, {}, [](std::string_view text) { out += text; },
            [](std::string_view text) { err += text; }) {
    out.clear(), err.clear();
  }
  static inline std::string out, err;
  StatusLine status{false, true};
  GracefulStop stop;
  AnswerPrinter printer;
};

struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("dsv32_output_" + std::to_string(getpid()));
  Folder() { std::filesystem::create_directory(path); }
  ~Folder() { std::filesystem::remove_all(path); }
};

}  // namespace

// One that cannot be redrawn stands in a log now and then, and a quiet one nowhere.
BOOST_AUTO_TEST_CASE(progress_leaves_a_line_now_and_then_in_a_log) {
  const Folder folder;
  const auto logged = [&](bool is_quiet, double every) {
    const std::string path = folder.path / "log";
    const int before = dup(STDERR_FILENO), log = open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    dup2(log, STDERR_FILENO);
    StatusLine status(false, is_quiet, every);
    for (int i = 0; i < 3; ++i) status.show("half way");
    dup2(before, STDERR_FILENO);
    close(before), close(log);
    return read_file(path);
  };
  BOOST_TEST(logged(false, 0) == "half way\nhalf way\nhalf way\n");
  BOOST_TEST(logged(false, 60) == "");
  BOOST_TEST(logged(true, 0) == "");
}

// Whatever the pieces, no word is broken that fits a line, and nothing else changes.
BOOST_AUTO_TEST_CASE(words_wrap_at_the_windows_width) {
  const std::string text =
      "It was the best of times, it was the worst of times,\n\nit was averyveryverylongword\tof  two spaces "
      "and \u65e5\u672c\u8a9e\u306e\u6587\u7ae0 and e\u0301 caf\u00e9 end.\n1234567890 12345678901 x\n";
  const auto words_of = [](std::string from) {
    std::vector<std::string> words;
    for (char& c : from) c = c == '\n' || c == '\t' ? ' ' : c;
    std::istringstream stream(from);
    for (std::string word; stream >> word;) words.push_back(word);
    return words;
  };
  for (const size_t width : {10, 11, 17, 25, 80})
    for (const size_t n_at_once : {1, 3, 1000, -1}) {  // the last one in tmux
      WordWrap wrap;
      Screen screen(width, false, n_at_once > 1000);
      std::string piece;
      for (size_t at = 0; at < text.size(); ++at) {
        piece += text[at];
        if (incomplete_utf8_tail(piece) > 0 || (piece.size() < n_at_once && at + 1 < text.size())) continue;
        for (const char c : wrap.wrap(piece, width)) screen.feed(c == '\n' ? "\r\n" : std::string(1, c));
        piece.clear();
      }
      std::string lines = screen.text();
      for (const std::string& word : words_of(text))
        if (columns_of(word) == word.size() && word.size() <= width)  // ASCII
          BOOST_TEST(std::ranges::count(words_of(lines), word) > 0, word << " in " << width << " columns:\n"
                                                                         << lines);
      const auto letters = [](std::string all) {
        std::erase_if(all, [](char c) { return c == ' ' || c == '\n' || c == '\t'; });
        return all;
      };
      BOOST_TEST(letters(lines) == letters(text));
      BOOST_TEST(std::ranges::count(lines, '\n') >= 5);
    }
  WordWrap none;
  BOOST_TEST(none.wrap(text, 0) == text);
}

// Whatever is put in, taken out or moved over, and whether or not the terminal joins emoji: the window holds
// the line, broken where the most that any terminal makes of it fills a row, and nothing else.
BOOST_AUTO_TEST_CASE(a_line_is_drawn_as_it_is_edited) {
  const std::vector<std::string> pieces{"a",  "b",    "word ",           " ",       "語", "한국", "e\u0301",
                                        "\t", "\x1b", "👨\u200d👩\u200d👧", "❤\ufe0f", "👍"};
  const auto shown = [](const std::string& piece) { return piece == "\x1b" ? "\\e" : piece; };
  std::mt19937 random(7);
  const auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  for (const size_t width : {20, 40, 80})
    for (const auto& [joins, stands_behind] : {std::pair(false, false), {true, false}, {false, true}}) {
      Screen screen(width, joins, stands_behind);
      LineDrawing drawing;
      std::vector<std::string> line;
      size_t at = 0;
      for (int step = 0; step < 600; ++step) {
        const size_t what = below(step % 100 < 60 ? 6 : 10);
        if (what < 4) line.insert(line.begin() + static_cast<long>(at++), pieces[below(pieces.size())]);
        if (what == 4) at = below(line.size() + 1);
        if (what == 5) at = line.size();
        if (what > 5 && at > 0) line.erase(line.begin() + static_cast<long>(--at));
        std::vector<std::string> rows{"> "};
        std::string left, before = "> ", after;
        size_t column = 2, cursor_row = 0;
        for (size_t i = 0; i <= line.size(); ++i) {
          if (i == at) {
            if (column >= width) rows.emplace_back(), column = 0;
            left = rows.back(), cursor_row = rows.size() - 1;
          }
          if (i == line.size()) break;
          (i < at ? before : after) += line[i];
          for (size_t byte = 0; byte < line[i].size();) {  // rows may end between the parts of one
            uint32_t code = 0;
            const auto n_bytes = static_cast<size_t>(decode_utf8(line[i], byte, &code));
            std::string part = shown(line[i].substr(byte, n_bytes));
            if (part == "\t") part = std::string(8 - column % 8, ' ');
            const size_t n = code == 0x2764 ? 2 : columns_of(part);  // with what follows it
            if (column + n > width) rows.emplace_back(), column = 0;
            rows.back() += part, column += n, byte += n_bytes;
          }
        }
        screen.feed(drawing.show(before, after, {1000, width}));
        std::string expected;
        for (std::string row : rows) {
          row.resize(row.find_last_not_of(' ') + 1);
          expected += row + "\n";
        }
        BOOST_REQUIRE_EQUAL(screen.text(), expected);
        BOOST_REQUIRE_EQUAL(screen.left_of_cursor(), left);
        BOOST_REQUIRE_EQUAL(screen.row(), cursor_row);
        BOOST_REQUIRE(drawing.show(before, after, {1000, width}).empty());
      }
    }
}

// Of a line with more rows than the window those around the cursor are shown.
BOOST_AUTO_TEST_CASE(a_line_may_be_longer_than_its_window) {
  constexpr WindowSize kWindow{5, 10};
  std::string text = "> ";
  for (int i = 0; i < 30; ++i) text += std::to_string(i) + "\n";
  for (const bool is_at_end : {true, false}) {
    Screen screen(kWindow.columns);
    LineDrawing drawing;
    screen.feed(drawing.show(text, "", kWindow));
    BOOST_TEST(screen.text() == "26\n27\n28\n29\n\n");
    if (!is_at_end) screen.feed(drawing.show("", text, kWindow));
    BOOST_TEST(screen.cursor_row() == (is_at_end ? "" : "> 0"));
    screen.feed(drawing.show(text, "", kWindow));
    BOOST_TEST(screen.text() == "26\n27\n28\n29\n\n");
  }
}

BOOST_AUTO_TEST_CASE(sequences_of_keys_end_where_they_end) {
  const std::pair<const char*, size_t> lengths[] = {
      {"\x1b[", 0},        {"\x1b[Ax", 3},  {"\x1b[1;5Cx", 6}, {"\x1b[1;5", 0},
      {"\x1b[13;2ux", 7},  {"\x1bOPx", 3},  {"\x1b[[Ax", 4},   {"\x1b[<0;10;10Mx", 11},
      {"\x1b[M !!x", 6},   {"\x1b[M !", 0}, {"\x1b[1\rx", 3},  {"\x1b[\rx", 2},
      {"\x1b[\x1b[Ax", 2}, {"\x1b[é", 2},   {"\x1b[200~x", 6}, {"\x1b[?1;2cx", 7}};
  for (const auto& [input, n] : lengths)
    BOOST_TEST(sequence_length(input) == n, visible(input) << ": " << sequence_length(input));
  BOOST_TEST((character_of("[1;5C") != 0));
  BOOST_TEST((character_of("[1;5C") == character_of("[1;3C")));
  BOOST_TEST((character_of("[1;5C") != character_of("[1;5D")));
  for (const char* nothing : {"[5~", "[15~", "[", "", "[C O", "[13;2u", "[201~"})
    BOOST_TEST((character_of(nothing) == 0));
}

// A window of 24 rows shows the list between two prompts; in a narrow one no word is broken.
BOOST_AUTO_TEST_CASE(a_chats_help_fits_its_window) {
  const std::string help = Conversation::help();
  BOOST_TEST(std::ranges::count(help, '\n') <= 22);
  std::istringstream lines(help), words(help);
  for (std::string line; std::getline(lines, line);) BOOST_TEST(columns_of(line) < 80u, line);
  for (const std::string& setting : chat_settings()) BOOST_TEST(contains(help, setting));
  Screen narrow(40);
  WordWrap wrap;
  for (const char c : wrap.wrap(help, 40)) narrow.feed(c == '\n' ? "\r\n" : std::string(1, c));
  for (std::string word; words >> word;) BOOST_TEST(contains(narrow.text(), word), word);
}

BOOST_AUTO_TEST_CASE(color_rule) {
  BOOST_TEST(decide_color(ColorMode::automatic, true, nullptr, "xterm"));
  BOOST_TEST(decide_color(ColorMode::automatic, true, "", "xterm"));  // an empty NO_COLOR says nothing
  BOOST_TEST(!decide_color(ColorMode::automatic, true, "1", "xterm"));
  BOOST_TEST(!decide_color(ColorMode::automatic, true, nullptr, "dumb"));
  BOOST_TEST(!decide_color(ColorMode::automatic, true, nullptr, nullptr));
  BOOST_TEST(!decide_color(ColorMode::automatic, false, nullptr, "xterm"));
  BOOST_TEST(decide_color(ColorMode::always, false, "1", "dumb"));
  BOOST_TEST(!decide_color(ColorMode::never, true, nullptr, "xterm"));
}

BOOST_AUTO_TEST_CASE(thinking_and_answer_go_apart) {
  Printed printed({ThinkingDisplay::show, false, false});
  printed.printer.on_reasoning("let me ");
  printed.printer.on_reasoning("see");
  printed.printer.on_answer("4");
  printed.printer.on_answer("2");
  printed.printer.finish(true);
  BOOST_TEST(printed.out == "42\n");
  BOOST_TEST(printed.err == "thinking:\nlet me see\nanswer:\n");
}

BOOST_AUTO_TEST_CASE(every_coloured_write_ends_with_a_reset) {
  Printed printed({ThinkingDisplay::show, false, true});
  printed.printer.on_reasoning("a");
  BOOST_TEST(printed.err == "\x1b[2ma\x1b[0m");
  printed.printer.on_reasoning("b\n");
  BOOST_TEST(printed.err.ends_with("\x1b[0m"));
  printed.printer.on_answer("c\n");
  printed.printer.finish(true);
  BOOST_TEST(printed.err == "\x1b[2ma\x1b[0m\x1b[2mb\n\x1b[0m\n");
  BOOST_TEST(printed.out == "c\n");
}

BOOST_AUTO_TEST_CASE(hidden_thinking_leaves_nothing) {
  Printed printed({ThinkingDisplay::hide, false, true});
  printed.printer.on_reasoning("secret");
  printed.printer.on_answer("x");
  printed.printer.finish(true);
  BOOST_TEST(printed.out == "x\n");
  BOOST_TEST(printed.err == "");
}

BOOST_AUTO_TEST_CASE(thinking_on_stdout_has_its_tags) {
  Printed whole({ThinkingDisplay::on_stdout, false, false});
  whole.printer.on_reasoning("a");
  whole.printer.on_reasoning("b");
  whole.printer.on_answer("c");
  whole.printer.finish(true);
  BOOST_TEST(whole.out == "<think>ab</think>c\n");
  Printed without_answer({ThinkingDisplay::on_stdout, false, false});
  without_answer.printer.on_reasoning("a");
  without_answer.printer.finish(true);
  BOOST_TEST(without_answer.out == "<think>a</think>\n");
  Printed cut({ThinkingDisplay::on_stdout, false, false});
  cut.printer.on_reasoning("a");
  cut.printer.finish(false);
  BOOST_TEST(cut.out == "<think>a\n");
}

BOOST_AUTO_TEST_CASE(an_answer_ends_its_line_once) {
  for (const std::string answer : {"x", "x\n", ""}) {
    Printed printed({ThinkingDisplay::show, false, false});
    if (!answer.empty()) printed.printer.on_answer(answer);
    printed.printer.finish(false);
    BOOST_TEST(printed.out == (answer.empty() ? "\n" : "x\n"));
  }
}

// What a model may say to a terminal: set its clipboard, clear it, forge a link, reverse the text.
BOOST_AUTO_TEST_CASE(a_terminal_is_not_told_what_to_do) {
  const std::string attacks[] = {"\x1b]52;c;aGk=\x07",
                                 "\x1b[2J",
                                 "\x1b]8;;http://x\x1b\\",
                                 "\x9b"
                                 "31m",
                                 "\xc2\x9b"
                                 "31m",
                                 "\r",
                                 "\b",
                                 "\x7f",
                                 "\xe2\x80\xae"};
  for (const std::string& attack : attacks) {
    for (const bool is_terminal : {true, false}) {
      Printed printed({ThinkingDisplay::show, is_terminal, false});
      printed.printer.on_reasoning("r" + attack);
      printed.printer.on_answer("a\t" + attack);
      printed.printer.finish(true);
      BOOST_TEST(!contains(printed.err, attack));
      if (is_terminal) BOOST_TEST(!contains(printed.out, attack));
      if (is_terminal) BOOST_TEST(printed.out.starts_with("a\t"));
      if (!is_terminal) BOOST_TEST(printed.out == "a\t" + attack + "\n");
    }
  }
}

BOOST_AUTO_TEST_CASE(numbers_for_people) {
  BOOST_TEST(with_thousands(0) == "0");
  BOOST_TEST(with_thousands(999) == "999");
  BOOST_TEST(with_thousands(1204) == "1,204");
  BOOST_TEST(with_thousands(1234567) == "1,234,567");
  BOOST_TEST(with_thousands(-1234) == "-1,234");
  BOOST_TEST(with_thousands(-123) == "-123");
  BOOST_TEST(rate(1, 2) == "0.50");
  BOOST_TEST(rate(123, 10) == "12.3");
  BOOST_TEST(rate(12400, 10) == "1,240");
  BOOST_TEST(rate(5, 0) == "0.00");
}

BOOST_AUTO_TEST_CASE(progress_tells_rate_and_rest) {
  // 12,288 held, 6,144 computed in 6 s: 1,024 t/s; 43,008 to go: 42 s.
  BOOST_TEST(prefill_progress(18432, 61440, 12288, 6.0) ==
             "reading prompt 18,432 / 61,440 tokens (12,288 from cache)  1,024 t/s  42 s left");
  BOOST_TEST(prefill_progress(5, 10, 5, 0.0) == "reading prompt 5 / 10 tokens (5 from cache)");
  BOOST_TEST(buffer_summary({1000, 30}) == "top-k buffer: 1,000 rows, 30 misses, hit rate 97.0 %");
}

BOOST_AUTO_TEST_CASE(a_prompt_that_was_left_counts_what_was_read) {
  GenerationResult result;
  result.n_prompt_tokens = 3293, result.n_read_tokens = 270, result.prefill_seconds = 1;
  BOOST_TEST(prefill_summary(result, false) == "prompt: 270 of 3,293 tokens (0 from cache), 270 t/s");
  result.n_read_tokens = 3293, result.n_cached_tokens = 3200;
  BOOST_TEST(prefill_summary(result, false) == "prompt: 3,293 tokens (3,200 from cache), 93.0 t/s");
}

BOOST_AUTO_TEST_CASE(a_long_prompt_tells_why_none_came_from_the_cache) {
  GenerationResult result;
  result.n_prompt_tokens = result.n_read_tokens = 40;
  result.why_none_cached = "reading is slow", result.prefill_seconds = 0.5;
  BOOST_TEST(prefill_summary(result, false) == "prompt: 40 tokens (0 from cache), 80.0 t/s");
  BOOST_TEST(prefill_summary(result, true) == "prompt: 40 tokens (0 from cache: reading is slow), 80.0 t/s");
  result.prefill_seconds = 1;
  BOOST_TEST(prefill_summary(result, false) == "prompt: 40 tokens (0 from cache: reading is slow), 40.0 t/s");
}

BOOST_AUTO_TEST_SUITE_END()
