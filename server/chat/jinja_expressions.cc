// The part of Parser that reads expressions, a function for each level of Jinja's precedence.
#include <algorithm>
#include <utility>

#include "kernels/base/quote.h"
#include "server/chat/jinja_filters.h"
#include "server/chat/jinja_parser.h"
#include "server/chat/jinja_text.h"

namespace spillway::jinja {
namespace {

constexpr int kTreeDepthMax = 150;  // a + b + c ... is a tree as deep as it is long
constexpr size_t kNodesMax = 100'000;

std::vector<ExprPtr> parts_of(ExprPtr first, ExprPtr second = nullptr) {
  std::vector<ExprPtr> parts;
  parts.push_back(std::move(first));
  if (second) parts.push_back(std::move(second));
  return parts;
}

}  // namespace

ExprPtr Parser::make(ExprKind kind, std::vector<ExprPtr> parts, int line) {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  for (const ExprPtr& part : parts) {
    if (part) expr->depth = std::max(expr->depth, part->depth + 1);
  }
  expr->parts = std::move(parts);
  if (expr->depth > kTreeDepthMax) fail("the expression nests too deeply", line);
  if (++nodes_ > kNodesMax) fail("the template has too many parts", line);
  return expr;
}

ExprPtr Parser::constant(Value value, int line) {
  ExprPtr expr = make(ExprKind::kConst, {}, line);
  expr->constant = std::move(value);
  return expr;
}

ExprPtr Parser::expression(bool with_if) {
  const int line = current().line;
  if (!enter()) {
    leave();
    return constant({}, line);
  }
  ExprPtr expr = either();
  while (with_if && skip_name("if")) {
    std::vector<ExprPtr> parts = parts_of(either(), std::move(expr));
    if (skip_name("else")) parts.push_back(expression());
    expr = make(ExprKind::kIfElse, std::move(parts), line);
  }
  leave();
  return expr;
}

ExprPtr Parser::either() {
  const int line = current().line;
  ExprPtr left = both();
  while (skip_name("or")) left = make(ExprKind::kOr, parts_of(std::move(left), both()), line);
  return left;
}

ExprPtr Parser::both() {
  const int line = current().line;
  ExprPtr left = negation();
  while (skip_name("and")) left = make(ExprKind::kAnd, parts_of(std::move(left), negation()), line);
  return left;
}

ExprPtr Parser::negation() {
  const int line = current().line;
  if (!skip_name("not")) return comparison();
  ExprPtr inner = enter() ? negation() : constant({}, line);
  leave();
  return make(ExprKind::kNot, parts_of(std::move(inner)), line);
}

ExprPtr Parser::comparison() {
  const int line = current().line;
  constexpr std::pair<std::string_view, Op> kSigns[] = {
      {"==", Op::kEqual},     {"!=", Op::kNotEqual}, {"<", Op::kLess},
      {"<=", Op::kLessEqual}, {">", Op::kGreater},   {">=", Op::kGreaterEqual}};
  std::vector<ExprPtr> parts = parts_of(sum());
  std::vector<Op> ops;
  for (bool more = true; more;) {
    more = false;
    for (const auto& [sign, op] : kSigns) {
      if (more || !skip_sign(sign)) continue;
      ops.push_back(op);
      more = true;
    }
    if (!more && skip_name("in")) {
      ops.push_back(Op::kIn);
      more = true;
    }
    if (!more && is_name("not") && ahead().kind == TokenKind::kName && ahead().text == "in") {
      skip();
      skip();
      ops.push_back(Op::kNotIn);
      more = true;
    }
    if (more) parts.push_back(sum());
  }
  if (ops.empty()) return std::move(parts.front());
  ExprPtr expr = make(ExprKind::kCompare, std::move(parts), line);
  expr->ops = std::move(ops);
  return expr;
}

ExprPtr Parser::sum() {
  const int line = current().line;
  ExprPtr left = concatenation();
  while (is_sign("+") || is_sign("-")) {
    const Op op = is_sign("+") ? Op::kAdd : Op::kSubtract;
    skip();
    left = make(ExprKind::kBinary, parts_of(std::move(left), concatenation()), line);
    left->ops = {op};
  }
  return left;
}

ExprPtr Parser::concatenation() {
  const int line = current().line;
  std::vector<ExprPtr> parts = parts_of(product());
  while (skip_sign("~")) parts.push_back(product());
  if (parts.size() == 1) return std::move(parts.front());
  return make(ExprKind::kConcat, std::move(parts), line);
}

ExprPtr Parser::product() {
  const int line = current().line;
  constexpr std::pair<std::string_view, Op> kSigns[] = {
      {"*", Op::kMultiply}, {"/", Op::kDivide}, {"//", Op::kFloorDivide}, {"%", Op::kModulo}};
  ExprPtr left = power();
  for (bool more = true; more;) {
    more = false;
    for (const auto& [sign, op] : kSigns) {
      if (more || !skip_sign(sign)) continue;
      left = make(ExprKind::kBinary, parts_of(std::move(left), power()), line);
      left->ops = {op};
      more = true;
    }
  }
  return left;
}

ExprPtr Parser::power() {
  const int line = current().line;
  ExprPtr left = unary();
  while (skip_sign("**")) {
    left = make(ExprKind::kBinary, parts_of(std::move(left), unary()), line);
    left->ops = {Op::kPower};
  }
  return left;
}

ExprPtr Parser::unary(bool with_filter) {
  const int line = current().line;
  ExprPtr expr;
  if (is_sign("-") || is_sign("+")) {
    const ExprKind kind = is_sign("-") ? ExprKind::kNegate : ExprKind::kPositive;
    skip();
    ExprPtr inner = enter() ? unary(false) : constant({}, line);
    leave();
    expr = make(kind, parts_of(std::move(inner)), line);
  } else {
    expr = primary();
  }
  expr = postfix(std::move(expr));
  return with_filter ? filters_and_tests(std::move(expr)) : std::move(expr);
}

ExprPtr Parser::primary() {
  const int line = current().line;
  if (current().kind == TokenKind::kName) return named_primary();
  if (current().kind == TokenKind::kString) {
    std::string text;
    for (; current().kind == TokenKind::kString; skip()) text += current().text;
    return constant(Value::string(std::move(text)), line);
  }
  if (current().kind == TokenKind::kInteger || current().kind == TokenKind::kFloat) return number();
  if (skip_sign("(")) {
    ExprPtr expr = tuple(true, true);
    expect_sign(")");
    return expr;
  }
  if (is_sign("[")) return list();
  if (is_sign("{")) return dict();
  fail("expected an expression, not " + shown());
  return constant({}, line);
}

ExprPtr Parser::named_primary() {
  const int line = current().line;
  const std::string name = take_name("a name");
  if (name == "true" || name == "True") return constant(Value::boolean(true), line);
  if (name == "false" || name == "False") return constant(Value::boolean(false), line);
  if (name == "none" || name == "None") return constant(Value::none(), line);
  for (const char* refused :
       {"varargs", "kwargs", "caller", "self", "super", "lipsum", "cycler", "joiner"}) {
    if (name == refused) fail("the name " + name + " is not supported", line);
  }
  ExprPtr expr = make(ExprKind::kName, {}, line);
  expr->name = name;
  return expr;
}

ExprPtr Parser::number() {
  const Token& token = current();
  const int line = token.line;
  if (token.kind == TokenKind::kFloat) {
    const double value = parse_real(token.text).value_or(0);
    skip();
    return constant(Value::real(value), line);
  }
  bool overflow = false;
  const auto value = parse_int(token.text, 0, &overflow);
  if (!value) fail("the number " + in_quotes(token.text) + " is too large");
  skip();
  return constant(Value::integer(value.value_or(0)), line);
}

ExprPtr Parser::tuple(bool with_if, bool in_parentheses, std::string_view end) {
  const int line = current().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (status_.ok()) {
    if (!items.empty()) expect_sign(",");
    const TokenKind kind = current().kind;
    if (kind == TokenKind::kOutputEnd || kind == TokenKind::kBlockEnd || is_sign(")")) break;
    if (!end.empty() && is_name(end)) break;
    items.push_back(expression(with_if));
    if (!is_sign(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items.front());
  if (!is_tuple && !in_parentheses) fail("expected an expression, not " + shown());
  return make(ExprKind::kTuple, std::move(items), line);
}

ExprPtr Parser::list() {
  const int line = current().line;
  expect_sign("[");
  std::vector<ExprPtr> items;
  while (status_.ok() && !is_sign("]")) {
    if (!items.empty()) expect_sign(",");
    if (is_sign("]")) break;
    items.push_back(expression());
  }
  expect_sign("]");
  return make(ExprKind::kList, std::move(items), line);
}

ExprPtr Parser::dict() {
  const int line = current().line;
  expect_sign("{");
  std::vector<ExprPtr> items;
  while (status_.ok() && !is_sign("}")) {
    if (!items.empty()) expect_sign(",");
    if (is_sign("}")) break;
    items.push_back(expression());
    expect_sign(":");
    items.push_back(expression());
  }
  expect_sign("}");
  return make(ExprKind::kDict, std::move(items), line);
}

ExprPtr Parser::postfix(ExprPtr expr) {
  while (status_.ok()) {
    if (is_sign(".") || is_sign("[")) {
      expr = subscript(std::move(expr));
    } else if (is_sign("(")) {
      expr = call(std::move(expr));
    } else {
      break;
    }
  }
  return expr;
}

ExprPtr Parser::filters_and_tests(ExprPtr expr) {
  while (status_.ok()) {
    if (skip_sign("|")) {
      expr = filter(std::move(expr));
    } else if (skip_name("is")) {
      expr = test(std::move(expr));
    } else if (is_sign("(")) {
      expr = call(std::move(expr));
    } else {
      break;
    }
  }
  return expr;
}

ExprPtr Parser::subscript(ExprPtr expr) {
  const int line = current().line;
  if (skip_sign(".")) {
    if (current().kind == TokenKind::kInteger) {
      return make(ExprKind::kSubscript, parts_of(std::move(expr), number()), line);
    }
    ExprPtr found = make(ExprKind::kAttribute, parts_of(std::move(expr)), line);
    found->name = take_name("the name of an attribute");
    return found;
  }
  expect_sign("[");
  ExprPtr index = is_sign(":") ? nullptr : expression();
  ExprPtr found =
      is_sign(":") ? slice(std::move(expr), std::move(index), line)
                   : make(ExprKind::kSubscript, parts_of(std::move(expr), std::move(index)), line);
  if (is_sign(",")) fail("a subscript with several parts is not supported");
  expect_sign("]");
  return found;
}

ExprPtr Parser::slice(ExprPtr expr, ExprPtr start, int line) {
  std::vector<ExprPtr> parts;
  parts.push_back(std::move(expr));
  parts.push_back(std::move(start));
  expect_sign(":");
  parts.push_back(is_sign(":") || is_sign("]") ? nullptr : expression());
  const bool step = skip_sign(":");
  parts.push_back(!step || is_sign("]") ? nullptr : expression());
  return make(ExprKind::kSlice, std::move(parts), line);
}

ExprPtr Parser::call(ExprPtr expr) {
  ExprPtr made = make(ExprKind::kCall, parts_of(std::move(expr)), current().line);
  arguments(*made);
  return made;
}

void Parser::arguments(Expr& expr) {
  expect_sign("(");
  bool first = true;
  while (status_.ok() && !is_sign(")")) {
    if (!std::exchange(first, false)) {
      expect_sign(",");
      if (is_sign(")")) break;
    }
    if (is_sign("*") || is_sign("**")) return fail("arguments with * or ** are not supported");
    ExprPtr value;
    if (current().kind == TokenKind::kName && ahead().kind == TokenKind::kOperator &&
        ahead().text == "=") {
      std::string name = take_name("a name");
      skip();
      for (const auto& [other, unused] : expr.named) {
        if (other == name) fail("the argument " + in_quotes(name) + " is given twice");
      }
      value = expression();
      expr.depth = std::max(expr.depth, value->depth + 1);
      expr.named.emplace_back(std::move(name), std::move(value));
      continue;
    }
    if (!expr.named.empty()) fail("an argument without a name follows one with it");
    value = expression();
    expr.depth = std::max(expr.depth, value->depth + 1);
    expr.parts.push_back(std::move(value));
  }
  expect_sign(")");
  if (expr.depth > kTreeDepthMax) fail("the expression nests too deeply", expr.line);
}

ExprPtr Parser::filter(ExprPtr input) {
  const int line = current().line;
  std::vector<ExprPtr> parts;
  parts.push_back(std::move(input));
  ExprPtr made = make(ExprKind::kFilter, std::move(parts), line);
  made->name = take_name("the name of a filter");
  if (status_.ok() && !is_filter(made->name)) {
    fail("the filter " + in_quotes(made->name) + " is not supported", line);
  }
  if (is_sign("(")) arguments(*made);
  if (made->name == "safe") {
    ++safes_;
    safe_line_ = line;
  }
  return made;
}

ExprPtr Parser::filter_chain(ExprPtr input) {
  while (skip_sign("|")) input = filter(std::move(input));
  return input;
}

ExprPtr Parser::test(ExprPtr expr) {
  const int line = current().line;
  const bool negated = skip_name("not");
  ExprPtr made = make(ExprKind::kTest, parts_of(std::move(expr)), line);
  made->name = take_name("the name of a test");
  if (status_.ok() && !is_test(made->name)) {
    fail("the test " + in_quotes(made->name) + " is not supported", line);
  }
  const TokenKind kind = current().kind;
  if (is_sign("(")) {
    arguments(*made);
  } else if (is_name("is")) {
    fail("a test of a test is not supported");
  } else if ((kind == TokenKind::kName && !is_name("else") && !is_name("or") && !is_name("and")) ||
             kind == TokenKind::kString || kind == TokenKind::kInteger ||
             kind == TokenKind::kFloat || is_sign("[") || is_sign("{")) {
    ExprPtr argument = postfix(primary());
    made->depth = std::max(made->depth, argument->depth + 1);
    made->parts.push_back(std::move(argument));
  }
  if (made->depth > kTreeDepthMax) fail("the expression nests too deeply", line);
  return negated ? make(ExprKind::kNot, parts_of(std::move(made)), line) : std::move(made);
}

}  // namespace spillway::jinja
