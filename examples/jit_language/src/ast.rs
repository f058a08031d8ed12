//! The syntax tree, as the parser makes it: names are not resolved, types not known.

use crate::error::Position;

#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) consts: Vec<Const>,
    pub(crate) structs: Vec<Struct>,
    pub(crate) functions: Vec<Function>,
}

#[derive(Clone, Debug)]
pub(crate) struct Name {
    pub(crate) text: String,
    pub(crate) at: Position,
}

#[derive(Debug)]
pub(crate) struct Const {
    pub(crate) name: Name,
    pub(crate) value: Expr,
}

#[derive(Debug)]
pub(crate) struct Struct {
    pub(crate) name: Name,
    pub(crate) fields: Vec<(Name, TypeExpr)>,
}

#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: Name,
    pub(crate) params: Vec<Param>,
    pub(crate) result: Option<TypeExpr>,
    pub(crate) body: Block,
}

#[derive(Debug)]
pub(crate) struct Param {
    pub(crate) name: Name,
    /// `name: &T`: a place of the caller's, not a copy.
    pub(crate) by_reference: bool,
    pub(crate) ty: TypeExpr,
}

#[derive(Debug)]
pub(crate) struct TypeExpr {
    pub(crate) kind: TypeExprKind,
    pub(crate) at: Position,
}

#[derive(Debug)]
pub(crate) enum TypeExprKind {
    Name(String),
    Array(Box<TypeExpr>, Box<Expr>),
}

#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) statements: Vec<Statement>,
    /// The closing brace.
    pub(crate) end: Position,
}

#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) kind: StatementKind,
    pub(crate) at: Position,
}

#[derive(Debug)]
pub(crate) enum StatementKind {
    Let {
        name: Name,
        ty: Option<TypeExpr>,
        value: Expr,
    },
    /// `target = value`, or `target op= value`.
    Assign {
        target: Expr,
        op: Option<BinaryOp>,
        value: Expr,
    },
    Expr(Expr),
    Print(Vec<Expr>),
    If {
        /// The `if` and each `else if`.
        arms: Vec<(Expr, Block)>,
        otherwise: Option<Block>,
    },
    While {
        condition: Expr,
        body: Block,
    },
    For {
        name: Name,
        from: Expr,
        to: Expr,
        body: Block,
    },
    Return(Option<Expr>),
    Break,
    Continue,
    Block(Block),
}

#[derive(Debug)]
pub(crate) struct Expr {
    pub(crate) kind: ExprKind,
    /// Of an operation, its operator; of a call, its name; of a part, the name or the index.
    pub(crate) at: Position,
    /// Levels of expressions, this one included. The parser bounds it, so that what walks the tree
    /// may recurse.
    pub(crate) height: u32,
}

#[derive(Debug)]
pub(crate) enum ExprKind {
    Int(i64),
    Float(f64),
    Bool(bool),
    Name(String),
    Unary(UnaryOp, Box<Expr>),
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    Cast(Box<Expr>, TypeExpr),
    Call(Name, Vec<Argument>),
    Field(Box<Expr>, Name),
    Index(Box<Expr>, Box<Expr>),
    Struct(Name, Vec<(Name, Expr)>),
    List(Vec<Expr>),
    /// `[value; count]`
    Repeat(Box<Expr>, Box<Expr>),
}

#[derive(Debug)]
pub(crate) struct Argument {
    /// Where a `&` stands before it.
    pub(crate) reference: Option<Position>,
    pub(crate) value: Expr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnaryOp {
    Negate,
    Not,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BinaryOp {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    /// `&&`: the right side is evaluated if the left one is true.
    BothTrue,
    /// `||`: the right side is evaluated if the left one is false.
    EitherTrue,
}

impl BinaryOp {
    pub(crate) const ALL: [(&'static str, BinaryOp); 18] = [
        ("+", BinaryOp::Add),
        ("-", BinaryOp::Subtract),
        ("*", BinaryOp::Multiply),
        ("/", BinaryOp::Divide),
        ("%", BinaryOp::Remainder),
        ("&", BinaryOp::And),
        ("|", BinaryOp::Or),
        ("^", BinaryOp::Xor),
        ("<<", BinaryOp::ShiftLeft),
        (">>", BinaryOp::ShiftRight),
        ("==", BinaryOp::Equal),
        ("!=", BinaryOp::NotEqual),
        ("<", BinaryOp::Less),
        ("<=", BinaryOp::LessEqual),
        (">", BinaryOp::Greater),
        (">=", BinaryOp::GreaterEqual),
        ("&&", BinaryOp::BothTrue),
        ("||", BinaryOp::EitherTrue),
    ];

    pub(crate) fn from_symbol(symbol: &str) -> Option<BinaryOp> {
        let found = BinaryOp::ALL.iter().find(|(text, _)| *text == symbol);
        found.map(|&(_, op)| op)
    }

    pub(crate) fn symbol(self) -> &'static str {
        let found = BinaryOp::ALL.iter().find(|&&(_, op)| op == self);
        found.map_or("", |&(text, _)| text)
    }

    pub(crate) fn is_comparison(self) -> bool {
        use BinaryOp::{Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual};
        matches!(
            self,
            Equal | NotEqual | Less | LessEqual | Greater | GreaterEqual
        )
    }

    /// How tightly it binds.
    pub(crate) fn precedence(self) -> u32 {
        match self {
            BinaryOp::EitherTrue => 1,
            BinaryOp::BothTrue => 2,
            op if op.is_comparison() => 3,
            BinaryOp::Or => 4,
            BinaryOp::Xor => 5,
            BinaryOp::And => 6,
            BinaryOp::ShiftLeft | BinaryOp::ShiftRight => 7,
            BinaryOp::Add | BinaryOp::Subtract => 8,
            _ => 9,
        }
    }
}
