#include "server/chat/jinja_render.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/quote.h"
#include "server/chat/jinja_attributes.h"
#include "server/chat/jinja_compare.h"
#include "server/chat/jinja_filters.h"
#include "server/chat/jinja_globals.h"
#include "server/chat/jinja_json.h"
#include "server/chat/jinja_operators.h"

namespace spillway::jinja {
namespace {

// The names of the template, a macro, an iteration of a loop or a block that keeps its own.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> names;  // The text belongs to the template

  void set(std::string_view name, Value value) {
    for (auto& [known, old] : names) {
      if (known != name) continue;
      old = std::move(value);
      return;
    }
    names.emplace_back(name, std::move(value));
  }
};

enum class Flow : uint8_t { kNext, kBreak, kContinue };

class Renderer {
 public:
  Renderer(Run& run, size_t output_bytes_max, const std::optional<std::tm>& now)
      : run_(run), output_bytes_max_(output_bytes_max), now_(now) {}

  std::string render(const Program& program, const nlohmann::ordered_json& json) {
    variables_ = value_of(run_, json);
    if (!run_.failed() && !variables_.is(Kind::kDict)) run_.fail("the variables are no object");
    execute(program.body, root_);
    return run_.failed() ? "" : std::move(out_);
  }

 private:
  // Statements.
  Flow execute(const Body& body, Scope& scope);
  Flow execute(const Stmt& stmt, Scope& scope);
  Flow execute_if(const Stmt& stmt, Scope& scope);
  Flow execute_for(const Stmt& stmt, Scope& scope);
  std::shared_ptr<Loop> make_loop(const Stmt& stmt, Scope& scope);
  void execute_set_block(const Stmt& stmt, Scope& scope);
  std::string captured(const Body& body, Scope& scope);  // A body's text
  void assign(const Target& target, const Value& value, Scope& scope);
  void emit(std::string_view text);
  void output(const Value& value);

  // Expressions.
  Value evaluate(const Expr& expr, Scope& scope);
  Value evaluate_kind(const Expr& expr, Scope& scope);
  Value lookup(const std::string& name, const Scope& scope);
  Value evaluate_items(const Expr& expr, Scope& scope);
  Value evaluate_concat(const Expr& expr, Scope& scope);
  Value evaluate_compare(const Expr& expr, Scope& scope);
  Value evaluate_if(const Expr& expr, Scope& scope);
  Value evaluate_slice(const Expr& expr, Scope& scope);
  Value evaluate_filter(const Expr& expr, const Value* block, Scope& scope);
  Value evaluate_call(const Expr& expr, Scope& scope);
  Value call_macro(const Stmt& macro, const Arguments& arguments);
  Arguments arguments_of(const Expr& expr, Scope& scope);

