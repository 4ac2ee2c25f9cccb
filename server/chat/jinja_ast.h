// The tree of a parsed template. Built by jinja_parser.h, const afterwards, any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/chat/jinja_value.h"

namespace spillway::jinja {

enum class ExprKind : uint8_t {
  kConst,      // constant
  kName,       // name
  kList,       // parts
  kTuple,      // parts
  kDict,       // parts: key, value, key, value ...
  kNot,        // parts[0]
  kNegate,     // parts[0]
  kPositive,   // parts[0]
  kBinary,     // parts[0] ops[0] parts[1]
  kAnd,        // parts[0] and parts[1]
  kOr,         // parts[0] or parts[1]
  kConcat,     // parts joined by ~
  kCompare,    // parts[0] ops[0] parts[1] ops[1] parts[2] ...
  kIfElse,     // parts[1] if parts[0] else parts[2], which may be absent
  kAttribute,  // parts[0].name
  kSubscript,  // parts[0][parts[1]]
  kSlice,      // parts[0][parts[1]:parts[2]:parts[3]]; these three may be null
  kCall,       // parts[0](parts[1] ..., named)
  kFilter,     // parts[0] | name(parts[1] ..., named); parts[0] is null in a block
  kTest,       // parts[0] is name(parts[1] ..., named)
};

enum class Op : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  ExprKind kind = ExprKind::kConst;
  int line = 1;
  int depth = 1;  // Of the tree below, itself included
  std::string name;
  Value constant;
  std::vector<ExprPtr> parts;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<Op> ops;
};

// What an assignment or a loop assigns to: a name, a namespace's attribute, or a tuple of targets.
struct Target {
  std::string name;
  std::string attribute;      // Not empty: name.attribute
  std::vector<Target> items;  // Of a tuple
  bool is_tuple = false;
};

enum class StmtKind : uint8_t {
  kText,         // text
  kOutput,       // value
  kIf,           // branches; without a condition: else
  kFor,          // for target in value if condition: body, else: otherwise
  kSet,          // target = value
  kSetBlock,     // target = body through value, a chain of filters or null
  kMacro,        // text is its name; parameters, body
  kFilterBlock,  // body through value, a chain of filters
  kGeneration,   // body
  kBreak,
  kContinue,
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct Branch {
  ExprPtr condition;  // Null: always
  Body body;
};

struct Parameter {
  std::string name;
  ExprPtr otherwise;  // Null: undefined
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int line = 1;
  std::string text;
  Target target;
  ExprPtr value;
  ExprPtr condition;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  Body body;
  Body otherwise;
};

struct Program {
  Body body;
};

}  // namespace spillway::jinja
