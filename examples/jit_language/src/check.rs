//! The type checker: resolves names, gives every expression a type, folds integer constants, and
//! reports the first mistake.

use std::collections::HashMap;

use crate::ast::{self, BinaryOp, StatementKind, TypeExprKind, UnaryOp};
use crate::error::{Error, Position, Result};
use crate::typed::{Builtin, Expr, ExprKind, Function, Local, LocalId, Program, Statement};
use crate::types::{Kind, Scalar, TYPE_BYTES_MAX, Type, Types};

pub(crate) fn check(program: &ast::Program) -> Result<Program> {
    let mut checker = Checker {
        types: Types::new(),
        consts: HashMap::new(),
        named_types: HashMap::from([("i64", Type::I64), ("f64", Type::F64), ("bool", Type::BOOL)]),
        functions: HashMap::new(),
        signatures: Vec::new(),
    };
    checker.constants(&program.consts)?;
    checker.structs(&program.structs)?;
    checker.declare_functions(&program.functions)?;
    let main = checker.main(&program.functions)?;
    let functions = program
        .functions
        .iter()
        .enumerate()
        .map(|(at, function)| Body::check(&mut checker, at, function))
        .collect::<Result<Vec<_>>>()?;
    Ok(Program {
        types: checker.types,
        functions,
        main,
    })
}

/// What all functions see.
struct Checker<'a> {
    types: Types,
    consts: HashMap<&'a str, Constant>,
    named_types: HashMap<&'a str, Type>,
    functions: HashMap<&'a str, usize>,
    signatures: Vec<Signature>,
}

#[derive(Clone, Copy)]
enum Constant {
    Int(i64),
    Float(f64),
    Bool(bool),
}

struct Signature {
    params: Vec<Local>,
    result: Option<Type>,
}

fn err<T>(at: Position, message: impl Into<String>) -> Result<T> {
    Err(Error::new(at, message))
}

impl<'a> Checker<'a> {
    fn constants(&mut self, consts: &'a [ast::Const]) -> Result<()> {
        for item in consts {
            let name = &item.name;
            let value = Body::constant(self, &item.value)?;
            if self.consts.insert(&name.text, value).is_some() {
                return err(
                    name.at,
                    format!("a second constant with the name `{}`", name.text),
                );
            }
        }
        Ok(())
    }

    /// In order: a struct holds only structs above it, which rules out those that hold themselves.
    fn structs(&mut self, structs: &'a [ast::Struct]) -> Result<()> {
        for item in structs {
            let name = &item.name;
            if self.named_types.contains_key(name.text.as_str()) {
                return err(
                    name.at,
                    format!("a second type with the name `{}`", name.text),
                );
            }
            if item.fields.is_empty() {
                return err(name.at, format!("the struct `{}` has no fields", name.text));
            }
            let mut fields: Vec<(String, Type)> = Vec::new();
            for (field, ty) in &item.fields {
                if fields.iter().any(|(known, _)| *known == field.text) {
                    return err(
                        field.at,
                        format!("a second field with the name `{}`", field.text),
                    );
                }
                fields.push((field.text.clone(), self.ty(ty)?));
            }
            let Some(ty) = self.types.structure(name.text.clone(), fields) else {
                return err(name.at, too_large());
            };
            self.named_types.insert(&name.text, ty);
        }
        Ok(())
    }

    fn declare_functions(&mut self, functions: &'a [ast::Function]) -> Result<()> {
        for (at, function) in functions.iter().enumerate() {
            let name = &function.name;
            if Builtin::from_name(&name.text).is_some() || name.text == "len" {
                return err(name.at, format!("`{}` is built in", name.text));
            }
            if self.functions.insert(&name.text, at).is_some() {
                return err(
                    name.at,
                    format!("a second function with the name `{}`", name.text),
                );
            }
            let mut params: Vec<Local> = Vec::new();
            for param in &function.params {
                let name = &param.name;
                if params.iter().any(|known| known.name == name.text) {
                    return err(
                        name.at,
                        format!("a second parameter with the name `{}`", name.text),
                    );
                }
                params.push(Local {
                    name: name.text.clone(),
                    ty: self.ty(&param.ty)?,
                    by_reference: param.by_reference,
                    assignable: true,
                });
            }
            let result = function.result.as_ref();
            let result = result.map(|ty| self.ty(ty)).transpose()?;
            self.signatures.push(Signature { params, result });
        }
        Ok(())
    }

