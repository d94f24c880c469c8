#!/usr/bin/env python3
"""Writes dsml.json next to this file: conversations with tools and their prompts, for tests/test_dsml.cpp.

The oracle is DeepSeek's own encoder, deepseek-ai/DeepSeek-V3.2 encoding/encoding_dsv32.py, in the copy that SGLang 0.5.9
carries (sglang/srt/entrypoints/openai/encoding_dsv32.py). The script fetches that wheel from PyPI and takes the one file
out of it. Run: python3 make_dsml_golden.py (needs pip and a network)

dsml.json
  preamble  what stands before the functions in every prompt with tools, in `prompt` written as @PREAMBLE@
  cases     [n]{name, thinking, messages, tools, prompt}
  messages  OpenAI's form, with `reasoning_content`; a role `developer` is there as dsv32 takes it, as `system`: the
            encoder has an own meaning for it, so it is given `system`
  tools     the text of a JSON array, or null. The encoder finds tools at a system message, so they go to the one at the
            beginning; if there is none, an empty one is put there, as SGLang does
  prompt    the encoder's text
"""
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).parent
PACKAGE, MEMBER = "sglang==0.5.9", "sglang/srt/entrypoints/openai/encoding_dsv32.py"


def official_encoder():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "-q", "download", "--no-deps", "-d", folder, PACKAGE], check=True)
        with zipfile.ZipFile(next(pathlib.Path(folder).glob("*.whl"))) as wheel:
            wheel.extract(MEMBER, folder)
        spec = importlib.util.spec_from_file_location("encoding_dsv32", pathlib.Path(folder) / MEMBER)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def tool(name, description=None, parameters=None, **more):
    function = {"name": name}
    if description is not None:
        function["description"] = description
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": {**function, **more}}


WEATHER = tool("get_weather", "The weather in a city", {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "e.g. Paris, 北京"}, "days": {"type": "integer"}},
    "required": ["city"], "additionalProperties": False}, strict=True)
TIME = tool("time", "What time it is", {"type": "object", "properties": {}})
BARE = tool("ping")
RUN = tool("run", 'Runs "code";\n\ttabs, \\ and \u2028', {
    "properties": {"z": {"type": "string"}, "a": {"enum": [1, 2.5, -0.0, 1e-7, 1e16, 123456789012345678901234567890, None, True]}},
    "type": "object"})
# Numbers and escapes that only a text can hold.
RAW = ('[ {"type":"function","function":{"name":"raw","parameters":{"minimum":1e3,"maximum":1E+22,"least":-1.50,'
       '"small":0.00001,"fits":0.0001,"big":18446744073709551616,"edge":1e15,"next":1e16,"tiny":5e-324,"minus":-0,'
       '"text":"\\u00e9\\u4f60\\ud83d\\ude00\\/\\u0007\\u007f\\b\\f","empty":{},"none":[],"twice":1,"other":2,"twice":3}}}]')


def call(name, arguments, id="call_1"):
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


def system(content): return {"role": "system", "content": content}
def developer(content): return {"role": "developer", "content": content}
def user(content): return {"role": "user", "content": content}
def result(content, id="call_1"): return {"role": "tool", "tool_call_id": id, "content": content}


def assistant(content, calls=None, reasoning=None):
    message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = calls
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    return message


PARIS = call("get_weather", {"city": "Paris"})
BEIJING = call("get_weather", {"city": "北京", "days": 3}, "call_2")

