"""Schemas as people write them, with documents that they accept and reject: the suite of JSON Schema lacks these.

For make_json_schema_golden.py, which checks every validity. CASES: (name, schema, accepted values, rejected values).
IMPOSSIBLE: schemas that no document satisfies. REFUSED: (name, schema, [(path, keyword), ...]), any of which the refusal may
name. NO_JSON: texts that are no document in the form that dsv32 writes, though some are JSON.
"""

STRING, INTEGER, NUMBER, BOOLEAN, NULL = ({"type": t} for t in ("string", "integer", "number", "boolean", "null"))


def obj(properties, required=None, **more):
    """As pydantic and OpenAI's strict mode write it: all required unless said, nothing else allowed."""
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required,
            "additionalProperties": False, **more}


def array(items, **more):
    return {"type": "array", "items": items, **more}


PERSON = obj({"name": STRING, "age": INTEGER})
ADA = {"name": "Ada Lovelace", "age": 36}

INVOICE = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Invoice", "description": "One invoice, as printed.", "type": "object",
    "properties": {
        "number": {"title": "Number", "type": "string", "pattern": "^[A-Z]{2}-[0-9]{4,6}$"},
        "issued": {"type": "string", "format": "date"},
        "customer": {"$ref": "#/$defs/Party"},
        "lines": {"type": "array", "minItems": 1, "maxItems": 20, "items": {"$ref": "#/$defs/Line"}},
        "currency": {"enum": ["EUR", "USD", "CHF"], "default": "EUR"},
        "note": {"anyOf": [{"type": "string", "maxLength": 80}, {"type": "null"}], "default": None},
    },
    "required": ["number", "issued", "customer", "lines", "currency"], "additionalProperties": False,
    "$defs": {
        "Party": {"title": "Party", "type": "object",
                  "properties": {"name": {"type": "string", "minLength": 1},
                                 "vat": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
                  "required": ["name"], "additionalProperties": False},
        "Line": {"title": "Line", "type": "object",
                 "properties": {"text": {"type": "string"}, "quantity": {"type": "integer", "minimum": 1},
                                "price": {"type": "number", "minimum": 0}},
                 "required": ["text", "quantity", "price"], "additionalProperties": False},
    },
}
AN_INVOICE = {"number": "RE-20241", "issued": "2024-02-29", "customer": {"name": "Möller & Söhne", "vat": None},
              "lines": [{"text": "Schrauben \"M4\"", "quantity": 200, "price": 0.05},
                        {"text": "Versand", "quantity": 1, "price": 4.9}], "currency": "EUR"}

TREE = {"$ref": "#/$defs/node", "$defs": {"node": obj(
    {"value": INTEGER, "children": array({"$ref": "#/$defs/node"})})}}
LINKED = obj({"head": INTEGER, "next": {"anyOf": [{"$ref": "#"}, NULL]}})
EXPRESSION = {"$ref": "#/$defs/expr", "$defs": {
    "expr": {"anyOf": [NUMBER, {"$ref": "#/$defs/sum"}, {"$ref": "#/$defs/negation"}]},
    "sum": obj({"op": {"const": "+"}, "left": {"$ref": "#/$defs/expr"}, "right": {"$ref": "#/$defs/expr"}}),
    "negation": obj({"op": {"const": "-"}, "of": {"$ref": "#/$defs/expr"}})}}
SHAPE = {"oneOf": [obj({"kind": {"const": "circle"}, "radius": NUMBER}),
                   obj({"kind": {"const": "square"}, "side": NUMBER}),
                   obj({"kind": {"const": "polygon"}, "points": array(array(NUMBER, minItems=2, maxItems=2), minItems=3)})]}
EVENTS = {"oneOf": [obj({"type": {"enum": ["created", "updated"]}, "id": INTEGER}),
                    obj({"type": {"enum": ["deleted"]}, "id": INTEGER, "reason": STRING})]}


def integers(low=None, high=None, exclusive=False):
    names = ("exclusiveMinimum", "exclusiveMaximum") if exclusive else ("minimum", "maximum")
    return {"type": "integer", **({names[0]: low} if low is not None else {}), **({names[1]: high} if high is not None else {})}


def integer_case(low, high, accepted, rejected, exclusive=False):
    sign = "<" if exclusive else "<="
    return (f"integers {low} {sign} x {sign} {high}", integers(low, high, exclusive), accepted, rejected + [0.5, "1", None])


def pattern_case(pattern, accepted, rejected, **more):
    return (f"pattern {pattern}", {"type": "string", "pattern": pattern, **more}, accepted, rejected)


def format_case(name, accepted, rejected):
    return (f"format {name}", {"type": "string", "format": name}, accepted, rejected + [1])


