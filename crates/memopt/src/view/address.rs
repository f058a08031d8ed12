//! The address model: every integer value as `Σ scale·term + constant`, hash-consed.
//!
//! Two values with the same [`Sum`] and constant are the same number, whenever the leaves they are
//! made of are the same instances; two that differ in the constant alone lie at a known distance.
//! All arithmetic is modulo 2^bits of the value's type, as in CLIF, so wrapping is exact.
//!
//! Values are numbered on demand, with an explicit stack. `iadd`, `isub`, `ineg`, `iconst`,
//! multiplications and shifts by constants and `stack_addr` are followed; extensions, other pure
//! integer operations, `symbol_value` and readonly loads become terms that are equal when their
//! operands are (value numbering); every other value is a leaf.

use cranelift_codegen::entity::{PrimaryMap, SecondaryMap, entity_impl};
use cranelift_codegen::ir::{
    Block, Endianness, Function, GlobalValue, Inst, InstructionData, Opcode, StackSlot, Type,
    Value, ValueDef,
};
use cranelift_codegen::packed_option::PackedOption;
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use crate::effects::sign_extend;
use crate::flow::Flow;

/// A sum with more terms than this is a leaf: its address is equal to itself alone.
const TERMS_MAX: usize = 6;

/// `Σ scale·term`, an interned sum without its constant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sum(u32);
entity_impl!(Sum, "sum");

/// What is multiplied in a [`Sum`], interned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Term(u32);
entity_impl!(Term, "term");

/// A number: a sum and a constant, modulo 2^bits of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Linear {
    /// The part that is not constant.
    pub sum: Sum,
    /// The constant, sign-extended from the type.
    pub offset: i64,
}

/// What a term stands for, if it is not a leaf of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum TermKey {
    /// The address of a stack slot's first byte.
    Slot(StackSlot),
    /// The value of a symbol.
    Symbol(GlobalValue),
    /// A pure operation. `detail` tells apart what the opcode does not: a condition code.
    Operation {
        opcode: Opcode,
        detail: u8,
        ty: Type,
        args: SmallVec<[Linear; 3]>,
    },
    /// A readonly load: the same address gives the same number at any time.
    ReadonlyLoad {
        opcode: Opcode,
        ty: Type,
        endianness: Endianness,
        address: Linear,
    },
}

#[derive(Clone, Copy, Debug)]
struct TermData {
    /// The block of the leaf that is defined deepest in the dominator tree.
    deepest: PackedOption<Block>,
    /// The sum of the term alone, once.
    alone: PackedOption<Sum>,
    bits: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Scaled {
    term: Term,
    scale: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SumKey {
    bits: u8,
    /// Ordered by term, no scale is 0.
    terms: SmallVec<[Scaled; 2]>,
}

#[derive(Clone, Debug)]
struct SumData {
    key: SumKey,
    /// The block of the leaf that is defined deepest in the dominator tree; none if no leaf can
    /// change while the function runs. All leaves of one sum lie on one path of the tree, since
    /// they dominate the value that is made of them.
    deepest: PackedOption<Block>,
}

/// The parts of a pure operation.
#[derive(Debug)]
struct Operation {
    opcode: Opcode,
    detail: u8,
    args: SmallVec<[Value; 3]>,
}

/// How a value's number is made from others'.
#[derive(Debug)]
enum Shape {
    Leaf,
    Constant(i64),
    Slot(StackSlot, i64),
    Symbol(GlobalValue),
    /// `Σ scale·value`.
    Combine(SmallVec<[(i64, Value); 2]>),
    Multiply(Value, Value),
    ShiftLeft(Value, Value),
    Operation(Operation),
    ReadonlyLoad {
        opcode: Opcode,
        endianness: Endianness,
        address: Value,
        offset: i64,
    },
}

/// What the numbering needs to know of the function.
#[derive(Clone, Copy)]
pub(crate) struct AddressContext<'a> {
    pub(crate) func: &'a Function,
    pub(crate) flow: &'a Flow,
    /// Byte order of accesses that name none.
    pub(crate) endianness: Endianness,
    /// Regions whose memory changes from outside, by index.
    pub(crate) outside: &'a [bool],
}

/// The numbers of a function's values. Storage is reused after [`Addresses::clear`].
#[derive(Debug, Default)]
pub struct Addresses {
    numbers: SecondaryMap<Value, Option<Linear>>,
    sums: PrimaryMap<Sum, SumData>,
    terms: PrimaryMap<Term, TermData>,
    /// Sums of no term or of several; a sum of one term is found through the term.
    sum_index: FxHashMap<SumKey, Sum>,
    term_index: FxHashMap<TermKey, Term>,
    stack: Vec<(Value, Shape)>,
}

impl Addresses {
    /// Forgets all numbers.
    pub fn clear(&mut self) {
        self.numbers.clear();
        self.sums.clear();
        self.terms.clear();
        self.sum_index.clear();
        self.term_index.clear();
        self.stack.clear();
    }