    fn main(&self, functions: &[ast::Function]) -> Result<usize> {
        let Some(&main) = self.functions.get("main") else {
            return err(Position { line: 1, column: 1 }, "there is no `fn main()`");
        };
        let signature = &self.signatures[main];
        if !signature.params.is_empty() || signature.result.is_some() {
            let at = functions[main].name.at;
            return err(at, "`main` takes nothing and returns nothing");
        }
        Ok(main)
    }

    fn ty(&mut self, ty: &ast::TypeExpr) -> Result<Type> {
        match &ty.kind {
            TypeExprKind::Name(name) => match self.named_types.get(name.as_str()) {
                Some(&known) => Ok(known),
                None => err(
                    ty.at,
                    format!(
                        "unknown type `{name}` (a struct is declared above those that hold it)"
                    ),
                ),
            },
            TypeExprKind::Array(element, length) => {
                let element = self.ty(element)?;
                let at = length.at;
                let length = self.length(length)?;
                self.array(element, length, at)
            }
        }
    }

    /// A constant that can be an array's length.
    fn length(&mut self, length: &ast::Expr) -> Result<u64> {
        match Body::constant(self, length)? {
            Constant::Int(value) if value >= 1 => Ok(value as u64),
            Constant::Int(value) => err(
                length.at,
                format!("an array has at least one element, not {value}"),
            ),
            _ => err(length.at, "the length of an array is an `i64`"),
        }
    }

    fn array(&mut self, element: Type, length: u64, at: Position) -> Result<Type> {
        match self.types.array(element, length) {
            Some(ty) => Ok(ty),
            None => err(at, too_large()),
        }
    }
}

fn too_large() -> String {
    format!("the type takes more than {TYPE_BYTES_MAX} bytes")
}

/// Checks one function, or a constant outside of any.
struct Body<'c, 'a> {
    checker: &'c mut Checker<'a>,
    locals: Vec<Local>,
    /// The innermost scope is the last one.
    scopes: Vec<HashMap<String, LocalId>>,
    /// For each loop around, whether a `break` leaves it.
    loops: Vec<bool>,
    result: Option<Type>,
}

/// Whether execution may go on behind a statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    GoesOn,
    Ends,
}

impl<'c, 'a> Body<'c, 'a> {
    fn new(checker: &'c mut Checker<'a>) -> Self {
        Body {
            checker,
            locals: Vec::new(),
            scopes: vec![HashMap::new()],
            loops: Vec::new(),
            result: None,
        }
    }

    fn constant(checker: &'c mut Checker<'a>, value: &ast::Expr) -> Result<Constant> {
        let value = Body::new(checker).expr(value)?;
        match value.kind {
            ExprKind::Int(value) => Ok(Constant::Int(value)),
            ExprKind::Float(value) => Ok(Constant::Float(value)),
            ExprKind::Bool(value) => Ok(Constant::Bool(value)),
            _ => err(value.at, "this is not a constant"),
        }
    }

    fn check(
        checker: &'c mut Checker<'a>,
        at: usize,
        function: &ast::Function,
    ) -> Result<Function> {
        let mut body = Body::new(checker);
        let signature = &body.checker.signatures[at];
        let (params, result) = (signature.params.clone(), signature.result);
        let count = params.len();
        body.result = result;
        for param in params {
            body.declare(param);
        }
        let (statements, flow) = body.block(&function.body)?;
        if result.is_some() && flow == Flow::GoesOn {
            let message = format!("`{}` can end without `return`", function.name.text);
            return err(function.body.end, message);
        }
        Ok(Function {
            name: function.name.text.clone(),
            at: function.name.at,
            locals: body.locals,
            params: count,
            result,
            body: statements,
        })
    }

    fn declare(&mut self, local: Local) -> LocalId {
        let id = LocalId(self.locals.len());
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(local.name.clone(), id);
        }
        self.locals.push(local);
        id
    }

    fn name(&self, ty: Type) -> String {
        self.checker.types.name(ty)
    }
}

