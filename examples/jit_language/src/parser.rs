//! Tokens to the syntax tree, by recursive descent.
//!
//! Nesting is bounded by [`DEPTH_MAX`]: that of the parser's own calls, and that of the tree, which
//! grows without any of them in `1 + 1 + 1 + …`. All that walks the tree later can recurse.

use crate::ast::{
    Argument, BinaryOp, Block, Const, Expr, ExprKind, Function, Name, Param, Program, Statement,
    StatementKind, Struct, TypeExpr, TypeExprKind, UnaryOp,
};
use crate::error::{Error, Position, Result};
use crate::lexer::{Spanned, Token, lex};

/// Levels of expressions, types and blocks within each other. In a debug build, so many take some
/// MiB of stack.
const DEPTH_MAX: u32 = 200;

pub(crate) fn parse(source: &str) -> Result<Program> {
    let mut parser = Parser {
        tokens: lex(source)?,
        next: 0,
        depth: 0,
        struct_literals: true,
    };
    parser.program()
}

struct Parser {
    /// The last one is [`Token::End`], which is never passed.
    tokens: Vec<Spanned>,
    next: usize,
    depth: u32,
    /// Off in conditions, where `{` opens the block: `if a == b {`.
    struct_literals: bool,
}

impl Parser {
    fn peek(&self) -> &Token {
        &self.tokens[self.next].token
    }

    fn at(&self) -> Position {
        self.tokens[self.next].at
    }

    fn bump(&mut self) -> Token {
        let token = self.peek().clone();
        if token != Token::End {
            self.next += 1;
        }
        token
    }

    fn is_symbol(&self, symbol: &str) -> bool {
        matches!(self.peek(), Token::Symbol(text) if *text == symbol)
    }

    fn is_keyword(&self, keyword: &str) -> bool {
        matches!(self.peek(), Token::Keyword(text) if *text == keyword)
    }

    fn eat(&mut self, symbol: &str) -> bool {
        let found = self.is_symbol(symbol);
        self.next += usize::from(found);
        found
    }

    fn eat_keyword(&mut self, keyword: &str) -> bool {
        let found = self.is_keyword(keyword);
        self.next += usize::from(found);
        found
    }

    fn unexpected<T>(&self, wanted: &str) -> Result<T> {
        let message = format!("expected {wanted}, found {}", self.peek());
        Err(Error::new(self.at(), message))
    }

    fn expect(&mut self, symbol: &str) -> Result<()> {
        if self.eat(symbol) {
            return Ok(());
        }
        self.unexpected(&format!("`{symbol}`"))
    }

    fn name(&mut self, what: &str) -> Result<Name> {
        let at = self.at();
        match self.peek() {
            Token::Name(text) => {
                let text = text.clone();
                self.next += 1;
                Ok(Name { text, at })
            }
            _ => self.unexpected(what),
        }
    }

    /// `item, item, … close`, with the opening bracket passed already.
    fn list<T>(
        &mut self,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut items = Vec::new();
        while !self.eat(close) {
            items.push(item(self)?);
            if !self.eat(",") && !self.is_symbol(close) {
                return self.unexpected(&format!("`,` or `{close}`"));
            }
        }
        Ok(items)
    }

    /// Runs `parse` a level deeper.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == DEPTH_MAX {
            return Err(self.too_deep(self.at()));
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    fn too_deep(&self, at: Position) -> Error {
        Error::new(at, format!("nested more than {DEPTH_MAX} levels deep"))
    }

    /// Runs `parse` with struct literals allowed or not.
    fn with_literals<T>(
        &mut self,
        allowed: bool,
        parse: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let outer = std::mem::replace(&mut self.struct_literals, allowed);
        let result = parse(self);
        self.struct_literals = outer;
        result
    }
}

/// Items, types and statements.
impl Parser {
    fn program(&mut self) -> Result<Program> {
        let mut program = Program {
            consts: Vec::new(),
            structs: Vec::new(),
            functions: Vec::new(),
        };
        loop {
            match self.peek() {
                Token::Keyword("const") => program.consts.push(self.constant()?),
                Token::Keyword("struct") => program.structs.push(self.structure()?),
                Token::Keyword("fn") => program.functions.push(self.function()?),
                Token::End => return Ok(program),
                _ => return self.unexpected("`fn`, `struct` or `const`"),
            }
        }
    }

    fn constant(&mut self) -> Result<Const> {
        self.bump();
        let name = self.name("the name of the constant")?;
        self.expect("=")?;
        let value = self.expr()?;
        self.expect(";")?;
        Ok(Const { name, value })
    }

