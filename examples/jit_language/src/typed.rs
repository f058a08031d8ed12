//! The program as the type checker leaves it: names are numbers, types and offsets are known.

use crate::ast::{BinaryOp, UnaryOp};
use crate::error::Position;
use crate::types::{Type, Types};

pub(crate) struct Program {
    pub(crate) types: Types,
    pub(crate) functions: Vec<Function>,
    /// The place of `main` in `functions`.
    pub(crate) main: usize,
}

pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) at: Position,
    /// The parameters are the first of them.
    pub(crate) locals: Vec<Local>,
    pub(crate) params: usize,
    pub(crate) result: Option<Type>,
    pub(crate) body: Vec<Statement>,
}

#[derive(Clone)]
pub(crate) struct Local {
    pub(crate) name: String,
    pub(crate) ty: Type,
    /// A parameter that is a place of the caller's.
    pub(crate) by_reference: bool,
    /// Not so for the variable of a `for`.
    pub(crate) assignable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalId(pub(crate) usize);

pub(crate) enum Statement {
    Let(LocalId, Expr),
    Assign {
        /// [An expression that is a place](Expr::is_place).
        target: Expr,
        op: Option<(BinaryOp, Position)>,
        value: Expr,
    },
    /// A call whose result is dropped.
    Call(Expr),
    Print(Vec<Expr>, Position),
    If {
        arms: Vec<(Expr, Vec<Statement>)>,
        otherwise: Vec<Statement>,
    },
    While {
        condition: Expr,
        body: Vec<Statement>,
    },
    For {
        local: LocalId,
        from: Expr,
        to: Expr,
        body: Vec<Statement>,
    },
    Return(Option<Expr>),
    Break,
    Continue,
    Block(Vec<Statement>),
}

pub(crate) struct Expr {
    pub(crate) kind: ExprKind,
    pub(crate) ty: Type,
    pub(crate) at: Position,
}

pub(crate) enum ExprKind {
    Int(i64),
    Float(f64),
    Bool(bool),
    Local(LocalId),
    /// A field, or an element whose index is constant.
    Part {
        base: Box<Expr>,
        offset: u32,
    },
    /// An element whose index is known at run time only.
    Element {
        base: Box<Expr>,
        index: Box<Expr>,
        length: u64,
    },
    Unary(UnaryOp, Box<Expr>),
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    Cast(Box<Expr>),
    Call(usize, Vec<Expr>),
    Builtin(Builtin, Vec<Expr>),
    /// A struct or an array: each value and its offset.
    Aggregate(Vec<(u32, Expr)>),
    Repeat(Box<Expr>, u64),
}

impl Expr {
    /// Whether it names something in memory, rather than a value of its own.
    pub(crate) fn is_place(&self) -> bool {
        self.root().is_some()
    }

    /// The variable that the place is in.
    pub(crate) fn root(&self) -> Option<LocalId> {
        let mut expr = self;
        loop {
            match &expr.kind {
                ExprKind::Local(local) => return Some(*local),
                ExprKind::Part { base, .. } | ExprKind::Element { base, .. } => expr = base,
                _ => return None,
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Builtin {
    Abs,
    Floor,
    Max,
    Min,
    Sqrt,
}

impl Builtin {
    pub(crate) fn from_name(name: &str) -> Option<Builtin> {
        Some(match name {
            "abs" => Builtin::Abs,
            "floor" => Builtin::Floor,
            "max" => Builtin::Max,
            "min" => Builtin::Min,
            "sqrt" => Builtin::Sqrt,
            _ => return None,
        })
    }
}