/// Statements.
impl Body<'_, '_> {
    fn block(&mut self, block: &ast::Block) -> Result<(Vec<Statement>, Flow)> {
        self.scopes.push(HashMap::new());
        let mut flow = Flow::GoesOn;
        let mut statements = Vec::new();
        for statement in &block.statements {
            let (statement, after) = self.statement(statement)?;
            statements.push(statement);
            if after == Flow::Ends {
                flow = Flow::Ends;
            }
        }
        self.scopes.pop();
        Ok((statements, flow))
    }

    fn loop_body(&mut self, block: &ast::Block) -> Result<(Vec<Statement>, bool)> {
        self.loops.push(false);
        let (body, _) = self.block(block)?;
        Ok((body, self.loops.pop().unwrap_or(false)))
    }

    fn statement(&mut self, statement: &ast::Statement) -> Result<(Statement, Flow)> {
        let at = statement.at;
        let statement = match &statement.kind {
            StatementKind::Let { name, ty, value } => {
                let value = match ty {
                    Some(ty) => {
                        let ty = self.checker.ty(ty)?;
                        self.expr_of(value, ty)?
                    }
                    None => self.expr(value)?,
                };
                let local = self.declare(Local {
                    name: name.text.clone(),
                    ty: value.ty,
                    by_reference: false,
                    assignable: true,
                });
                Statement::Let(local, value)
            }
            StatementKind::Assign { target, op, value } => self.assign(at, target, *op, value)?,
            StatementKind::Expr(call) => Statement::Call(self.call_statement(call)?),
            StatementKind::Print(values) => {
                let mut checked = Vec::new();
                for value in values {
                    let value = self.expr(value)?;
                    self.scalar(&value, "`print`")?;
                    checked.push(value);
                }
                Statement::Print(checked, at)
            }
            StatementKind::If { arms, otherwise } => return self.if_else(arms, otherwise.as_ref()),
            StatementKind::While { condition, body } => {
                let condition = self.expr_of(condition, Type::BOOL)?;
                let (body, left) = self.loop_body(body)?;
                let endless = matches!(condition.kind, ExprKind::Bool(true)) && !left;
                let flow = if endless { Flow::Ends } else { Flow::GoesOn };
                return Ok((Statement::While { condition, body }, flow));
            }
            StatementKind::For {
                name,
                from,
                to,
                body,
            } => {
                let from = self.expr_of(from, Type::I64)?;
                let to = self.expr_of(to, Type::I64)?;
                self.scopes.push(HashMap::new());
                let local = self.declare(Local {
                    name: name.text.clone(),
                    ty: Type::I64,
                    by_reference: false,
                    assignable: false,
                });
                let (body, _) = self.loop_body(body)?;
                self.scopes.pop();
                Statement::For {
                    local,
                    from,
                    to,
                    body,
                }
            }
            StatementKind::Return(value) => {
                let value = match (self.result, value) {
                    (Some(ty), Some(value)) => Some(self.expr_of(value, ty)?),
                    (None, None) => None,
                    (Some(ty), None) => {
                        return err(at, format!("`return` without a `{}`", self.name(ty)));
                    }
                    (None, Some(value)) => {
                        return err(value.at, "this function returns nothing");
                    }
                };
                return Ok((Statement::Return(value), Flow::Ends));
            }
            StatementKind::Break | StatementKind::Continue => {
                let is_break = matches!(statement.kind, StatementKind::Break);
                let Some(left) = self.loops.last_mut() else {
                    return err(at, "not in a loop");
                };
                *left |= is_break;
                let statement = match is_break {
                    true => Statement::Break,
                    false => Statement::Continue,
                };
                return Ok((statement, Flow::Ends));
            }
            StatementKind::Block(block) => {
                let (statements, flow) = self.block(block)?;
                return Ok((Statement::Block(statements), flow));
            }
        };
        Ok((statement, Flow::GoesOn))
    }

    fn assign(
        &mut self,
        at: Position,
        target: &ast::Expr,
        op: Option<BinaryOp>,
        value: &ast::Expr,
    ) -> Result<Statement> {
        let target = self.expr(target)?;
        self.assignable(&target, at)?;
        let value = match op {
            None => self.expr_of(value, target.ty)?,
            Some(op) => {
                let value = self.expr(value)?;
                self.operand_types(op, at, target.ty, value.ty)?;
                value
            }
        };
        let op = op.map(|op| (op, value.at));
        Ok(Statement::Assign { target, op, value })
    }