    fn structure(&mut self) -> Result<Struct> {
        self.bump();
        let name = self.name("the name of the struct")?;
        self.expect("{")?;
        let fields = self.list("}", |parser| {
            let name = parser.name("a field")?;
            parser.expect(":")?;
            Ok((name, parser.ty()?))
        })?;
        Ok(Struct { name, fields })
    }

    fn function(&mut self) -> Result<Function> {
        self.bump();
        let name = self.name("the name of the function")?;
        self.expect("(")?;
        let params = self.list(")", |parser| {
            let name = parser.name("a parameter")?;
            parser.expect(":")?;
            let by_reference = parser.eat("&");
            let ty = parser.ty()?;
            Ok(Param {
                name,
                by_reference,
                ty,
            })
        })?;
        let result = match self.eat("->") {
            true => Some(self.ty()?),
            false => None,
        };
        let body = self.block()?;
        Ok(Function {
            name,
            params,
            result,
            body,
        })
    }

    fn ty(&mut self) -> Result<TypeExpr> {
        let at = self.at();
        let kind = if self.eat("[") {
            let element = self.nested(Self::ty)?;
            self.expect(";")?;
            let length = self.with_literals(true, Self::expr)?;
            self.expect("]")?;
            TypeExprKind::Array(Box::new(element), Box::new(length))
        } else {
            TypeExprKind::Name(self.name("a type")?.text)
        };
        Ok(TypeExpr { kind, at })
    }

    fn block(&mut self) -> Result<Block> {
        self.expect("{")?;
        let mut statements = Vec::new();
        loop {
            let end = self.at();
            if self.eat("}") {
                return Ok(Block { statements, end });
            }
            let statement = self.nested(|parser| parser.with_literals(true, Self::statement))?;
            statements.push(statement);
        }
    }

    fn statement(&mut self) -> Result<Statement> {
        let at = self.at();
        let kind = match *self.peek() {
            Token::Keyword("if") => self.if_statement()?,
            Token::Keyword("while") => {
                self.bump();
                let condition = self.with_literals(false, Self::expr)?;
                let body = self.block()?;
                StatementKind::While { condition, body }
            }
            Token::Keyword("for") => self.for_statement()?,
            Token::Symbol("{") => StatementKind::Block(self.block()?),
            _ => {
                let kind = self.simple_statement()?;
                self.expect(";")?;
                kind
            }
        };
        Ok(Statement { kind, at })
    }

    fn if_statement(&mut self) -> Result<StatementKind> {
        let mut arms = Vec::new();
        let mut otherwise = None;
        while self.eat_keyword("if") {
            let condition = self.with_literals(false, Self::expr)?;
            arms.push((condition, self.block()?));
            if !self.eat_keyword("else") {
                break;
            }
            if !self.is_keyword("if") {
                otherwise = Some(self.block()?);
            }
        }
        Ok(StatementKind::If { arms, otherwise })
    }

    fn for_statement(&mut self) -> Result<StatementKind> {
        self.bump();
        let name = self.name("the loop's variable")?;
        if !self.eat_keyword("in") {
            return self.unexpected("`in`");
        }
        let from = self.with_literals(false, Self::expr)?;
        self.expect("..")?;
        let to = self.with_literals(false, Self::expr)?;
        let body = self.block()?;
        Ok(StatementKind::For {
            name,
            from,
            to,
            body,
        })
    }

    /// A statement that ends with a semicolon.
    fn simple_statement(&mut self) -> Result<StatementKind> {
        if self.eat_keyword("let") {
            let name = self.name("the name of the variable")?;
            let ty = match self.eat(":") {
                true => Some(self.ty()?),
                false => None,
            };
            self.expect("=")?;
            let value = self.expr()?;
            return Ok(StatementKind::Let { name, ty, value });
        }
        if self.eat_keyword("print") {
            self.expect("(")?;
            return Ok(StatementKind::Print(self.list(")", Self::expr)?));
        }
        if self.eat_keyword("return") {
            let value = match self.is_symbol(";") {
                true => None,
                false => Some(self.expr()?),
            };
            return Ok(StatementKind::Return(value));
        }
        if self.eat_keyword("break") {
            return Ok(StatementKind::Break);
        }
        if self.eat_keyword("continue") {
            return Ok(StatementKind::Continue);
        }
        let target = self.expr()?;
        let op = match self.peek() {
            Token::Symbol("=") => None,
            Token::Symbol(symbol) => match symbol.strip_suffix('=').map(BinaryOp::from_symbol) {
                Some(Some(op)) => Some(op),
                _ => return Ok(StatementKind::Expr(target)),
            },
            _ => return Ok(StatementKind::Expr(target)),
        };
        self.bump();
        let value = self.expr()?;
        Ok(StatementKind::Assign { target, op, value })
    }
}