CASES = [
    # Extraction.
    ("a person", PERSON, [ADA, {"name": "", "age": -1}],
     [{"name": "Ada"}, {"name": "Ada", "age": "36"}, {"name": "Ada", "age": 36, "x": 1}, [], {}, {"name": None, "age": 1}]),
    ("people", array(PERSON), [[], [ADA], [ADA, {"name": "Grace", "age": 85}]], [ADA, [ADA, 1], [{}]]),
    ("an invoice", INVOICE, [AN_INVOICE, {**AN_INVOICE, "note": None}, {**AN_INVOICE, "note": "x" * 80}],
     [{**AN_INVOICE, "note": "x" * 81}, {**AN_INVOICE, "issued": "2023-02-29"}, {**AN_INVOICE, "currency": "GBP"},
      {**AN_INVOICE, "lines": []}, {**AN_INVOICE, "number": "RE-2"}, {**AN_INVOICE, "customer": {"vat": "x"}}]),
    ("sentiment", obj({"sentiment": {"type": "string", "enum": ["positive", "neutral", "negative"]},
                       "confidence": {"type": "number", "minimum": 0, "maximum": 1}, "reasons": array(STRING, maxItems=3)}),
     [{"sentiment": "neutral", "confidence": 0.75, "reasons": []}, {"sentiment": "positive", "confidence": 1, "reasons": ["a", "b", "c"]},
      {"sentiment": "negative", "confidence": 0, "reasons": ["because"]}],
     [{"sentiment": "good", "confidence": 0.5, "reasons": []}, {"sentiment": "neutral", "confidence": 1.01, "reasons": []},
      {"sentiment": "neutral", "confidence": -0.1, "reasons": []}, {"sentiment": "neutral", "confidence": 0.5, "reasons": ["a", "b", "c", "d"]}]),
    ("named entities", obj({"entities": array(obj({"text": {"type": "string", "minLength": 1}, "label": {"enum": ["PER", "ORG", "LOC"]},
                                                   "start": {"type": "integer", "minimum": 0}, "end": {"type": "integer", "minimum": 0}}))}),
     [{"entities": []}, {"entities": [{"text": "Zürich", "label": "LOC", "start": 0, "end": 6}]}],
     [{"entities": [{"text": "", "label": "LOC", "start": 0, "end": 6}]}, {"entities": [{"text": "x", "label": "LOC", "start": -1, "end": 6}]}, {}]),
    ("zod's optional and nullable", {"$schema": "http://json-schema.org/draft-07/schema#", **obj(
        {"id": {"type": "string", "format": "uuid"}, "email": {"type": ["string", "null"]}, "tags": array(STRING), "score": NUMBER}, ["id", "email"])},
     [{"id": "123e4567-e89b-12d3-a456-426614174000", "email": None}, {"id": "123e4567-e89b-12d3-a456-426614174000", "email": "a@b.c", "tags": ["x"], "score": 1.5},
      {"id": "123e4567-e89b-12d3-a456-426614174000", "email": "", "score": -2}],
     [{"id": "123e4567", "email": None}, {"id": "123e4567-e89b-12d3-a456-426614174000"}, {"id": "123e4567-e89b-12d3-a456-426614174000", "email": 1}]),
    ("weather call", obj({"location": {"type": "string", "description": "City and country"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, ["location"]),
     [{"location": "Paris, France"}, {"location": "Paris", "unit": "celsius"}], [{"unit": "celsius"}, {"location": "Paris", "unit": "kelvin"}]),
    ("chain of thought", obj({"steps": array(obj({"explanation": STRING, "output": STRING})), "final_answer": STRING}),
     [{"steps": [{"explanation": "8x = -30", "output": "x = -30/8"}], "final_answer": "x = -3.75"}, {"steps": [], "final_answer": "\u00e9\t\"\\\n/"}],
     [{"steps": [{"explanation": "8x"}], "final_answer": ""}, {"final_answer": "x"}]),
    ("titles, defaults, examples", {"title": "T", "description": "d", "type": "object", "$comment": "c", "properties": {
        "a": {"type": "integer", "default": 3, "examples": [1, 2], "deprecated": True, "readOnly": False, "writeOnly": False, "x-order": 1}},
        "examples": [{"a": 1}]}, [{}, {"a": 1}, {"b": None}, {"a": 1, "b": [1]}], [{"a": "1"}, []]),
    # Objects.
    ("nothing declared", {"type": "object"}, [{}, {"a": 1}, {"": {"": []}}], [[], "", 1, None]),
    ("the empty object", {"type": "object", "additionalProperties": False}, [{}], [{"a": 1}, []]),
    ("all optional", obj({"a": INTEGER, "b": INTEGER, "c": INTEGER}, []),
     [{}, {"a": 1}, {"b": 1}, {"c": 1}, {"a": 1, "c": 3}, {"b": 2, "c": 3}, {"a": 1, "b": 2, "c": 3}], [{"d": 1}, {"a": 1, "d": 1}, {"a": None}]),
    ("the middle one is required", obj({"a": INTEGER, "b": INTEGER, "c": INTEGER}, ["b"]),
     [{"b": 1}, {"a": 1, "b": 2}, {"b": 2, "c": 3}, {"a": 1, "b": 2, "c": 3}], [{}, {"a": 1}, {"c": 1}, {"a": 1, "c": 2}]),
    ("required but not declared", {"type": "object", "properties": {"a": INTEGER}, "required": ["z", "a", "y"]},
     [{"a": 1, "z": None, "y": 2}, {"a": 1, "z": [], "y": "", "b": 1}], [{"a": 1, "z": 1}, {"z": 1, "y": 1}, {"a": "", "z": 1, "y": 1}]),
    ("required but not declared, with a schema", {"type": "object", "required": ["k"], "additionalProperties": BOOLEAN},
     [{"k": True}, {"k": False, "l": True}], [{"k": 1}, {"l": True}, {"k": True, "l": 0}]),
    ("a map of integers", {"type": "object", "additionalProperties": INTEGER}, [{}, {"a": 1}, {"a": 1, "b": 2}, {"\u00fc \"x\"": 0}], [{"a": "1"}, {"a": 1.5}]),
    ("a map beside declared properties", {"type": "object", "properties": {"id": STRING, "ideas": NULL}, "required": ["id"], "additionalProperties": INTEGER},
     [{"id": "x"}, {"id": "x", "i": 1}, {"id": "x", "idea": 1, "ideass": 2}, {"id": "x", "ideas": None, "": 3}],
     [{"id": 1}, {"id": "x", "idea": "y"}, {"id": "x", "ideas": 1}, {"i": 1}]),
    ("additional properties allowed in so many words", {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": True},
     [{}, {"a": 1}, {"b": "x"}, {"a": 1, "aa": [{}]}], [{"a": "x"}]),
    ("names that begin alike", obj({"a": INTEGER, "ab": STRING, "abc": NULL, "b": BOOLEAN}, ["ab"]),
     [{"ab": ""}, {"a": 1, "ab": "", "abc": None, "b": True}, {"ab": "", "b": False}], [{"a": 1}, {"abc": None}, {"ab": 1}]),
    ("odd names", obj({"": INTEGER, " ": INTEGER, "a\"b": INTEGER, "c\\d": INTEGER, "e/f": INTEGER, "\n": INTEGER, "\u00e4\u6c34\U0001f600": INTEGER, "$ref": INTEGER}, ["\n", "$ref"]),
     [{"\n": 1, "$ref": 2}, {"": 1, " ": 1, "a\"b": 1, "c\\d": 1, "e/f": 1, "\n": 1, "\u00e4\u6c34\U0001f600": 1, "$ref": 1}], [{"": 1, "$ref": 2}, {"\n": "", "$ref": 2}]),
    ("a forbidden property", {"type": "object", "properties": {"a": False, "b": True}}, [{}, {"b": 1}, {"c": 1}, {"b": 1, "aa": 2}], [{"a": 1}, {"a": None, "b": 1}]),
    ("five deep", obj({"a": obj({"b": obj({"c": obj({"d": obj({"e": BOOLEAN})})})})}), [{"a": {"b": {"c": {"d": {"e": True}}}}}],
     [{"a": {"b": {"c": {"d": {"e": 1}}}}}, {"a": {"b": {"c": {"d": True}}}}]),
    ("twelve optional properties", obj({f"p{i}": INTEGER for i in range(12)}, []),
     [{}, {"p0": 1, "p11": 2}, {"p3": 1, "p4": 1, "p9": 1}, {f"p{i}": i for i in range(12)}], [{"p12": 1}, {"p1": "1"}]),
    # Enums and constants.
    ("an enum of strings that begin alike", {"enum": ["a", "ab", "abc", "b", "\u00e4", "a b", ""]}, ["a", "ab", "abc", "b", "\u00e4", "a b", ""], ["ac", "abcd", "aa", 1, None]),
    ("an enum of numbers", {"enum": [1, 10, 100, -1, 2.5, 0]}, [1, 10, 100, -1, 2.5, 0], [2, 1000, -10, 2, 25, "1"]),
    ("an enum of everything", {"enum": [None, True, 1, "1", [1, "x"], {"a": [None]}, 1.5]}, [None, True, 1, "1", [1, "x"], {"a": [None]}, 1.5],
     [False, 2, "2", [1], [1, "x", 1], {"a": []}, {}]),
    ("an enum beside a type", {"type": "string", "enum": ["a", 1, None]}, ["a"], [1, None, "b"]),
    ("an enum with a pattern", {"enum": ["ab", "cd", "abc"], "pattern": "^a", "maxLength": 2}, ["ab"], ["cd", "abc", "a"]),
    ("a constant string", {"const": "yes \"sir\"\n"}, ["yes \"sir\"\n"], ["yes", "", 1]),
    ("a constant object", {"const": {"b": 1, "a": [True, None, {}]}}, [{"b": 1, "a": [True, None, {}]}], [{"b": 1}, {}, {"b": 1, "a": [True, None, {}], "c": 1}]),
    ("constants in properties", obj({"version": {"const": 2}, "ok": {"const": True}, "none": {"const": None}}), [{"version": 2, "ok": True, "none": None}],
     [{"version": 3, "ok": True, "none": None}, {"version": 2, "ok": False, "none": None}, {"version": "2", "ok": True, "none": None}]),
    # Unions.
    ("shapes by a discriminator", SHAPE, [{"kind": "circle", "radius": 1.5}, {"kind": "square", "side": 2}, {"kind": "polygon", "points": [[0, 0], [1, 0], [0, 1.5]]}],
     [{"kind": "circle", "side": 1}, {"kind": "triangle", "side": 1}, {"kind": "polygon", "points": [[0, 0], [1, 0]]}, {"radius": 1}]),
    ("events by an enum", EVENTS, [{"type": "created", "id": 1}, {"type": "updated", "id": 2}, {"type": "deleted", "id": 3, "reason": "old"}],
     [{"type": "created", "id": 1, "reason": "x"}, {"type": "deleted", "id": 3}, {"type": "moved", "id": 1}]),
    ("a discriminator behind references", {"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
                                           "$defs": {"cat": obj({"pet": {"const": "cat"}, "lives": INTEGER}), "dog": obj({"pet": {"const": "dog"}, "good": BOOLEAN})}},
     [{"pet": "cat", "lives": 9}, {"pet": "dog", "good": True}], [{"pet": "cat", "good": True}, {"pet": "cow"}, {"lives": 9}]),
    ("one of three types", {"oneOf": [STRING, INTEGER, array(STRING)]}, ["x", 3, ["a", "b"], []], [None, True, [1], {}, 1.5]),
    ("one of a constant and a type", {"oneOf": [{"const": "auto"}, INTEGER, NULL]}, ["auto", 0, None], ["manual", True, []]),
    ("any of objects that overlap", {"anyOf": [obj({"a": INTEGER}), obj({"a": INTEGER, "b": INTEGER}), obj({"a": STRING, "b": NULL})]},
     [{"a": 1}, {"a": 1, "b": 2}, {"a": "x", "b": None}], [{"a": "x"}, {"a": 1, "b": None}, {"b": 1}]),
    ("any of strings", {"anyOf": [{"type": "string", "maxLength": 1}, {"type": "string", "pattern": "^x+$"}]}, ["", "a", "xxx"], ["ab", "xxy", 1]),
    ("integer or number in a range", {"anyOf": [integers(0, 9), {"type": "number", "minimum": 100}]}, [0, 9, 100, 100.5], [10, -1, 99.5, "1"]),
    ("a list of types", {"type": ["string", "integer", "null"]}, ["", 5, None], [1.5, True, [], {}]),
    ("a list of types with keywords of each", {"type": ["string", "integer", "array"], "minLength": 2, "minimum": 10, "minItems": 1}, ["ab", 10, [None]], ["a", 9, [], None]),
    ("any of with common properties", {"type": "object", "properties": {"id": INTEGER}, "required": ["id"], "anyOf": [
        {"properties": {"mail": STRING}, "required": ["mail"]}, {"properties": {"phone": STRING}, "required": ["phone"]}]},
     [{"id": 1, "mail": "a"}, {"id": 1, "phone": "1"}], [{"id": 1}, {"mail": "a"}, {"id": 1, "mail": 1}]),
    ("nullable reference", {"anyOf": [{"$ref": "#/$defs/p"}, NULL], "$defs": {"p": PERSON}}, [None, ADA], [{}, "", 0]),
    ("draft 7's definitions", {"$ref": "#/definitions/a", "definitions": {"a": STRING}}, ["", "x"], [1, None]),
    # Merges.
    ("all of two objects", {"allOf": [{"type": "object", "properties": {"a": INTEGER}, "required": ["a"]}, {"type": "object", "properties": {"b": STRING}, "required": ["b"]}]},
     [{"a": 1, "b": ""}, {"a": 1, "b": "", "c": 0}], [{"a": 1}, {"b": ""}, {"a": "", "b": ""}]),
    ("a base class by reference", {"$defs": {"base": {"type": "object", "properties": {"id": INTEGER, "name": STRING}, "required": ["id"]}},
                                   "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"extra": BOOLEAN}, "required": ["extra"]}]},
     [{"id": 1, "extra": True}, {"id": 1, "name": "", "extra": False}], [{"id": 1}, {"extra": True}, {"id": 1, "extra": 0}]),
    ("all of narrows one property", {"allOf": [{"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}, "required": ["n"]},
                                               {"properties": {"n": {"maximum": 5}}}]}, [{"n": 3}, {"n": 5}, {"n": 4, "m": 1}], [{"n": 2}, {"n": 6}, {}]),
    ("all of strings", {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 3}]}, ["ab", "abc"], ["a", "abcd", 1]),
    ("pydantic's reference in allOf", obj({"address": {"allOf": [{"$ref": "#/$defs/Address"}], "description": "home", "default": None}}, [],
                                           **{"$defs": {"Address": obj({"street": STRING, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}})}}),
     [{}, {"address": {"street": "A 1", "zip": "01234"}}], [{"address": {"street": "A 1", "zip": "1234"}}, {"address": None}]),
    ("types that meet", {"type": ["string", "integer"], "allOf": [{"type": ["integer", "null"]}]}, [1, -5], ["", None, 1.5]),
    # Recursion.
    ("a tree", TREE, [{"value": 1, "children": []}, {"value": 1, "children": [{"value": 2, "children": []}, {"value": 3, "children": [{"value": 4, "children": []}]}]}],
     [{"value": 1}, {"value": 1, "children": [1]}, {"value": 1, "children": [{"value": 2}]}]),
    ("a linked list", LINKED, [{"head": 1, "next": None}, {"head": 1, "next": {"head": 2, "next": {"head": 3, "next": None}}}], [{"head": 1}, {"head": 1, "next": {"head": 2}}, None]),
    ("an expression", EXPRESSION, [1, -2.5, {"op": "+", "left": 1, "right": {"op": "-", "of": 3}}], [{"op": "+", "left": 1}, {"op": "*", "left": 1, "right": 2}, "1", {"op": "-", "left": 1, "right": 2}]),
    ("any JSON by its own schema", {"$ref": "#/$defs/json", "$defs": {"json": {"anyOf": [
        NULL, BOOLEAN, NUMBER, STRING, array({"$ref": "#/$defs/json"}), {"type": "object", "additionalProperties": {"$ref": "#/$defs/json"}}]}}},
     [None, [1, "x", {"a": [True, {}]}], {"": -0.5}], []),
    ("mutual recursion", {"$ref": "#/$defs/a", "$defs": {"a": obj({"b": {"$ref": "#/$defs/b"}}, []), "b": array({"$ref": "#/$defs/a"}, maxItems=2)}},
     [{}, {"b": []}, {"b": [{}, {"b": [{}]}]}], [{"b": [{}, {}, {}]}, {"b": [[]]}, []]),
    # Arrays.
    ("a tuple", {"type": "array", "prefixItems": [STRING, INTEGER, BOOLEAN], "items": False, "minItems": 3}, [["a", 1, True]], [["a", 1], ["a", 1, True, 1], [1, "a", True], []]),
    ("a tuple that may be short", {"type": "array", "prefixItems": [STRING, INTEGER], "items": False}, [[], ["a"], ["a", 1]], [["a", 1, 1], [1]]),
    ("a tuple and more", {"type": "array", "prefixItems": [STRING], "items": INTEGER, "minItems": 2, "maxItems": 4}, [["a", 1], ["a", 1, 2, 3]], [["a"], ["a", 1, 2, 3, 4], ["a", "b"]]),
    ("exactly three numbers", array(NUMBER, minItems=3, maxItems=3), [[1, 2.5, -3]], [[1, 2], [1, 2, 3, 4], [1, 2, "3"]]),
    ("a matrix", array(array(INTEGER, minItems=2, maxItems=2), minItems=2, maxItems=2), [[[1, 2], [3, 4]]], [[[1, 2]], [[1], [2]], [[1, 2], [3, 4, 5]]]),
    ("from none to a thousand", array(INTEGER, maxItems=1000), [[], [1], list(range(40))], [["x"], 1]),
    ("at least five", array(BOOLEAN, minItems=5), [[True] * 5, [False] * 9], [[True] * 4, []]),
    ("the empty array", array(True, maxItems=0), [[]], [[1], {}]),
    ("lists of mixed values", array({"anyOf": [STRING, NUMBER, NULL]}), [[], ["a", 1, None]], [[True], [[]]]),
    # Strings.
    ("lengths in code points", {"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "\U0001f600\U0001f600", "\u00e4\u6c34\U0001f600", "\"\\", "\n\t\r", "\u0001\u0002"],
     ["a", "\U0001f600", "\U0001f600\U0001f600\U0001f600\U0001f600", "", "\n", "\u0001"]),
    ("the empty string", {"type": "string", "maxLength": 0}, [""], ["a", " "]),
    ("a long string", {"type": "string", "minLength": 60, "maxLength": 200}, ["x" * 60, "\u6c34" * 200], ["x" * 59, "x" * 201]),
    pattern_case("^[a-z]+$", ["a", "xyz"], ["", "A", "a1", "a\n"]),
    pattern_case("^\\+?[0-9 ()-]{7,15}$", ["+49 (30) 123456", "1234567"], ["123456", "+", "12345678901234567"]),
    pattern_case("^(?:[0-9]{1,3}\\.){3}[0-9]{1,3}$", ["127.0.0.1", "255.255.255.255"], ["127.0.0", "1.2.3.4.5", "a.b.c.d"]),
    pattern_case("^[^@\\s]+@[^@\\s]+\\.[a-z]{2,}$", ["a@b.de", "x.y+z@mail.example.org"], ["a@b", "a b@c.de", "@b.de"]),
    pattern_case("^#(?:[0-9a-fA-F]{3}){1,2}$", ["#fff", "#A0b1C2"], ["fff", "#ffff", "#ggg"]),
    pattern_case("^(yes|no|maybe( not)?)$", ["yes", "no", "maybe", "maybe not"], ["maybe no", "yesno", ""]),
    pattern_case("b", ["b", "abc", "bbb", "x b \u6c34"], ["", "ac"]),
    pattern_case("^ab", ["ab", "abab"], ["ba", "a", "xab"]),
    pattern_case("ab$", ["ab", "xab"], ["abx", ""]),
    pattern_case("^.{2,3}$", ["ab", "\U0001f600\u6c34x"], ["a", "abcd", "\U0001f600", "a\n"]),
    pattern_case("^\\w+(-\\w+)*$", ["a-b_c-1", "x"], ["-a", "a-", "a--b"]),
    pattern_case("^\"[^\"]*\"$", ["\"quoted\"", "\"\""], ["quoted", "\"\"\""]),
    pattern_case("^\\\\[a-z]$", ["\\n"], ["n", "\n", "\\\\n"]),
    pattern_case("^[\\u00e4-\\u00fc\u6c34]*$", ["\u00e4\u00f6\u00fc", "\u6c34", ""], ["a", "\u00ff"]),
    pattern_case("^a{2}b{2,}c{0,1}$", ["aabb", "aabbbbc"], ["abb", "aab", "aabbcc"]),
    pattern_case("^[A-Z]{3}$", ["ABC"], ["ABCD", "abc", "AB"], minLength=1),
    pattern_case("^a*$", ["aa", "aaa"], ["a", "aaaa", "b"], minLength=2, maxLength=3),
    pattern_case("^$", [""], ["a"]),
    format_case("date", ["2024-02-29", "1999-12-31", "2000-02-29", "0001-01-01"], ["2023-02-29", "1900-02-29", "2024-13-01", "2024-00-10", "2024-01-32", "2024-04-31", "24-01-01", "2024-1-1", ""]),
    format_case("date-time", ["2024-02-29T12:34:56Z", "2024-02-29T12:34:56.789+05:30", "1985-04-12T23:20:50.52Z"],
                ["2024-02-29T25:00:00Z", "2024-02-29 12:34:56", "2024-02-29T12:34:56", "2023-02-29T12:34:56Z", "2024-02-29T12:60:00Z"]),
    format_case("time", ["12:34:56Z", "00:00:00.5+01:00", "23:59:59-00:30"], ["24:00:00Z", "12:34:56", "12:34Z", "1:02:03Z", "12:60:00Z"]),
    format_case("uuid", ["123e4567-e89b-12d3-a456-426614174000", "ABCDEF01-2345-6789-abcd-ef0123456789"], ["123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400", "g23e4567-e89b-12d3-a456-426614174000"]),
    # Integers.
    integer_case(1, 5, [1, 3, 5], [0, 6, 10, -1, 15]),
    integer_case(0, 255, [0, 9, 10, 99, 100, 255], [256, 300, -1, 1000]),
    integer_case(-5, 5, [-5, -1, 0, 5], [-6, 6, -10, 10]),
    integer_case(-128, -17, [-128, -17, -20, -99, -100], [-16, -129, 0, 17, 20]),
    integer_case(18, None, [18, 19, 99, 100, 10**12], [17, 1, 0, -18]),
    integer_case(None, -3, [-3, -4, -10, -10**9], [-2, 0, 3, 10]),
    integer_case(None, 100, [100, 0, -1, -101, 99], [101, 1000]),
    integer_case(0, None, [0, 1, 10**15], [-1]),
    integer_case(7, 7, [7], [6, 8, 77, -7]),
    integer_case(0, 0, [0], [1, 10]),
    integer_case(0, 10, [1, 9], [0, 10, -1], exclusive=True),
    integer_case(-1, 1, [0], [-1, 1, 10], exclusive=True),
    integer_case(1990, 2030, [1990, 1999, 2000, 2029, 2030], [1989, 2031, 199, 20301, 20]),
    integer_case(-2**63, 2**63 - 1, [0, -2**63, 2**63 - 1], [2**63, -2**63 - 1]),
    integer_case(10**6, 10**9, [10**6, 10**9, 123456789], [999999, 10**9 + 1]),
    ("bounds with fractions", {"type": "integer", "minimum": 0.5, "maximum": 3.5}, [1, 3], [0, 4]),
    ("both kinds of bounds", {"type": "integer", "minimum": 0, "exclusiveMinimum": 4, "maximum": 9, "exclusiveMaximum": 20}, [5, 9], [4, 10, 19, 0]),
    # Numbers.
    ("a probability", {"type": "number", "minimum": 0, "maximum": 1}, [0, 1, 0.5, 0.001, 1.0], [1.5, -0.5, 2, 1.001]),
    ("a positive number", {"type": "number", "exclusiveMinimum": 0}, [0.1, 1, 1000.25], [0, -1, -0.001]),
    ("a latitude", {"type": "number", "minimum": -90, "maximum": 90}, [-90, 90, 0, 47.3769, -33.5], [90.5, -91, 100, -90.001]),
    ("a range within fractions", {"type": "number", "minimum": 1.25, "maximum": 1.75}, [1.25, 1.5, 1.75, 1.3], [1.2, 1.8, 1, 2]),
    ("a range of negative fractions", {"type": "number", "exclusiveMinimum": -0.75, "exclusiveMaximum": -0.5}, [-0.6, -0.74], [-0.75, -0.5, 0, -1]),
    ("any number", NUMBER, [0, -1, 1.5, 1e10, 1e-7, 123456789.125, -0.0], ["1", None]),
    # Boolean schemas.
    ("anything", True, [None, True, 0, -1.5, "", "\U0001f600", [], {}, [[{}]], {"a": {"b": [None]}}], []),
    ("anything, as an object", {}, [None, {"a": 1}, [1]], []),
    ("items of any kind", array(True, minItems=1), [[1], [None, {}, []]], [[], 1]),
    ("a property of any kind", obj({"data": True}), [{"data": None}, {"data": {"x": [1]}}], [{}, {"data": 1, "y": 1}]),
]

IMPOSSIBLE = [
    ("a range without numbers", integers(5, 4)), ("a range without integers", integers(4, 5, True)), ("between two integers", {"type": "integer", "minimum": 0.2, "maximum": 0.8}),
    ("fewer items than the fewest", array(INTEGER, minItems=2, maxItems=1)), ("shorter than the shortest", {"type": "string", "minLength": 3, "maxLength": 2}),
    ("required and forbidden", {"type": "object", "properties": {"a": False}, "required": ["a"]}),
    ("required and not allowed", {"type": "object", "additionalProperties": False, "required": ["a"]}),
    ("types that do not meet", {"allOf": [STRING, INTEGER]}), ("a constant of another type", {"type": "string", "const": 1}),
    ("no value of the enum", {"enum": ["a", "b"], "minLength": 2}), ("constants that differ", {"allOf": [{"const": 1}, {"const": 2}]}),
    ("items that cannot be", array(False, minItems=1)), ("recursion without an end", {"$ref": "#/$defs/a", "$defs": {"a": obj({"next": {"$ref": "#/$defs/a"}})}}),
    ("a reference to itself", {"$ref": "#"}), ("a pattern that is too long", {"type": "string", "pattern": "^aaaa$", "maxLength": 3}),
    ("all of them impossible", {"anyOf": [False, {"enum": []}]}), ("no types", {"type": []}),
    ("a tuple that is too short", {"type": "array", "prefixItems": [STRING], "items": False, "minItems": 2}),
]

REFUSED = [
    ("a keyword that nobody knows", {"type": "string", "maxlength": 3}, [("", "maxlength")]),
    ("an unknown keyword inside", obj({"a": array({"type": "integer", "minumum": 1})}), [("/properties/a/items", "minumum")]),
    ("OpenAPI's discriminator", {"anyOf": [STRING, NULL], "discriminator": {"propertyName": "pet"}}, [("", "discriminator")]),
    ("OpenAPI's nullable", obj({"a": {"type": "string", "nullable": True}}), [("/properties/a", "nullable")]),
    ("draft 7's tuple", {"type": "array", "items": [STRING, INTEGER]}, [("", "items")]),
    ("not inside a property", obj({"a": {"not": STRING}}), [("/properties/a", "not")]),
    ("uniqueItems in a definition", obj({"a": {"$ref": "#/$defs/s"}}, **{"$defs": {"s": array(STRING, uniqueItems=True)}}), [("/$defs/s", "uniqueItems")]),
    ("multipleOf in a branch", {"anyOf": [STRING, {"type": "integer", "multipleOf": 5}]}, [("/anyOf/1", "multipleOf")]),
    ("a name with a slash", obj({"a/b~c": {"if": True}}), [("/properties/a~1b~0c", "if")]),
    ("a format without a check", {"type": "string", "format": "email"}, [("", "format")]),
    ("a format inside", array({"type": "string", "format": "ipv4"}), [("/items", "format")]),
    ("lookahead", {"type": "string", "pattern": "^(?=a)b"}, [("", "pattern")]), ("lookbehind", {"type": "string", "pattern": "(?<!a)b"}, [("", "pattern")]),
    ("a backreference", {"type": "string", "pattern": "^(a|b)\\1$"}, [("", "pattern")]), ("a word boundary", {"type": "string", "pattern": "\\bword\\b"}, [("", "pattern")]),
    ("no pattern at all", {"type": "string", "pattern": "(a"}, [("", "pattern")]), ("a reversed class", {"type": "string", "pattern": "[z-a]"}, [("", "pattern")]),
    ("nothing to repeat", {"type": "string", "pattern": "*a"}, [("", "pattern")]), ("a pattern that is a number", {"pattern": 1}, [("", "pattern")]),
    ("oneOf that overlaps", {"oneOf": [obj({"a": INTEGER}, []), obj({"a": INTEGER, "b": INTEGER}, [])]}, [("", "oneOf")]),
    ("oneOf of integer and number", {"oneOf": [INTEGER, NUMBER]}, [("", "oneOf")]),
    ("an anchor", {"$ref": "#a", "$defs": {"x": {"$anchor": "a", "type": "string"}}}, [("", "$ref"), ("/$defs/x", "$anchor")]),
    ("a reference to another file", {"$ref": "other.json#/$defs/a"}, [("", "$ref")]), ("a reference to nothing", {"$ref": "#/$defs/a"}, [("", "$ref")]),
    ("a reference that is a number", {"$ref": 1}, [("", "$ref")]), ("a dynamic reference", {"$dynamicRef": "#a"}, [("", "$dynamicRef")]),
    ("a type that does not exist", {"type": "text"}, [("", "type")]), ("a type that is a number", {"type": 1}, [("", "type")]), ("a type in a list that does not exist", {"type": ["string", "int"]}, [("", "type")]),
    ("a negative length", {"type": "string", "minLength": -1}, [("", "minLength")]), ("a length with a fraction", {"type": "string", "maxLength": 1.5}, [("", "maxLength")]),
    ("a length that is a text", {"type": "string", "maxLength": "3"}, [("", "maxLength")]), ("a bound that is a text", {"type": "integer", "minimum": "1"}, [("", "minimum")]),
    ("draft 4's exclusive bound", {"type": "integer", "minimum": 1, "exclusiveMinimum": True}, [("", "exclusiveMinimum")]),
    ("properties that are a list", {"type": "object", "properties": ["a"]}, [("", "properties")]), ("required that is a truth", {"type": "object", "properties": {"a": {"required": True}}}, [("/properties/a", "required")]),
    ("required with a number", {"type": "object", "required": [1]}, [("", "required")]), ("an enum that is a text", {"enum": "a"}, [("", "enum")]),
    ("anyOf that is an object", {"anyOf": STRING}, [("", "anyOf")]), ("an empty anyOf", {"anyOf": []}, [("", "anyOf")]),
    ("a schema that is a text", {"type": "array", "items": "string"}, [("", "items"), ("/items", "")]),
    ("a schema that is a number", 3, [("", "")]), ("a schema that is a list", [STRING], [("", "")]), ("a schema that is null", None, [("", "")]),
]

NO_JSON = [
    "", " ", " 1", "1 ", "\t1", "1\n", "[1,  2]", "[ 1]", "[1 ]", "[1 ,2]", "{ }", "[ ]", "{\"a\" :1}", "{\"a\":  1}", "{\"a\":1 }", "[1,]", "[,1]", "{\"a\":1,}", "{,}", "{a:1}", "{'a':1}",
    "{\"a\"}", "{\"a\":}", "{1:1}", "01", "-", "-01", "+1", "1.", ".5", "1.e5", "1e", "1e+", "1e123", "0x10", "NaN", "Infinity", "-Infinity", "True", "nul", "nulll", "tru", "\"a", "a\"", "\"\\x\"",
    "\"\\u12\"", "\"\\u12g4\"", "\"\\ud800\"", "\"\\udc00\"", "\"\\ud800x\"", "\"\n\"", "\"\t\"", "\"\u0000\"", "[", "]", "[]]", "{", "}", "{}{}", "1 2", "[1]\n", "//", "/**/1", "[1//\n]", "1" * 21, "0." + "1" * 21,
]