# name: (tools, messages); each in both modes.
CONVERSATIONS = {
    "no tools": (None, [system("Be brief."), user("Hi")]),
    "no tools, an empty list": ([], [system("Be brief."), user("Hi")]),
    "one tool": ([WEATHER], [system("Be brief."), user("Weather in Paris?")]),
    "no system prompt": ([WEATHER], [user("Weather in Paris?")]),
    "developer": ([WEATHER], [developer("Be brief."), user("Weather in Paris?")]),
    "system and developer": ([WEATHER], [system("One."), developer("Two."), user("Weather?")]),
    "developer later": ([TIME], [system("One."), user("a"), assistant("b", reasoning="r"), developer("Two."), user("c")]),
    "several tools": ([WEATHER, TIME, BARE, RUN], [system(""), user("Hi")]),
    "JSON as Python writes it": (RAW, [user("Hi")]),
    "one call": ([WEATHER], [user("Weather?"), assistant("", [PARIS], "I ask."), result("sunny")]),
    "text before a call": ([WEATHER], [user("Weather?"), assistant("I look.", [PARIS], "I ask."), result('{"sky": "<clear>"}')]),
    "content is null": ([WEATHER], [user("Weather?"), assistant(None, [PARIS], "I ask."), result("sunny")]),
    "no reasoning": ([WEATHER], [user("Weather?"), assistant("", [PARIS]), result("sunny")]),
    "two calls": ([WEATHER], [user("Weather?"), assistant("Both.", [PARIS, BEIJING], "Two."), result("sunny"), result("雨", "call_2")]),
    "calls without results": ([WEATHER], [user("Weather?"), assistant("Both.", [PARIS, BEIJING], "Two.")]),
    "three turns of calls": ([WEATHER, TIME], [
        user("Weather?"), assistant("", [PARIS], "First."), result("sunny"), assistant("", [BEIJING], "Second."), result("雨"),
        assistant("And now.", [call("time", {})], "Third."), result("12:00")]),
    "calls, then the answer": ([WEATHER], [
        user("Weather?"), assistant("", [PARIS], "I ask."), result("sunny"), assistant("It is sunny.", reasoning="Good.")]),
    "a new question drops the thinking": ([WEATHER], [
        system("Be brief."), user("Weather?"), assistant("I look.", [PARIS], "I ask."), result("sunny"),
        assistant("Sunny.", reasoning="Good."), user("And Beijing?")]),
    "thinking dropped, then kept": ([WEATHER], [
        user("Paris?"), assistant("", [PARIS], "One."), result("sunny"), assistant("Sunny.", reasoning="Two."),
        user("Beijing?"), assistant("", [BEIJING], "Three."), result("雨")]),
    "many turns": ([WEATHER, TIME], [system("s")] + 3 * [
        user("q"), assistant("t", [PARIS, BEIJING], "r"), result("1"), result("2"), assistant("a", reasoning="r2")] + [user("end")]),
    "empty arguments": ([TIME], [user("Time?"), assistant("", [call("time", "{}")], "r"), result("")]),
    "kinds of arguments": ([RUN], [user("Go"), assistant("", [call("run", {
        "s": "", "space": "  two\nlines\n", "quote": '"\\"', "int": -7, "big": 123456789012345678901234567890, "float": 0.1,
        "true": True, "null": None, "list": [1, "é", []], "object": {"z": {"b": [None]}, "a": "\n\u2028"}})], "r"), result("ok")]),
    "arguments as a client writes them": ([RUN], [user("Go"), assistant("", [call(
        "run", '{"z":1.0,"y" : 1e2,"x":[1,2 ,{"k":"\\u4f60"}],"w":1E400,"z":2.50}'.replace("1E400", "1e-300"))], "r"), result("ok")]),
    "numbers": ([RUN], [user("Go"), assistant("", [call("run", {
        "n": [0.0, -0.0, 1e-5, 0.0001, 123456.789, 1e15, 1e16, 1.7976931348623157e308, 2**53 + 1, 2**64, 1e21, 0.3 - 0.1]})], "r"),
        result("1")]),
    "unicode": ([WEATHER], [user("天气?"), assistant("我看一下👀", [call("get_weather", {"城市": "München 👍🏽", "e\u0301": "ﷺ"})], "想"), result("☀️\u0000\u200b")]),
    "a code argument": ([RUN], [user("Go"), assistant("", [call("run", {
        "z": "#!/bin/sh\nif [ 1 -gt 0 ] && true; then echo \"<b>&amp;</b>\" 2>&1; fi\n\tdone > x"})], "r"), result("x\n\ny\n")]),
    "results with line ends": ([WEATHER], [user("Weather?"), assistant("", [PARIS], "r"), result("\n\na\n\n")]),
    "a name with signs": ([WEATHER], [user("Weather?"), assistant("", [call("a.b-c_d", {"k e y": "v", "": 1})], "r"), result("x")]),
    "no user": ([WEATHER], [system("s"), assistant("", [PARIS], "r"), result("x")]),
    "a system message in between": ([WEATHER], [
        system("s"), user("q"), assistant("", [PARIS], "r"), result("x"), system("Hurry."), user("and?")]),
}


def official_prompt(encoder, tools, messages, thinking):
    messages = [{**m, "role": "system"} if m["role"] == "developer" else dict(m) for m in messages]
    if tools is not None:
        if messages[0]["role"] != "system":
            messages.insert(0, system(""))
        messages[0]["tools"] = json.loads(tools)
    return encoder.encode_messages(messages, thinking_mode="thinking" if thinking else "chat", drop_thinking=True)


def main():
    encoder = official_encoder()
    preamble = encoder.render_tools([]).partition("<functions>\n")[0]
    cases = []
    for name, (tools, messages) in CONVERSATIONS.items():
        if tools is not None and not isinstance(tools, str):
            tools = json.dumps(tools, ensure_ascii=False)
        for thinking in (False, True):
            prompt = official_prompt(encoder, tools, messages, thinking)
            assert "@" not in prompt
            prompt = prompt.replace(preamble, "@PREAMBLE@")
            cases.append({"name": name, "thinking": thinking, "messages": messages, "tools": tools, "prompt": prompt})
    lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases)
    (HERE / "dsml.json").write_text(f'{{"preamble":{json.dumps(preamble, ensure_ascii=False)},\n"cases":[\n{lines}\n]}}\n')
    print(f"{len(cases)} prompts")


if __name__ == "__main__":
    main()