    fn assignable(&self, place: &Expr, at: Position) -> Result<()> {
        let Some(root) = place.root() else {
            return err(at, "this is a value, not a variable or a part of one");
        };
        let local = &self.locals[root.0];
        match local.assignable {
            true => Ok(()),
            false => err(at, format!("`{}` belongs to its `for`", local.name)),
        }
    }

    fn call_statement(&mut self, call: &ast::Expr) -> Result<Expr> {
        match &call.kind {
            ast::ExprKind::Call(name, arguments) => {
                if let Some(&callee) = self.checker.functions.get(name.text.as_str()) {
                    let (arguments, result) = self.user_call(name, callee, arguments)?;
                    return Ok(Expr {
                        kind: ExprKind::Call(callee, arguments),
                        // Not looked at: a statement has no type.
                        ty: result.unwrap_or(Type::I64),
                        at: call.at,
                    });
                }
                self.expr(call)
            }
            _ => {
                self.expr(call)?;
                err(call.at, "the value is not used")
            }
        }
    }

    fn if_else(
        &mut self,
        arms: &[(ast::Expr, ast::Block)],
        otherwise: Option<&ast::Block>,
    ) -> Result<(Statement, Flow)> {
        let mut checked = Vec::new();
        let mut flow = Flow::Ends;
        for (condition, block) in arms {
            let condition = self.expr_of(condition, Type::BOOL)?;
            let (block, after) = self.block(block)?;
            checked.push((condition, block));
            if after == Flow::GoesOn {
                flow = Flow::GoesOn;
            }
        }
        let (otherwise, after) = match otherwise {
            Some(block) => self.block(block)?,
            None => (Vec::new(), Flow::GoesOn),
        };
        if after == Flow::GoesOn {
            flow = Flow::GoesOn;
        }
        let arms = checked;
        Ok((Statement::If { arms, otherwise }, flow))
    }
}

/// Expressions.
impl Body<'_, '_> {
    fn expr_of(&mut self, expr: &ast::Expr, ty: Type) -> Result<Expr> {
        let expr = self.expr(expr)?;
        self.expect(&expr, ty)?;
        Ok(expr)
    }

    fn expect(&self, expr: &Expr, ty: Type) -> Result<()> {
        if expr.ty == ty {
            return Ok(());
        }
        let (wanted, found) = (self.name(ty), self.name(expr.ty));
        err(expr.at, format!("expected `{wanted}`, found `{found}`"))
    }

    fn scalar(&self, expr: &Expr, whose: &str) -> Result<Scalar> {
        match self.checker.types.scalar(expr.ty) {
            Some(scalar) => Ok(scalar),
            None => err(
                expr.at,
                format!("{whose} of `{}`, which is no scalar", self.name(expr.ty)),
            ),
        }
    }

    fn expr(&mut self, expr: &ast::Expr) -> Result<Expr> {
        let at = expr.at;
        let (kind, ty) = match &expr.kind {
            ast::ExprKind::Int(value) => (ExprKind::Int(*value), Type::I64),
            ast::ExprKind::Float(value) => (ExprKind::Float(*value), Type::F64),
            ast::ExprKind::Bool(value) => (ExprKind::Bool(*value), Type::BOOL),
            ast::ExprKind::Name(name) => self.variable(name, at)?,
            ast::ExprKind::Unary(op, value) => self.unary(*op, at, value)?,
            ast::ExprKind::Binary(op, left, right) => {
                let left = self.expr(left)?;
                let right = self.expr(right)?;
                let ty = self.operand_types(*op, at, left.ty, right.ty)?;
                match (&left.kind, &right.kind) {
                    (&ExprKind::Int(left), &ExprKind::Int(right)) => {
                        (fold(*op, left, right, at)?, ty)
                    }
                    _ => (ExprKind::Binary(*op, Box::new(left), Box::new(right)), ty),
                }
            }
            ast::ExprKind::Cast(value, ty) => self.cast(value, ty)?,
            ast::ExprKind::Call(name, arguments) => self.call(name, arguments)?,
            ast::ExprKind::Field(base, name) => self.field(base, name)?,
            ast::ExprKind::Index(base, index) => self.index(base, index)?,
            ast::ExprKind::Struct(name, fields) => self.struct_literal(name, fields)?,
            ast::ExprKind::List(elements) => self.list(elements, at)?,
            ast::ExprKind::Repeat(value, count) => {
                let value = self.expr(value)?;
                let length = self.checker.length(count)?;
                let ty = self.checker.array(value.ty, length, count.at)?;
                (ExprKind::Repeat(Box::new(value), length), ty)
            }
        };
        Ok(Expr { kind, ty, at })
    }

