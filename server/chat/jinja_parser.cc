#include "server/chat/jinja_parser.h"

#include <algorithm>
#include <utility>

#include "kernels/base/quote.h"

namespace spillway::jinja {
namespace {

constexpr int kLevelsMax = 60;  // Brackets, signs and blocks within each other

std::string list_of(std::initializer_list<std::string_view> names) {
  std::string text;
  for (const std::string_view name : names)
    text += (text.empty() ? "" : " or ") + std::string(name);
  return text;
}

}  // namespace

Result<std::shared_ptr<const Program>> Parser::run() {
  auto program = std::make_shared<Program>();
  program->body = statements({});
  if (safes_ > 0)
    fail("the filter safe is not supported except at the end of an output", safe_line_);
  if (!status_.ok()) return status_;
  return std::shared_ptr<const Program>(std::move(program));
}

void Parser::skip() {
  if (at_ + 1 < tokens_.size()) ++at_;
}

bool Parser::is_name(std::string_view name) const {
  return current().kind == TokenKind::kName && current().text == name;
}

bool Parser::is_sign(std::string_view sign) const {
  return current().kind == TokenKind::kOperator && current().text == sign;
}

bool Parser::skip_name(std::string_view name) {
  const bool found = is_name(name);
  if (found) skip();
  return found;
}

bool Parser::skip_sign(std::string_view sign) {
  const bool found = is_sign(sign);
  if (found) skip();
  return found;
}

void Parser::expect_sign(std::string_view sign) {
  if (!skip_sign(sign)) fail("expected '" + std::string(sign) + "', not " + shown());
}

void Parser::expect(TokenKind kind, const char* what) {
  if (current().kind == kind) return skip();
  fail("expected " + std::string(what) + ", not " + shown());
}

std::string Parser::take_name(const char* what) {
  std::string name = current().text;
  expect(TokenKind::kName, what);
  return name;
}

void Parser::fail(const std::string& why, int line) {
  if (status_.ok()) {
    status_ =
        invalid_argument("line " + std::to_string(line > 0 ? line : current().line) + ": " + why);
  }
  at_ = tokens_.size() - 1;
}

bool Parser::enter() {
  if (++level_ > kLevelsMax) fail("brackets or blocks nest too deeply");
  return status_.ok();
}

std::string Parser::shown() const {
  switch (current().kind) {
    case TokenKind::kBlockEnd:
      return "the end of the statement";
    case TokenKind::kOutputEnd:
      return "the end of the expression";
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kText:
    case TokenKind::kOutputBegin:
    case TokenKind::kBlockBegin:
      return "text";
    default:
      return in_quotes(current().text);
  }
}

Body Parser::statements(std::initializer_list<std::string_view> ends) {
  Body body;
  while (current().kind != TokenKind::kEnd) {
    const int line = current().line;
    if (current().kind == TokenKind::kBlockBegin) {
      skip();
      if (std::any_of(ends.begin(), ends.end(), [&](auto end) { return is_name(end); }))
        return body;
      body.push_back(statement());
      expect(TokenKind::kBlockEnd, "the end of the statement");
      continue;
    }
    auto stmt = std::make_unique<Stmt>();
    stmt->line = line;
    if (current().kind == TokenKind::kText) {
      stmt->text = current().text;
      skip();
    } else {
      skip();
      stmt->kind = StmtKind::kOutput;
      stmt->value = output();
      expect(TokenKind::kOutputEnd, "}}");
    }
    body.push_back(std::move(stmt));
  }
  if (ends.size() > 0) fail("expected " + list_of(ends) + ", not the end of the template");
  return body;
}

// Jinja's `safe` text changes what is joined with it; only printed it is the text itself.
ExprPtr Parser::output() {
  ExprPtr expr = tuple(true, false);
  if (expr->kind == ExprKind::kFilter && expr->name == "safe") --safes_;
  return expr;
}

Body Parser::block_body(std::initializer_list<std::string_view> ends) {
  skip_sign(":");
  expect(TokenKind::kBlockEnd, "the end of the statement");
  return statements(ends);
}

Body Parser::call_body(std::string_view end) {
  const int loops = std::exchange(loops_, 0);
  const bool at_root = std::exchange(at_root_, false);
  Body body = block_body({end});
  skip();
  loops_ = loops;
  at_root_ = at_root;
  return body;
}

std::unique_ptr<Stmt> Parser::statement() {
  auto stmt = std::make_unique<Stmt>();
  stmt->line = current().line;
  if (!enter()) {
    leave();
    return stmt;
  }
  if (current().kind != TokenKind::kName) {
    fail("expected the name of a statement, not " + shown());
  } else if (skip_name("if")) {
    if_statement(*stmt);
  } else if (skip_name("for")) {
    for_statement(*stmt);
  } else if (skip_name("set")) {
    set_statement(*stmt);
  } else if (skip_name("macro")) {
    macro_statement(*stmt);
  } else if (skip_name("filter")) {
    filter_statement(*stmt);
  } else if (skip_name("break")) {
    loop_control(*stmt, StmtKind::kBreak);
  } else if (skip_name("continue")) {
    loop_control(*stmt, StmtKind::kContinue);
  } else if (skip_name("generation")) {
    stmt->kind = StmtKind::kGeneration;
    stmt->body = call_body("endgeneration");
  } else {
    fail("the statement " + in_quotes(current().text) + " is not supported");
  }
  leave();
  return stmt;
}

void Parser::if_statement(Stmt& stmt) {
  stmt.kind = StmtKind::kIf;
  for (bool more = true; more && status_.ok();) {
    Branch branch;
    branch.condition = tuple(false, false);
    branch.body = block_body({"elif", "else", "endif"});
    stmt.branches.push_back(std::move(branch));
    more = is_name("elif");
    if (is_name("else")) {
      skip();
      stmt.branches.push_back({nullptr, block_body({"endif"})});
    }
    skip();
  }
}

void Parser::for_statement(Stmt& stmt) {
  stmt.kind = StmtKind::kFor;
  stmt.target = target(false, "in");
  if (!skip_name("in")) fail("expected 'in', not " + shown());
  stmt.value = tuple(false, false, "recursive");
  if (skip_name("if")) stmt.condition = expression();
  if (is_name("recursive")) fail("a recursive loop is not supported");
  const bool at_root = std::exchange(at_root_, false);
  ++loops_;
  stmt.body = block_body({"endfor", "else"});
  --loops_;
  if (skip_name("else")) stmt.otherwise = block_body({"endfor"});
  skip();
  at_root_ = at_root;
}

void Parser::set_statement(Stmt& stmt) {
  stmt.target = target(true, "");
  if (skip_sign("=")) {
    stmt.kind = StmtKind::kSet;
    stmt.value = tuple(true, false);
    return;
  }
  stmt.kind = StmtKind::kSetBlock;
  if (skip_sign("|")) stmt.value = filter_chain(filter(nullptr));
  stmt.body = call_body("endset");
}

void Parser::macro_statement(Stmt& stmt) {
  if (!at_root_) return fail("a macro inside of a loop, a macro or a block is not supported");
  stmt.kind = StmtKind::kMacro;
  stmt.text = take_name("the name of the macro");
  expect_sign("(");
  for (bool defaults = false; status_.ok() && !is_sign(")");) {
    if (!stmt.parameters.empty()) expect_sign(",");
    Parameter parameter;
    parameter.name = take_name("the name of a parameter");
    for (const Parameter& other : stmt.parameters) {
      if (other.name == parameter.name) fail("two parameters are " + in_quotes(other.name));
    }
    if (skip_sign("=")) {
      parameter.otherwise = expression();
      defaults = true;
    } else if (defaults) {
      fail("a parameter without a default value follows one with it");
    }
    stmt.parameters.push_back(std::move(parameter));
  }
  expect_sign(")");
  stmt.body = call_body("endmacro");
}

void Parser::filter_statement(Stmt& stmt) {
  stmt.kind = StmtKind::kFilterBlock;
  stmt.value = filter_chain(filter(nullptr));
  stmt.body = call_body("endfilter");
}

void Parser::loop_control(Stmt& stmt, StmtKind kind) {
  stmt.kind = kind;
  if (loops_ == 0) {
    fail(std::string(kind == StmtKind::kBreak ? "break" : "continue") +
             " is possible in a loop alone, not in a block within it",
         stmt.line);
  }
}

Target Parser::target(bool with_namespace, std::string_view end) {
  Target first = one_target(with_namespace);
  if (!is_sign(",")) return first;
  Target all;
  all.is_tuple = true;
  all.items.push_back(std::move(first));
  while (status_.ok() && skip_sign(",")) {
    const TokenKind kind = current().kind;
    if (kind == TokenKind::kBlockEnd || is_sign(")") || (!end.empty() && is_name(end))) break;
    all.items.push_back(one_target(with_namespace));
  }
  return all;
}

Target Parser::one_target(bool with_namespace) {
  Target one;
  if (skip_sign("(")) {
    if (enter()) one = target(false, "");
    leave();
    expect_sign(")");
    return one;
  }
  one.name = take_name("a name to assign to");
  for (const char* constant : {"true", "false", "none", "True", "False", "None", "loop"}) {
    if (one.name == constant) fail("cannot assign to " + one.name);
  }
  if (with_namespace && skip_sign(".")) one.attribute = take_name("the name of an attribute");
  return one;
}

}  // namespace spillway::jinja