  Run& run_;
  const size_t output_bytes_max_;
  const std::optional<std::tm>& now_;
  Value variables_;
  Scope root_;
  std::string out_;
};

void Renderer::emit(std::string_view text) {
  if (!run_.take(text.size())) return;
  if (text.size() > output_bytes_max_ - out_.size())
    return run_.fail("the text is longer than is allowed");
  out_ += text;
}

void Renderer::output(const Value& value) {
  if (value.is_string()) return emit(value.as_string());
  emit(to_text(run_, value));
}

Flow Renderer::execute(const Body& body, Scope& scope) {
  for (const auto& stmt : body) {
    if (run_.failed()) break;
    Flow flow = Flow::kNext;
    if (run_.enter()) {
      run_.at_line(stmt->line);
      flow = execute(*stmt, scope);
    }
    run_.leave();
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Flow Renderer::execute(const Stmt& stmt, Scope& scope) {
  switch (stmt.kind) {
    case StmtKind::kText:
      emit(stmt.text);
      break;
    case StmtKind::kOutput:
      output(evaluate(*stmt.value, scope));
      break;
    case StmtKind::kIf:
      return execute_if(stmt, scope);
    case StmtKind::kFor:
      return execute_for(stmt, scope);
    case StmtKind::kSet:
      assign(stmt.target, evaluate(*stmt.value, scope), scope);
      break;
    case StmtKind::kSetBlock:
      execute_set_block(stmt, scope);
      break;
    case StmtKind::kMacro: {
      auto macro = std::make_shared<Callable>();
      macro->what = Callable::What::kMacro;
      macro->name = stmt.text;
      macro->macro = &stmt;
      scope.set(stmt.text, Value::of(std::move(macro)));
      break;
    }
    case StmtKind::kFilterBlock: {
      const Value text = run_.string(captured(stmt.body, scope));
      output(evaluate_filter(*stmt.value, &text, scope));
      break;
    }
    case StmtKind::kGeneration:
      emit(captured(stmt.body, scope));
      break;
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Flow Renderer::execute_if(const Stmt& stmt, Scope& scope) {
  for (const Branch& branch : stmt.branches) {
    const bool taken = !branch.condition || truth(evaluate(*branch.condition, scope));
    if (run_.failed()) break;
    if (taken) return execute(branch.body, scope);
  }
  return Flow::kNext;
}

// The loop over the items that `stmt` names; with a condition it goes as far as it is asked, since
// the body may change what the condition reads.
std::shared_ptr<Loop> Renderer::make_loop(const Stmt& stmt, Scope& scope) {
  const Value source = evaluate(*stmt.value, scope);
  if (source.is(Kind::kLoop)) run_.fail_unsupported("a loop over loop");
  auto loop = std::make_shared<Loop>();
  const int64_t length = length_of(source);
  auto items = std::make_shared<std::vector<Value>>(items_of(run_, source));
  loop->depth = source.depth() + 1;
  if (loop->depth > kValueDepthMax) run_.fail("lists and dicts nest too deeply");
  loop->sized = length >= 0 && !stmt.condition;
  loop->length = length;
  loop->advance = [this, items, at = size_t{0}, &stmt, &scope](Value* item) mutable {
    while (at < items->size() && run_.step()) {
      *item = (*items)[at++];
      if (!stmt.condition) return true;
      Scope inner{&scope, {}};
      inner.set("loop", Value::undefined("'loop' is undefined in the condition of a loop"));
      assign(stmt.target, *item, inner);
      const bool wanted = truth(evaluate(*stmt.condition, inner));
      if (run_.failed()) return false;
      if (wanted) return true;
    }
    return false;
  };
  return loop;
}

Flow Renderer::execute_for(const Stmt& stmt, Scope& scope) {
  const std::shared_ptr<Loop> loop = make_loop(stmt, scope);
  bool finished_one = false;  // Jinja renders `else` unless one iteration came to its end.
  const Value loop_value = Value::of(loop);
  for (Value item; !run_.failed() && loop->next(&item);) {
    Scope inner{&scope, {}};
    assign(stmt.target, item, inner);
    inner.set("loop", loop_value);
    const Flow flow = execute(stmt.body, inner);
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNext) finished_one = true;
  }
  loop->advance = nullptr;
  loop->ended = true;
  if (finished_one || stmt.otherwise.empty() || run_.failed()) return Flow::kNext;
  Scope inner{&scope, {}};
  return execute(stmt.otherwise, inner);
}

std::string Renderer::captured(const Body& body, Scope& scope) {
  Scope inner{&scope, {}};
  std::string before = std::exchange(out_, {});
  execute(body, inner);
  return std::exchange(out_, std::move(before));
}

void Renderer::execute_set_block(const Stmt& stmt, Scope& scope) {
  Value text = run_.string(captured(stmt.body, scope));
  if (stmt.value) text = evaluate_filter(*stmt.value, &text, scope);
  assign(stmt.target, text, scope);
}

void Renderer::assign(const Target& target, const Value& value, Scope& scope) {
  if (run_.failed()) return;
  if (!target.is_tuple) {
    if (target.attribute.empty()) return scope.set(target.name, value);
    const Value owner = lookup(target.name, scope);
    if (!owner.is(Kind::kNamespace)) return run_.fail(in_quotes(target.name) + " is no namespace");
    if (run_.take(96)) owner.as_namespace().set(target.attribute, value);
    return;
  }
  const std::vector<Value> values = items_of(run_, value);
  if (value.is_undefined() || values.size() != target.items.size()) {
    return run_.fail("cannot unpack " + std::to_string(values.size()) + " values into " +
                     std::to_string(target.items.size()) + " names");
  }
  for (size_t i = 0; i < values.size(); ++i) assign(target.items[i], values[i], scope);
}

Value Renderer::evaluate(const Expr& expr, Scope& scope) {
  Value value;
  if (run_.enter()) {
    run_.at_line(expr.line);
    value = evaluate_kind(expr, scope);
  }
  run_.leave();
  return run_.failed() ? Value() : value;
}

Value Renderer::evaluate_kind(const Expr& expr, Scope& scope) {
  const auto part = [&](size_t i) { return evaluate(*expr.parts[i], scope); };
  switch (expr.kind) {
    case ExprKind::kConst:
      return expr.constant;
    case ExprKind::kName:
      return lookup(expr.name, scope);
    case ExprKind::kList:
    case ExprKind::kTuple:
    case ExprKind::kDict:
      return evaluate_items(expr, scope);
    case ExprKind::kNot:
      return Value::boolean(!truth(part(0)));
    case ExprKind::kNegate:
    case ExprKind::kPositive:
      return negated(run_, part(0), expr.kind == ExprKind::kPositive);
    case ExprKind::kBinary: {
      const Value left = part(0);
      return binary(run_, expr.ops[0], left, part(1));
    }
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value left = part(0);
      return truth(left) == (expr.kind == ExprKind::kAnd) ? part(1) : left;
    }
    case ExprKind::kConcat:
      return evaluate_concat(expr, scope);
    case ExprKind::kCompare:
      return evaluate_compare(expr, scope);
    case ExprKind::kIfElse:
      return evaluate_if(expr, scope);
    case ExprKind::kAttribute:
      return attribute(run_, part(0), expr.name);
    case ExprKind::kSubscript: {
      const Value value = part(0);
      return item(run_, value, part(1));
    }
    case ExprKind::kSlice:
      return evaluate_slice(expr, scope);
    case ExprKind::kCall:
      return evaluate_call(expr, scope);
    case ExprKind::kFilter:
      return evaluate_filter(expr, nullptr, scope);
    case ExprKind::kTest: {
      const Value value = part(0);
      return Value::boolean(tested(run_, expr.name, value, arguments_of(expr, scope)));
    }
  }
  return {};
}

Value Renderer::lookup(const std::string& name, const Scope& scope) {
  for (const Scope* at = &scope; at != nullptr; at = at->parent) {
    for (const auto& [known, value] : at->names) {
      if (known == name) return value;
    }
    if (!run_.step(1 + at->names.size() / 8)) return {};
  }
  if (const Value* found = variables_.as_dict().find(name)) return *found;
  if (!is_global(name)) return Value::undefined(in_quotes(name) + " is undefined");
  auto function = std::make_shared<Callable>();
  function->name = name;
  return Value::of(std::move(function));
}

Value Renderer::evaluate_items(const Expr& expr, Scope& scope) {
  std::vector<Value> items;
  for (const ExprPtr& part : expr.parts) items.push_back(evaluate(*part, scope));
  if (expr.kind != ExprKind::kDict) {
    return run_.sequence(
        expr.kind == ExprKind::kList ? Sequence::Form::kList : Sequence::Form::kTuple,
        std::move(items));
  }
  std::vector<std::pair<Value, Value>> entries;
  for (size_t i = 0; i < items.size(); i += 2) {
    entries.emplace_back(std::move(items[i]), std::move(items[i + 1]));
  }
  return run_.dict(std::move(entries));
}

Value Renderer::evaluate_concat(const Expr& expr, Scope& scope) {
  std::vector<Value> values;  // All of them first: Python evaluates before it joins
  for (const ExprPtr& part : expr.parts) values.push_back(evaluate(*part, scope));
  std::string text;
  for (const Value& value : values) print(run_, value, &text);
  return run_.string(std::move(text));
}

Value Renderer::evaluate_compare(const Expr& expr, Scope& scope) {
  Value left = evaluate(*expr.parts[0], scope);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = evaluate(*expr.parts[i + 1], scope);
    if (!compare(run_, expr.ops[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Renderer::evaluate_if(const Expr& expr, Scope& scope) {
  if (truth(evaluate(*expr.parts[0], scope))) return evaluate(*expr.parts[1], scope);
  if (expr.parts.size() > 2) return evaluate(*expr.parts[2], scope);
  return Value::undefined("an if without an else was false");
}

Value Renderer::evaluate_slice(const Expr& expr, Scope& scope) {
  const Value value = evaluate(*expr.parts[0], scope);
  Value bounds[3];
  const Value* given[3] = {nullptr, nullptr, nullptr};
  for (size_t i = 0; i < 3; ++i) {
    if (!expr.parts[i + 1]) continue;
    bounds[i] = evaluate(*expr.parts[i + 1], scope);
    given[i] = &bounds[i];
  }
  return sliced(run_, value, given[0], given[1], given[2]);
}

Arguments Renderer::arguments_of(const Expr& expr, Scope& scope) {
  Arguments arguments;
  for (size_t i = 1; i < expr.parts.size(); ++i) {
    arguments.positional.push_back(evaluate(*expr.parts[i], scope));
  }
  for (const auto& [name, value] : expr.named) {
    arguments.named.emplace_back(name, evaluate(*value, scope));
  }
  return arguments;
}

// `block`: the text that the innermost filter of a chain takes, which has no input of its own.
Value Renderer::evaluate_filter(const Expr& expr, const Value* block, Scope& scope) {
  if (!run_.enter()) {
    run_.leave();
    return {};
  }
  Value input;
  if (block != nullptr) {
    input = expr.parts[0] ? evaluate_filter(*expr.parts[0], block, scope) : *block;
  } else {
    input = evaluate(*expr.parts[0], scope);
  }
  const Arguments arguments = arguments_of(expr, scope);
  run_.at_line(expr.line);
  Value value = filtered(run_, expr.name, input, arguments);
  run_.leave();
  return value;
}

Value Renderer::evaluate_call(const Expr& expr, Scope& scope) {
  const Value callee = evaluate(*expr.parts[0], scope);
  const Arguments arguments = arguments_of(expr, scope);
  run_.at_line(expr.line);
  if (run_.failed()) return {};
  if (callee.is_undefined()) run_.use_undefined(callee);
  if (callee.is(Kind::kLoop)) run_.fail_unsupported("a recursive loop");
  if (!callee.is(Kind::kCallable)) {
    run_.fail("a " + std::string(type_name(callee)) + " cannot be called");
    return {};
  }
  const Callable& callable = callee.as_callable();
  if (callable.what == Callable::What::kMethod) {
    return call_method(run_, callable.self, callable.name, arguments);
  }
  if (callable.what == Callable::What::kFunction) {
    return call_global(run_, callable.name, arguments, now_);
  }
  return call_macro(*static_cast<const Stmt*>(callable.macro), arguments);
}

Value Renderer::call_macro(const Stmt& macro, const Arguments& arguments) {
  const std::string what = "the macro " + macro.text;
  if (arguments.positional.size() > macro.parameters.size()) {
    run_.fail(what + " takes at most " + std::to_string(macro.parameters.size()) + " arguments");
  }
  Scope scope{&root_, {}};
  std::vector<bool> given(macro.parameters.size());
  for (size_t i = 0; i < macro.parameters.size() && !run_.failed(); ++i) {
    const std::string& name = macro.parameters[i].name;
    given[i] = i < arguments.positional.size();
    Value value = given[i] ? arguments.positional[i]
                           : Value::undefined("the parameter " + in_quotes(name) + " is not given");
    for (const auto& [known, named] : arguments.named) {
      if (known != name) continue;
      if (given[i]) run_.fail(what + " is given " + in_quotes(name) + " twice");
      value = named;
      given[i] = true;
    }
    scope.set(name, std::move(value));
  }
  for (const auto& [name, value] : arguments.named) {
    bool known = false;
    for (const Parameter& parameter : macro.parameters) known = known || parameter.name == name;
    if (!known) run_.fail(what + " takes no argument " + in_quotes(name));
  }
  for (size_t i = 0; i < macro.parameters.size() && !run_.failed(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    if (!given[i] && parameter.otherwise) {
      scope.set(parameter.name, evaluate(*parameter.otherwise, scope));
    }
  }
  return run_.failed() ? Value() : run_.string(captured(macro.body, scope));
}

}  // namespace

std::string render(Run& run, const Program& program, const nlohmann::ordered_json& variables,
                   size_t output_bytes_max, const std::optional<std::tm>& now) {
  return Renderer(run, output_bytes_max, now).render(program, variables);
}

}  // namespace spillway::jinja
