// Builds the merges so that each piece of the list below encodes to one token.
#include "tests/support/tiny_vocabulary.h"

#include <iterator>
#include <map>
#include <sstream>
#include <utility>

#include "base/text.h"

namespace dsv32 {
namespace {

constexpr int32_t kNormal = 1, kControl = 3, kUserDefined = 4;

// "_" is a leading space.
constexpr const char* kPieces =
    "_t _a he in re on _the er _s at _w _o en _c it is an or es _b ed _f ing _p ou _an al ar _to _m _of _in "
    "_d _h _and ic as "
    "le _th ion om ll ent _n _l st _re ve _e ro ly _be _g _T ct _S id ot _I ut et _A _is _on im am ow ay ad "
    "se _that _C ig _for "
    "ac _y ver ur _u ld _st _M 's _he _it ation ith ir ce _you il _B _wh ol _P _with _1 ter ch _as _we _( nd "
    "ill _D if _2 ag "
    "ers ke _\" _H em _con _W _R her _was _r od _F ul ate _at ri pp ore _The _se us _pro _ha um _are _de ain "
    "and _or igh est "
    "ist ab rom _N th _com _G un op 00 _L _not ess _ex _v res _E ew ity ant _by el os ort oc qu _from _have "
    "_su ive ould _sh _this "
    "nt ra pe ight art ment _al ust end __ ____ all _O ack _ch _le ies ome _all _one _which _would _there "
    "_their _what _more "
    "_when _up _out _about _can _so _said _who _them _if _will _time _has _been _like _other _into _its "
    "_only _some _could _than "
    "_then _now _first _over _any _these _after _two _most _may _where _made _many _before _must _through "
    "_back _years _much "
    "_your _way _well _down _should _because _each _just _people _how _too _little _good _very _make _world "
    "_still _see _own _men "
    "_work _long _get _here _between _both _life _being _under _never _day _same _another _know _while _last "
    "_might _us _great "
    "_old _year _off _come _since _against _go _came _right _used _take _three Hello _Hello _latent _row "
    "_cache _token _model "
    "_attention _memory _prefix _expert _layer 你 好 你好 世界 é ö ü ß";

constexpr const char* kControlTokens[] = {"<｜fim▁hole｜>",
                                          "<｜fim▁begin｜>",
                                          "<｜fim▁end｜>",
                                          "<｜User｜>",
                                          "<｜Assistant｜>",
                                          "<|EOT|>",
                                          "<｜tool▁calls▁begin｜>",
                                          "<｜tool▁calls▁end｜>",
                                          "<｜tool▁call▁begin｜>",
                                          "<｜tool▁call▁end｜>",
                                          "<｜tool▁outputs▁begin｜>",
                                          "<｜tool▁outputs▁end｜>",
                                          "<｜tool▁output▁begin｜>",
                                          "<｜tool▁output▁end｜>",
                                          "<｜tool▁sep｜>"};
constexpr const char* kUserTokens[] = {"<think>", "</think>", "｜DSML｜"};

class Builder {
 public:
  explicit Builder(TinyVocabulary& vocabulary) : vocabulary_(vocabulary) {}

  uint32_t add_token(const std::string& token, int32_t type) {
    const auto [entry, is_new] = ids_.emplace(token, static_cast<uint32_t>(vocabulary_.tokens.size()));
    if (is_new) {
      vocabulary_.tokens.push_back(token);
      vocabulary_.types.push_back(type);
    }
    return entry->second;
  }

  // Applies the merges so far to the piece; new merges then join the parts that are left, from the left.
  void add_piece(const std::string& piece) {
    std::vector<std::string> parts;
    for (const char c : piece) parts.push_back(byte_character(static_cast<uint8_t>(c == '_' ? ' ' : c)));
    for (;;) {
      while (merge_best(parts)) {
      }
      if (parts.size() == 1) return;
      ranks_.emplace(std::pair(parts[0], parts[1]), ranks_.size());
      vocabulary_.merges.push_back(parts[0] + " " + parts[1]);
      add_token(parts[0] + parts[1], kNormal);
    }
  }

 private:
  // Joins the first pair of best rank; false when no neighbours form a merge.
  bool merge_best(std::vector<std::string>& parts) const {
    size_t best_rank = SIZE_MAX, best = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks_.find({parts[i], parts[i + 1]});
      if (found != ranks_.end() && found->second < best_rank) best_rank = found->second, best = i;
    }
    if (best_rank == SIZE_MAX) return false;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    return true;
  }

  TinyVocabulary& vocabulary_;
  std::map<std::string, uint32_t> ids_;
  std::map<std::pair<std::string, std::string>, size_t> ranks_;
};

}  // namespace

// Bytes that print as themselves in Latin-1 keep their code point; the others get the code points from 256
// on, in order.
std::string byte_character(uint8_t byte) {
  const auto is_printable = [](uint32_t b) { return (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad); };
  uint32_t code_point = byte;
  if (!is_printable(byte)) {
    code_point = 256;
    for (uint32_t b = 0; b < byte; ++b) code_point += !is_printable(b);
  }
  std::string text;
  append_utf8(text, code_point);
  return text;
}

TinyVocabulary tiny_vocabulary() {
  TinyVocabulary vocabulary;
  Builder builder(vocabulary);
  vocabulary.bos_id = builder.add_token("<｜begin▁of▁sentence｜>", kControl);
  vocabulary.eos_id = builder.add_token("<｜end▁of▁sentence｜>", kControl);
  vocabulary.pad_id = builder.add_token("<｜▁pad▁｜>", kControl);
  for (uint32_t byte = 0; byte < 256; ++byte)
    builder.add_token(byte_character(static_cast<uint8_t>(byte)), kNormal);
  std::istringstream pieces(kPieces);
  for (std::string piece; pieces >> piece;) builder.add_piece(piece);
  for (const char* token : kControlTokens) builder.add_token(token, kControl);
  for (const char* token : kUserTokens) builder.add_token(token, kUserDefined);
  return vocabulary;
}

}  // namespace dsv32