    /// The block of the leaf of `sum` that is defined deepest in the dominator tree. None: the sum
    /// is the same number throughout the function.
    pub fn deepest(&self, sum: Sum) -> Option<Block> {
        self.sums[sum].deepest.expand()
    }

    /// Declares that `value` is the number `other`, which was found by other means. Without effect
    /// if `value` has a number already.
    pub(crate) fn set_equal(&mut self, value: Value, other: Linear) {
        let number = &mut self.numbers[value];
        if number.is_none() {
            *number = Some(other);
        }
    }

    /// The number of `value`, which must be of an integer type of at most 64 bits.
    pub(crate) fn number(&mut self, cx: AddressContext<'_>, value: Value) -> Linear {
        let value = cx.func.dfg.resolve_aliases(value);
        if let Some(number) = self.numbers[value] {
            return number;
        }
        debug_assert!(self.stack.is_empty());
        let mut current = (value, shape_of(cx, value));
        loop {
            let (value, shape) = current;
            current = match self.unnumbered_operand(cx, &shape) {
                Some(operand) => {
                    self.stack.push((value, shape));
                    (operand, shape_of(cx, operand))
                }
                None => {
                    let number = self.number_of_shape(cx, value, &shape);
                    self.numbers[value] = Some(number);
                    match self.stack.pop() {
                        Some(user) => user,
                        None => return number,
                    }
                }
            };
        }
    }

    /// An operand that has no number yet. The search for one ends, since operands dominate their
    /// use and block parameters are leaves.
    fn unnumbered_operand(&self, cx: AddressContext<'_>, shape: &Shape) -> Option<Value> {
        let unnumbered = |value: Value| {
            let value = cx.func.dfg.resolve_aliases(value);
            self.numbers[value].is_none().then_some(value)
        };
        match shape {
            Shape::Leaf | Shape::Constant(_) | Shape::Slot(..) | Shape::Symbol(_) => None,
            Shape::Combine(parts) => parts.iter().find_map(|&(_, value)| unnumbered(value)),
            Shape::Multiply(a, b) | Shape::ShiftLeft(a, b) => {
                unnumbered(*a).or_else(|| unnumbered(*b))
            }
            Shape::Operation(operation) => operation.args.iter().find_map(|&arg| unnumbered(arg)),
            Shape::ReadonlyLoad { address, .. } => unnumbered(*address),
        }
    }

    fn known(&self, cx: AddressContext<'_>, value: Value) -> Linear {
        self.numbers[cx.func.dfg.resolve_aliases(value)].expect("operands are numbered first")
    }