    fn variable(&self, name: &str, at: Position) -> Result<(ExprKind, Type)> {
        if let Some(&id) = self.scopes.iter().rev().find_map(|scope| scope.get(name)) {
            return Ok((ExprKind::Local(id), self.locals[id.0].ty));
        }
        match self.checker.consts.get(name) {
            Some(&Constant::Int(value)) => Ok((ExprKind::Int(value), Type::I64)),
            Some(&Constant::Float(value)) => Ok((ExprKind::Float(value), Type::F64)),
            Some(&Constant::Bool(value)) => Ok((ExprKind::Bool(value), Type::BOOL)),
            None => err(at, format!("unknown variable `{name}`")),
        }
    }

    fn unary(&mut self, op: UnaryOp, at: Position, value: &ast::Expr) -> Result<(ExprKind, Type)> {
        let value = self.expr(value)?;
        let ty = value.ty;
        let kind = match (op, &value.kind) {
            (UnaryOp::Negate, &ExprKind::Int(value)) => ExprKind::Int(value.wrapping_neg()),
            (UnaryOp::Negate, &ExprKind::Float(value)) => ExprKind::Float(-value),
            (UnaryOp::Not, &ExprKind::Bool(value)) => ExprKind::Bool(!value),
            _ => ExprKind::Unary(op, Box::new(value)),
        };
        match (op, ty) {
            (UnaryOp::Negate, Type::I64 | Type::F64) | (UnaryOp::Not, Type::BOOL) => Ok((kind, ty)),
            (UnaryOp::Negate, _) => err(at, format!("`-` of `{}`", self.name(ty))),
            (UnaryOp::Not, _) => err(at, format!("`!` of `{}`", self.name(ty))),
        }
    }

    /// The type of the result.
    fn operand_types(&self, op: BinaryOp, at: Position, left: Type, right: Type) -> Result<Type> {
        use BinaryOp::{
            Add, BothTrue, Divide, EitherTrue, Equal, Greater, GreaterEqual, Less, LessEqual,
            Multiply, NotEqual, Subtract,
        };
        let good = left == right
            && match op {
                Add | Subtract | Multiply | Divide | Less | LessEqual | Greater | GreaterEqual => {
                    matches!(left, Type::I64 | Type::F64)
                }
                Equal | NotEqual => self.checker.types.scalar(left).is_some(),
                BothTrue | EitherTrue => left == Type::BOOL,
                _ => left == Type::I64,
            };
        if !good {
            let (left, right) = (self.name(left), self.name(right));
            let message = format!("`{}` of `{left}` and `{right}`", op.symbol());
            return err(at, message);
        }
        Ok(if op.is_comparison() { Type::BOOL } else { left })
    }

    fn cast(&mut self, value: &ast::Expr, ty: &ast::TypeExpr) -> Result<(ExprKind, Type)> {
        let value = self.expr(value)?;
        let target = self.checker.ty(ty)?;
        let kind = match (&value.kind, value.ty, target) {
            (&ExprKind::Int(value), _, Type::F64) => ExprKind::Float(value as f64),
            (&ExprKind::Float(value), _, Type::I64) => ExprKind::Int(value as i64),
            (_, Type::I64 | Type::F64, Type::I64 | Type::F64) | (_, Type::BOOL, Type::I64) => {
                ExprKind::Cast(Box::new(value))
            }
            (_, from, to) => {
                let message = format!("no cast of `{}` to `{}`", self.name(from), self.name(to));
                return err(ty.at, message);
            }
        };
        Ok((kind, target))
    }

