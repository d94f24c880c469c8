// A JSON schema (draft 2020-12) as the term of the documents that it accepts.
//
// Schemas that hold for the same value are one set, and each set is one term: $ref, allOf and a schema's own
// keywords add to the set, anyOf and oneOf split it into shapes. A oneOf is taken as an anyOf, which it is
// when no value fits two branches; branches that do not differ visibly are refused.
//
// Documents have no white space but, where they like, one space after a comma or a colon. Properties come in
// the schema's order, then others. Names and values that the schema gives are written as JSON writes them.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "constrain/shape.h"

namespace dsv32 {

// Reads a constraint's JSON, of 1 MB and 64 levels at most. Throws Error{usage}.
Json parse_bounded_json(std::string_view text);

class SchemaReader {
 public:
  // Terms and schema must outlive the reader. No text, name or value may hold `forbidden`, which is
  // well-formed: texts and names that the schema leaves open do not, what it gives is refused.
  SchemaReader(Terms& terms, const Json& schema, std::string forbidden = "");

  // The term of a document. Throws Error{usage} with the path of a schema that is refused.
  Terms::Id document();

  // The properties of documents that are objects, for another notation than JSON's. Throws Error{usage} when
  // the schema is not that of one kind of objects.
  struct Property {
    std::string name;
    bool is_required;
    Terms::Id string, other;  // its strings; its other values, as JSON
  };
  std::vector<Property> properties();

 private:
  using Schemas = std::vector<const Json*>;  // that all hold
  using Shapes = std::vector<Shape>;
  // A schema that holds and is not yet read, or a list of which one at least holds, and the schemas that lead
  // to it without a step into the value.
  struct Pending {
    const Json* schema;
    Schemas trail;
  };
  // The placeholder of those values that the term `base` accepts.
  struct Checked {
    Terms::Id placeholder, base;
    Shape values;
  };

  Terms::Id term_of(Schemas schemas);
  void finish();
  Terms::Id shapes_term(const Shapes& shapes);
  Terms::Id shape_term(const Shape& shape);
  Terms::Id values_term(Shape shape);
  Terms::Id array_term(const Shape& shape);
  Terms::Id object_term(const Shape& shape);
  Terms::Id other_member(const Shape& shape, const std::vector<std::string>& names);
  std::vector<std::u32string> strings_of(const Shape& shape) const;
  Terms::Id open_text(Terms::Id term);
  const std::string& allowed(const Json& place, const std::string& text) const;
  std::vector<std::string> texts_of(const Shape& shape);

  Shapes shapes_of(const Schemas& schemas);
  void expand(std::vector<Pending> pending, std::vector<Pending> choices, Shape shape,
              std::set<const Json*> seen, Shapes& found);
  void add(Shape& shape, const Json& schema);
  const Json* referred(const Json& reference) const;
  void check_branches(const Json& branches);
  using Pairs = std::vector<std::pair<size_t, size_t>>;
  Pairs pairs_to_compare(const Json& branches, const std::vector<Shapes>& shapes);
  std::optional<Pairs> pairs_at(const std::string& place, const std::vector<Shapes>& shapes);
  std::optional<std::set<std::string>> constants(const Shapes& shapes, const std::string& place);
  bool differ(const Shapes& a, const Shapes& b, int depth);
  bool differ(const Shape& a, const Shape& b, int depth);
  bool values_differ(const Shape& a, const Shape& b);
  bool properties_differ(const Shape& a, const Shape& b, int depth);

  [[noreturn]] void rethrow_with_path() const;
  [[noreturn]] void refuse(const Json& schema, const std::string& why) const;

  Terms& terms_;
  const Json& root_;
  const std::string forbidden_;
  const Terms::Id comma_, colon_;
  std::unordered_map<const Json*, int64_t> places_;    // of all values, in the order of the text
  std::map<Schemas, Terms::Id> terms_of_;              // by schemas, in the order of their places
  std::vector<std::pair<Schemas, Terms::Id>> unread_;  // with their placeholders
  std::vector<Checked> values_;                        // not yet checked
  const Json* at_;                                     // the schema that is read
  std::set<const Json*> checked_;                      // oneOf lists
};

}  // namespace dsv32