    fn number_of_shape(&mut self, cx: AddressContext<'_>, value: Value, shape: &Shape) -> Linear {
        let ty = cx.func.dfg.value_type(value);
        let bits = ty.bits();
        match shape {
            Shape::Leaf => self.leaf(cx, value),
            Shape::Constant(number) => self.constant(bits, *number),
            Shape::Slot(slot, offset) => self.single(bits, TermKey::Slot(*slot), None, *offset),
            Shape::Symbol(symbol) => self.single(bits, TermKey::Symbol(*symbol), None, 0),
            Shape::Combine(parts) => self.combine(cx, value, bits, parts),
            Shape::Multiply(a, b) => self.multiply(cx, value, bits, *a, *b),
            Shape::ShiftLeft(a, amount) => self.shift_left(cx, value, bits, *a, *amount),
            Shape::Operation(operation) => self.operation(cx, ty, operation),
            Shape::ReadonlyLoad {
                opcode,
                endianness,
                address,
                offset,
            } => {
                let mut address = self.known(cx, *address);
                address.offset = address.offset.wrapping_add(*offset);
                let deepest = self.deepest(address.sum);
                let key = TermKey::ReadonlyLoad {
                    opcode: *opcode,
                    ty,
                    endianness: *endianness,
                    address,
                };
                self.single(bits, key, deepest, 0)
            }
        }
    }

    fn leaf(&mut self, cx: AddressContext<'_>, value: Value) -> Linear {
        let bits = cx.func.dfg.value_type(value).bits();
        let block = match cx.func.dfg.value_def(value) {
            ValueDef::Result(inst, _) => cx.func.layout.inst_block(inst),
            ValueDef::Param(block, _) => Some(block),
            ValueDef::Union(..) => None,
        };
        // The entry block runs once, so its values never change: no block is deepest.
        let block = block.filter(|&block| {
            cx.flow.rpo().first() != Some(&block) || !cx.flow.preds(block).is_empty()
        });
        // A value is numbered once, so its term is new.
        let term = self.new_term(bits, block);
        Linear {
            sum: self.sum_of_term(term),
            offset: 0,
        }
    }

    fn constant(&mut self, bits: u32, number: i64) -> Linear {
        Linear {
            sum: self.intern_sum(bits, SmallVec::new(), None),
            offset: sign_extend(number, bits),
        }
    }

    fn is_constant(&self, number: Linear) -> Option<i64> {
        self.sums[number.sum]
            .key
            .terms
            .is_empty()
            .then_some(number.offset)
    }

    fn single(&mut self, bits: u32, key: TermKey, deepest: Option<Block>, offset: i64) -> Linear {
        let term = match self.term_index.get(&key) {
            Some(&term) => term,
            None => {
                let term = self.new_term(bits, deepest);
                self.term_index.insert(key, term);
                term
            }
        };
        Linear {
            sum: self.sum_of_term(term),
            offset,
        }
    }

    fn new_term(&mut self, bits: u32, deepest: Option<Block>) -> Term {
        self.terms.push(TermData {
            deepest: deepest.into(),
            alone: None.into(),
            bits: bits as u8,
        })
    }

    /// The sum of one term.
    fn sum_of_term(&mut self, term: Term) -> Sum {
        let data = self.terms[term];
        data.alone.expand().unwrap_or_else(|| {
            let sum = self.sums.push(SumData {
                key: SumKey {
                    bits: data.bits,
                    terms: smallvec![Scaled { term, scale: 1 }],
                },
                deepest: data.deepest,
            });
            self.terms[term].alone = sum.into();
            sum
        })
    }

    fn intern_sum(
        &mut self,
        bits: u32,
        terms: SmallVec<[Scaled; 2]>,
        deepest: Option<Block>,
    ) -> Sum {
        if let [Scaled { term, scale: 1 }] = terms[..] {
            return self.sum_of_term(term);
        }
        let key = SumKey {
            bits: bits as u8,
            terms,
        };
        if let Some(&sum) = self.sum_index.get(&key) {
            return sum;
        }
        let sum = self.sums.push(SumData {
            key: key.clone(),
            deepest: deepest.into(),
        });
        self.sum_index.insert(key, sum);
        sum
    }