    fn call(&mut self, name: &ast::Name, arguments: &[ast::Argument]) -> Result<(ExprKind, Type)> {
        if let Some(&callee) = self.checker.functions.get(name.text.as_str()) {
            let (arguments, result) = self.user_call(name, callee, arguments)?;
            return match result {
                Some(ty) => Ok((ExprKind::Call(callee, arguments), ty)),
                None => err(name.at, format!("`{}` returns nothing", name.text)),
            };
        }
        if let Some(reference) = arguments.iter().find_map(|argument| argument.reference) {
            return err(reference, "only a parameter declared with `&` takes one");
        }
        let mut values = Vec::new();
        for argument in arguments {
            values.push(self.expr(&argument.value)?);
        }
        if name.text == "len" {
            return match &values[..] {
                [array] => match self.checker.types.kind(array.ty) {
                    Kind::Array { length, .. } => Ok((ExprKind::Int(*length as i64), Type::I64)),
                    _ => err(array.at, format!("`len` of `{}`", self.name(array.ty))),
                },
                _ => err(name.at, "`len` takes an array"),
            };
        }
        let Some(builtin) = Builtin::from_name(&name.text) else {
            return err(name.at, format!("unknown function `{}`", name.text));
        };
        let (count, integers) = match builtin {
            Builtin::Abs => (1, true),
            Builtin::Min | Builtin::Max => (2, true),
            Builtin::Sqrt | Builtin::Floor => (1, false),
        };
        let Some(ty) = values.first().map(|value| value.ty) else {
            return err(name.at, format!("`{}` takes {count}, not 0", name.text));
        };
        if values.len() != count {
            let message = format!("`{}` takes {count}, not {}", name.text, values.len());
            return err(name.at, message);
        }
        if ty != Type::F64 && !(integers && ty == Type::I64) {
            return err(
                values[0].at,
                format!("`{}` of `{}`", name.text, self.name(ty)),
            );
        }
        for value in &values {
            self.expect(value, ty)?;
        }
        Ok((ExprKind::Builtin(builtin, values), ty))
    }

    fn user_call(
        &mut self,
        name: &ast::Name,
        callee: usize,
        arguments: &[ast::Argument],
    ) -> Result<(Vec<Expr>, Option<Type>)> {
        let signature = &self.checker.signatures[callee];
        let (params, result) = (signature.params.clone(), signature.result);
        if params.len() != arguments.len() {
            let (text, wanted, found) = (&name.text, params.len(), arguments.len());
            return err(name.at, format!("`{text}` takes {wanted}, not {found}"));
        }
        let mut values = Vec::new();
        for (param, argument) in params.iter().zip(arguments) {
            let value = self.expr_of(&argument.value, param.ty)?;
            match (param.by_reference, argument.reference) {
                (true, Some(at)) => self.assignable(&value, at)?,
                (true, None) => {
                    let message = format!("`{}` is by reference: write `&` here", param.name);
                    return err(value.at, message);
                }
                (false, Some(at)) => {
                    return err(at, format!("`{}` is not by reference", param.name));
                }
                (false, None) => {}
            }
            values.push(value);
        }
        Ok((values, result))
    }

    fn field(&mut self, base: &ast::Expr, name: &ast::Name) -> Result<(ExprKind, Type)> {
        let base = self.expr(base)?;
        let field = match self.checker.types.kind(base.ty) {
            Kind::Struct(_, fields) => fields.iter().find(|field| field.name == name.text),
            Kind::Scalar(_) | Kind::Array { .. } => None,
        };
        let Some(field) = field else {
            let message = format!("`{}` has no field `{}`", self.name(base.ty), name.text);
            return err(name.at, message);
        };
        let (offset, ty) = (field.offset, field.ty);
        let base = Box::new(base);
        Ok((ExprKind::Part { base, offset }, ty))
    }

    /// A constant index is checked here; any other one, where the program runs.
    fn index(&mut self, base: &ast::Expr, index: &ast::Expr) -> Result<(ExprKind, Type)> {
        let base = self.expr(base)?;
        let index = self.expr_of(index, Type::I64)?;
        let &Kind::Array { element, length } = self.checker.types.kind(base.ty) else {
            return err(index.at, format!("index into `{}`", self.name(base.ty)));
        };
        let base = Box::new(base);
        let kind = match index.kind {
            ExprKind::Int(value) if u64::try_from(value).is_ok_and(|value| value < length) => {
                let offset = value as u32 * self.checker.types.layout(element).size;
                ExprKind::Part { base, offset }
            }
            ExprKind::Int(value) => {
                let message = format!("index {value} is out of bounds for length {length}");
                return err(index.at, message);
            }
            _ => ExprKind::Element {
                base,
                index: Box::new(index),
                length,
            },
        };
        Ok((kind, element))
    }