/// Expressions.
impl Parser {
    /// A node above `children`.
    fn node(&self, kind: ExprKind, at: Position, children: &[u32]) -> Result<Expr> {
        let height = 1 + children.iter().max().copied().unwrap_or(0);
        if height > DEPTH_MAX {
            return Err(self.too_deep(at));
        }
        Ok(Expr { kind, at, height })
    }

    fn expr(&mut self) -> Result<Expr> {
        self.nested(|parser| parser.binary(0))
    }

    /// Operators that bind tighter than `precedence`.
    fn binary(&mut self, precedence: u32) -> Result<Expr> {
        let mut left = self.cast()?;
        let mut compared = false;
        loop {
            let at = self.at();
            let op = match self.peek() {
                Token::Symbol(symbol) => BinaryOp::from_symbol(symbol),
                _ => None,
            };
            let Some(op) = op.filter(|op| op.precedence() > precedence) else {
                return Ok(left);
            };
            if compared && op.is_comparison() {
                let message = "comparisons do not chain: put `&&` between them";
                return Err(Error::new(at, message));
            }
            compared = op.is_comparison();
            self.bump();
            let right = self.nested(|parser| parser.binary(op.precedence()))?;
            let heights = [left.height, right.height];
            let kind = ExprKind::Binary(op, Box::new(left), Box::new(right));
            left = self.node(kind, at, &heights)?;
        }
    }

    fn cast(&mut self) -> Result<Expr> {
        let mut value = self.unary()?;
        loop {
            let at = self.at();
            if !self.eat_keyword("as") {
                return Ok(value);
            }
            let ty = self.ty()?;
            let height = value.height;
            value = self.node(ExprKind::Cast(Box::new(value), ty), at, &[height])?;
        }
    }

    fn unary(&mut self) -> Result<Expr> {
        let at = self.at();
        let op = match self.peek() {
            Token::Symbol("-") => UnaryOp::Negate,
            Token::Symbol("!") => UnaryOp::Not,
            _ => return self.postfix(),
        };
        self.bump();
        // The one number that only fits with its sign.
        if op == UnaryOp::Negate && *self.peek() == Token::Int(1 << 63) {
            self.bump();
            return self.node(ExprKind::Int(i64::MIN), at, &[]);
        }
        let value = self.nested(Self::unary)?;
        let height = value.height;
        self.node(ExprKind::Unary(op, Box::new(value)), at, &[height])
    }

    fn postfix(&mut self) -> Result<Expr> {
        let mut base = self.primary()?;
        loop {
            let height = base.height;
            if self.eat(".") {
                let field = self.name("a field")?;
                let at = field.at;
                base = self.node(ExprKind::Field(Box::new(base), field), at, &[height])?;
            } else if self.eat("[") {
                let index = self.with_literals(true, Self::expr)?;
                self.expect("]")?;
                let (at, heights) = (index.at, [height, index.height]);
                let kind = ExprKind::Index(Box::new(base), Box::new(index));
                base = self.node(kind, at, &heights)?;
            } else {
                return Ok(base);
            }
        }
    }

    fn primary(&mut self) -> Result<Expr> {
        let at = self.at();
        match self.peek() {
            Token::Int(value) => {
                let Ok(value) = i64::try_from(*value) else {
                    let message = format!("the number {value} does not fit an i64");
                    return Err(Error::new(at, message));
                };
                self.bump();
                self.node(ExprKind::Int(value), at, &[])
            }
            Token::Float(value) => {
                let value = *value;
                self.bump();
                self.node(ExprKind::Float(value), at, &[])
            }
            Token::Keyword("true" | "false") => {
                let value = self.bump() == Token::Keyword("true");
                self.node(ExprKind::Bool(value), at, &[])
            }
            Token::Symbol("(") => {
                self.bump();
                let inner = self.with_literals(true, Self::expr)?;
                self.expect(")")?;
                Ok(inner)
            }
            Token::Symbol("[") => {
                self.bump();
                self.with_literals(true, |parser| parser.array(at))
            }
            Token::Name(_) => {
                let name = self.name("a name")?;
                if self.eat("(") {
                    return self.with_literals(true, |parser| parser.call(name));
                }
                if self.struct_literals && self.eat("{") {
                    return self.struct_literal(name);
                }
                self.node(ExprKind::Name(name.text), at, &[])
            }
            _ => self.unexpected("an expression"),
        }
    }

