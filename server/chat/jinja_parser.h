// Parses a template into its tree, with Jinja2's grammar. One parser for one template; one thread.
//
// Like Run it keeps its first error: it then stands at the end of the tokens, so that every loop
// ends, and returns expressions without a meaning, never null ones.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"
#include "server/chat/jinja_ast.h"
#include "server/chat/jinja_lexer.h"

namespace spillway::jinja {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // kInvalidArgument: "line 3: ...".
  Result<std::shared_ptr<const Program>> run();

 private:
  // Tokens (jinja_parser.cc).
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void skip();
  bool is_name(std::string_view name) const;
  bool is_sign(std::string_view sign) const;
  bool skip_name(std::string_view name);
  bool skip_sign(std::string_view sign);
  void expect_sign(std::string_view sign);
  void expect(TokenKind kind, const char* what);
  std::string take_name(const char* what);
  void fail(const std::string& why, int line = 0);
  bool enter();  // One level deeper; false at the limit. leave() follows either.
  void leave() { --level_; }
  std::string shown() const;  // The token that stands where another is needed

  // Statements (jinja_parser.cc).
  Body statements(std::initializer_list<std::string_view> ends);
  Body block_body(std::initializer_list<std::string_view> ends);
  Body call_body(std::string_view end);  // A body that no loop control leaves
  ExprPtr output();                      // Within {{ }}
  std::unique_ptr<Stmt> statement();
  void if_statement(Stmt& stmt);
  void for_statement(Stmt& stmt);
  void set_statement(Stmt& stmt);
  void macro_statement(Stmt& stmt);
  void filter_statement(Stmt& stmt);
  void loop_control(Stmt& stmt, StmtKind kind);
  Target target(bool with_namespace, std::string_view end);
  Target one_target(bool with_namespace);

  // Expressions (jinja_expressions.cc).
  ExprPtr make(ExprKind kind, std::vector<ExprPtr> parts, int line);
  ExprPtr constant(Value value, int line);
  ExprPtr expression(bool with_if = true);
  ExprPtr either();
  ExprPtr both();
  ExprPtr negation();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filter = true);
  ExprPtr primary();
  ExprPtr named_primary();
  ExprPtr number();
  ExprPtr tuple(bool with_if, bool in_parentheses, std::string_view end = {});
  ExprPtr list();
  ExprPtr dict();
  ExprPtr postfix(ExprPtr expr);
  ExprPtr filters_and_tests(ExprPtr expr);
  ExprPtr subscript(ExprPtr expr);
  ExprPtr slice(ExprPtr expr, ExprPtr start, int line);
  ExprPtr call(ExprPtr expr);
  ExprPtr filter(ExprPtr input);  // From the name on
  ExprPtr filter_chain(ExprPtr input);
  ExprPtr test(ExprPtr expr);
  void arguments(Expr& expr);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int level_ = 0;
  int loops_ = 0;        // Around the statement, within its macro
  bool at_root_ = true;  // Neither in a loop nor in a macro or a block with names of its own
  size_t nodes_ = 0;
  int safes_ = 0;      // Filters `safe` that do not end an output
  int safe_line_ = 0;  // Of the last one
  Status status_;
};

}  // namespace spillway::jinja