    fn struct_literal(
        &mut self,
        name: &ast::Name,
        values: &[(ast::Name, ast::Expr)],
    ) -> Result<(ExprKind, Type)> {
        let ty = self.checker.named_types.get(name.text.as_str()).copied();
        let (ty, fields) = match ty.map(|ty| (ty, self.checker.types.kind(ty))) {
            Some((ty, Kind::Struct(_, fields))) => (ty, fields.clone()),
            _ => return err(name.at, format!("unknown struct `{}`", name.text)),
        };
        let mut parts: Vec<(u32, Expr)> = Vec::new();
        for (field_name, value) in values {
            let text = &field_name.text;
            let Some(field) = fields.iter().find(|field| field.name == *text) else {
                let message = format!("`{}` has no field `{text}`", name.text);
                return err(field_name.at, message);
            };
            if parts.iter().any(|&(offset, _)| offset == field.offset) {
                return err(field_name.at, format!("a second value for `{text}`"));
            }
            parts.push((field.offset, self.expr_of(value, field.ty)?));
        }
        let given = |offset| parts.iter().any(|&(other, _)| other == offset);
        if let Some(missing) = fields.iter().find(|field| !given(field.offset)) {
            return err(name.at, format!("no value for `{}`", missing.name));
        }
        Ok((ExprKind::Aggregate(parts), ty))
    }

    fn list(&mut self, elements: &[ast::Expr], at: Position) -> Result<(ExprKind, Type)> {
        let mut checked: Vec<Expr> = Vec::new();
        for element in elements {
            let element = match checked.first() {
                Some(first) => self.expr_of(element, first.ty)?,
                None => self.expr(element)?,
            };
            checked.push(element);
        }
        let Some(first) = checked.first() else {
            return err(at, "an array has at least one element");
        };
        let ty = self.checker.array(first.ty, checked.len() as u64, at)?;
        let size = self.checker.types.layout(first.ty).size;
        let parts = checked.into_iter().zip(0_u32..);
        let parts = parts.map(|(element, at)| (at * size, element)).collect();
        Ok((ExprKind::Aggregate(parts), ty))
    }
}

/// As the program would compute it.
fn fold(op: BinaryOp, left: i64, right: i64, at: Position) -> Result<ExprKind> {
    let value = match op {
        BinaryOp::Add => left.wrapping_add(right),
        BinaryOp::Subtract => left.wrapping_sub(right),
        BinaryOp::Multiply => left.wrapping_mul(right),
        BinaryOp::Divide | BinaryOp::Remainder if right == 0 => {
            return err(at, "division by zero");
        }
        BinaryOp::Divide => match left.checked_div(right) {
            Some(value) => value,
            None => return err(at, "the quotient does not fit an i64"),
        },
        BinaryOp::Remainder => left.wrapping_rem(right),
        BinaryOp::And => left & right,
        BinaryOp::Or => left | right,
        BinaryOp::Xor => left ^ right,
        BinaryOp::ShiftLeft => left.wrapping_shl(right as u32),
        BinaryOp::ShiftRight => left.wrapping_shr(right as u32),
        BinaryOp::Equal => return Ok(ExprKind::Bool(left == right)),
        BinaryOp::NotEqual => return Ok(ExprKind::Bool(left != right)),
        BinaryOp::Less => return Ok(ExprKind::Bool(left < right)),
        BinaryOp::LessEqual => return Ok(ExprKind::Bool(left <= right)),
        BinaryOp::Greater => return Ok(ExprKind::Bool(left > right)),
        BinaryOp::GreaterEqual => return Ok(ExprKind::Bool(left >= right)),
        BinaryOp::BothTrue | BinaryOp::EitherTrue => {
            return err(at, "both sides are of type `bool`");
        }
    };
    Ok(ExprKind::Int(value))
}