    fn deeper(flow: &Flow, a: Option<Block>, b: Option<Block>) -> Option<Block> {
        match (a, b) {
            (Some(x), Some(y)) if flow.dominates(x, y) => Some(y),
            (Some(x), _) => Some(x),
            (None, y) => y,
        }
    }

    fn combine(
        &mut self,
        cx: AddressContext<'_>,
        value: Value,
        bits: u32,
        parts: &[(i64, Value)],
    ) -> Linear {
        let mut offset = 0i64;
        let mut terms: SmallVec<[Scaled; 2]> = SmallVec::new();
        for &(factor, part) in parts {
            let number = self.known(cx, part);
            offset = offset.wrapping_add(number.offset.wrapping_mul(factor));
            for scaled in &self.sums[number.sum].key.terms {
                let scale = sign_extend(scaled.scale.wrapping_mul(factor), bits);
                add_term(&mut terms, scaled.term, scale, bits);
            }
        }
        terms.retain(|scaled| scaled.scale != 0);
        if terms.len() > TERMS_MAX {
            return self.leaf(cx, value);
        }
        let deepest = terms.iter().fold(None, |deepest, scaled| {
            Self::deeper(cx.flow, deepest, self.terms[scaled.term].deepest.expand())
        });
        Linear {
            sum: self.intern_sum(bits, terms, deepest),
            offset: sign_extend(offset, bits),
        }
    }

    fn multiply(
        &mut self,
        cx: AddressContext<'_>,
        value: Value,
        bits: u32,
        a: Value,
        b: Value,
    ) -> Linear {
        let (x, y) = (self.known(cx, a), self.known(cx, b));
        match (self.is_constant(x), self.is_constant(y)) {
            (_, Some(factor)) => self.combine(cx, value, bits, &[(factor, a)]),
            (Some(factor), None) => self.combine(cx, value, bits, &[(factor, b)]),
            (None, None) => self.operation(
                cx,
                cx.func.dfg.value_type(value),
                &Operation {
                    opcode: Opcode::Imul,
                    detail: 0,
                    args: smallvec![a, b],
                },
            ),
        }
    }

    fn shift_left(
        &mut self,
        cx: AddressContext<'_>,
        value: Value,
        bits: u32,
        a: Value,
        amount: Value,
    ) -> Linear {
        let number = self.known(cx, amount);
        match self.is_constant(number) {
            // CLIF takes the shift amount modulo the width of the shifted type.
            Some(amount) => {
                let factor = 1i64.wrapping_shl(amount as u32 & (bits - 1));
                self.combine(cx, value, bits, &[(factor, a)])
            }
            None => self.operation(
                cx,
                cx.func.dfg.value_type(value),
                &Operation {
                    opcode: Opcode::Ishl,
                    detail: 0,
                    args: smallvec![a, amount],
                },
            ),
        }
    }

    fn operation(&mut self, cx: AddressContext<'_>, ty: Type, operation: &Operation) -> Linear {
        let mut args: SmallVec<[Linear; 3]> = operation
            .args
            .iter()
            .map(|&arg| self.known(cx, arg))
            .collect();
        if is_commutative(operation.opcode) {
            args.sort_by_key(|number| (number.sum, number.offset));
        }
        let deepest = args.iter().fold(None, |deepest, number| {
            Self::deeper(cx.flow, deepest, self.deepest(number.sum))
        });
        let key = TermKey::Operation {
            opcode: operation.opcode,
            detail: operation.detail,
            ty,
            args,
        };
        self.single(ty.bits(), key, deepest, 0)
    }
}

fn add_term(terms: &mut SmallVec<[Scaled; 2]>, term: Term, scale: i64, bits: u32) {
    match terms.binary_search_by_key(&term, |scaled| scaled.term) {
        Ok(at) => terms[at].scale = sign_extend(terms[at].scale.wrapping_add(scale), bits),
        Err(at) => terms.insert(at, Scaled { term, scale }),
    }
}

fn is_commutative(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Imul | Opcode::Band | Opcode::Bor | Opcode::Bxor
    )
}