    fn array(&mut self, at: Position) -> Result<Expr> {
        if self.eat("]") {
            return Err(Error::new(at, "an array has at least one element"));
        }
        let first = self.expr()?;
        if self.eat(";") {
            let count = self.expr()?;
            self.expect("]")?;
            let heights = [first.height, count.height];
            let kind = ExprKind::Repeat(Box::new(first), Box::new(count));
            return self.node(kind, at, &heights);
        }
        let mut elements = vec![first];
        if self.eat(",") {
            elements.extend(self.list("]", Self::expr)?);
        } else if !self.eat("]") {
            return self.unexpected("`,`, `;` or `]`");
        }
        let heights: Vec<u32> = elements.iter().map(|element| element.height).collect();
        self.node(ExprKind::List(elements), at, &heights)
    }

    fn call(&mut self, name: Name) -> Result<Expr> {
        let arguments = self.list(")", |parser| {
            let at = parser.at();
            let reference = parser.eat("&").then_some(at);
            let value = parser.expr()?;
            Ok(Argument { reference, value })
        })?;
        let at = name.at;
        let heights: Vec<u32> = arguments.iter().map(|arg| arg.value.height).collect();
        self.node(ExprKind::Call(name, arguments), at, &heights)
    }

    fn struct_literal(&mut self, name: Name) -> Result<Expr> {
        let fields = self.list("}", |parser| {
            let name = parser.name("a field")?;
            parser.expect(":")?;
            Ok((name, parser.expr()?))
        })?;
        let at = name.at;
        let heights: Vec<u32> = fields.iter().map(|(_, value)| value.height).collect();
        self.node(ExprKind::Struct(name, fields), at, &heights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expression with all its brackets.
    fn shown(expr: &Expr) -> String {
        match &expr.kind {
            ExprKind::Int(value) => value.to_string(),
            ExprKind::Name(name) => name.clone(),
            ExprKind::Unary(UnaryOp::Negate, value) => format!("-{}", shown(value)),
            ExprKind::Unary(UnaryOp::Not, value) => format!("!{}", shown(value)),
            ExprKind::Field(base, name) => format!("{}.{}", shown(base), name.text),
            ExprKind::Binary(op, left, right) => {
                format!("({} {} {})", shown(left), op.symbol(), shown(right))
            }
            other => panic!("not shown: {other:?}"),
        }
    }

    fn expr(text: &str) -> String {
        let program = parse(&format!("const X = {text};")).unwrap();
        shown(&program.consts[0].value)
    }

    #[test]
    fn operators_bind_as_in_rust() {
        assert_eq!(expr("1 + 2 * 3 - 4"), "((1 + (2 * 3)) - 4)");
        assert_eq!(
            expr("a || b && c == 1 | 2 ^ 3 & 4 << 5"),
            "(a || (b && (c == (1 | (2 ^ (3 & (4 << 5)))))))"
        );
        assert_eq!(expr("-a.b * !c"), "(-a.b * !c)");
        assert_eq!(expr("-9223372036854775808"), i64::MIN.to_string());
    }

    /// The message for a program, parsed with the stack that `main` has.
    fn message(source: String) -> String {
        let thread = std::thread::Builder::new().stack_size(crate::runtime::THREAD_STACK_BYTES);
        let parsed = thread.spawn(move || parse(&source).unwrap_err().message);
        parsed.unwrap().join().unwrap()
    }

    #[test]
    fn deep_trees_are_an_error_however_they_grow() {
        let deep = 100_000;
        for (before, text) in [
            ("const X = ", "(".repeat(deep)),
            ("const X = ", "-".repeat(deep)),
            ("const X = ", "[".repeat(deep)),
            ("const X = 1", " + 1".repeat(deep)),
            ("const X = a", ".b".repeat(deep)),
            ("const X = a", "[0]".repeat(deep)),
            ("const X = 1", " as i64".repeat(deep)),
            ("const X = ", "f(".repeat(deep)),
            ("fn f() { ", "{".repeat(deep)),
            ("fn f() { ", "if a {".repeat(deep)),
            ("fn f(a: ", "[".repeat(deep)),
        ] {
            let message = message(format!("{before}{text}"));
            assert!(message.contains("levels deep"), "{before}…: {message}");
        }
    }

    #[test]
    fn long_but_flat_programs_are_no_error() {
        let arms = "else if a { } ".repeat(10_000);
        parse(&format!("fn f() {{ if a {{ }} {arms} }}")).unwrap();
        parse(&format!("fn f() {{ {} }}", "f(); ".repeat(10_000))).unwrap();
    }
}