fn is_narrow_int(ty: Type) -> bool {
    ty.is_int() && ty.bits() <= 64
}

fn shape_of(cx: AddressContext<'_>, value: Value) -> Shape {
    let dfg = &cx.func.dfg;
    let ValueDef::Result(inst, 0) = dfg.value_def(value) else {
        return Shape::Leaf;
    };
    if !is_narrow_int(dfg.value_type(value)) {
        return Shape::Leaf;
    }
    match dfg.insts[inst] {
        InstructionData::UnaryImm {
            opcode: Opcode::Iconst,
            imm,
        } => Shape::Constant(imm.bits()),
        InstructionData::StackAddr {
            opcode: Opcode::StackAddr,
            stack_slot,
            offset,
        } => Shape::Slot(stack_slot, i64::from(i32::from(offset))),
        InstructionData::UnaryGlobalValue {
            opcode: Opcode::SymbolValue,
            global_value,
        } => Shape::Symbol(global_value),
        InstructionData::Binary { opcode, args } => shape_of_binary(cx, opcode, args),
        InstructionData::Unary { opcode, arg } => shape_of_unary(cx, opcode, arg),
        InstructionData::IntCompare { opcode, args, cond } => {
            operation(cx, opcode, cond as u8, &args)
        }
        InstructionData::Ternary { opcode, args } => match opcode {
            Opcode::Select | Opcode::SelectSpectreGuard => operation(cx, opcode, 0, &args),
            _ => Shape::Leaf,
        },
        InstructionData::Load { .. } => shape_of_load(cx, inst),
        _ => Shape::Leaf,
    }
}

fn operation(cx: AddressContext<'_>, opcode: Opcode, detail: u8, args: &[Value]) -> Shape {
    if !args
        .iter()
        .all(|&arg| is_narrow_int(cx.func.dfg.value_type(arg)))
    {
        return Shape::Leaf;
    }
    Shape::Operation(Operation {
        opcode,
        detail,
        args: SmallVec::from_slice(args),
    })
}

fn shape_of_binary(cx: AddressContext<'_>, opcode: Opcode, args: [Value; 2]) -> Shape {
    let [a, b] = args;
    match opcode {
        Opcode::Iadd => Shape::Combine(smallvec![(1, a), (1, b)]),
        Opcode::Isub => Shape::Combine(smallvec![(1, a), (-1, b)]),
        Opcode::Imul => Shape::Multiply(a, b),
        Opcode::Ishl if is_narrow_int(cx.func.dfg.value_type(b)) => Shape::ShiftLeft(a, b),
        Opcode::Band | Opcode::Bor | Opcode::Bxor | Opcode::Ushr | Opcode::Sshr => {
            operation(cx, opcode, 0, &args)
        }
        _ => Shape::Leaf,
    }
}

fn shape_of_unary(cx: AddressContext<'_>, opcode: Opcode, arg: Value) -> Shape {
    match opcode {
        Opcode::Ineg => Shape::Combine(smallvec![(-1, arg)]),
        Opcode::Uextend | Opcode::Sextend | Opcode::Ireduce | Opcode::Bnot => {
            operation(cx, opcode, 0, &[arg])
        }
        _ => Shape::Leaf,
    }
}

fn shape_of_load(cx: AddressContext<'_>, inst: Inst) -> Shape {
    let InstructionData::Load {
        opcode,
        flags,
        arg,
        offset,
    } = cx.func.dfg.insts[inst]
    else {
        return Shape::Leaf;
    };
    let flags = cx.func.dfg.mem_flags[flags];
    let outside = flags
        .alias_region()
        .is_some_and(|region| cx.outside[region.as_u32() as usize]);
    if !flags.readonly() || outside || !is_narrow_int(cx.func.dfg.value_type(arg)) {
        return Shape::Leaf;
    }
    Shape::ReadonlyLoad {
        opcode,
        endianness: flags.endianness(cx.endianness),
        address: arg,
        offset: i64::from(i32::from(offset)),
    }
}
