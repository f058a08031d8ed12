//! Normal forms of integer values: `Σ scale·term + constant`, modulo 2^bits of the type.
//!
//! Two values with the same form are the same number while the leaves they are made of are the
//! same instances. Forms are interned, so that equal forms are equal numbers.

use cranelift_codegen::ir::{
    Endianness, Function, GlobalValue, Inst, InstructionData, Opcode, StackSlot, Type, Value,
    ValueDef, types,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::convert::{Conversion, Step};
use crate::effects::{constant_of, sign_extend};

/// A value whose form would have more terms than this is a leaf.
const TERMS_MAX: usize = 1024;

/// The part of a form that is not constant, interned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Sum(u32);

/// A form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Form {
    pub(super) sum: Sum,
    /// Sign-extended from the width of the type.
    pub(super) constant: i64,
}

type Term = u32;

/// Terms and their scales, ordered by term; no scale is 0. With the width in bits.
type Terms = (u32, Vec<(Term, i64)>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum TermKey {
    Leaf(Value),
    Slot(StackSlot),
    Symbol(GlobalValue),
    Operation {
        opcode: Opcode,
        condition: u8,
        ty: Type,
        args: Vec<Form>,
    },
    ReadonlyLoad {
        opcode: Opcode,
        ty: Type,
        endianness: Endianness,
        address: Form,
    },
}

/// The forms of one function's values.
pub(super) struct Forms<'a> {
    func: &'a Function,
    endianness: Endianness,
    outside: &'a [bool],
    /// Results of removed loads, and the values that they are.
    equal: FxHashMap<Value, Value>,
    /// Results of removed loads, and the conversions of values that they are.
    converted: FxHashMap<Value, (Value, Conversion)>,
    forms: FxHashMap<Value, Form>,
    terms: Vec<TermKey>,
    term_index: FxHashMap<TermKey, Term>,
    sums: Vec<Terms>,
    sum_index: FxHashMap<Terms, Sum>,
}

fn is_narrow_int(ty: Type) -> bool {
    ty.is_int() && ty.bits() <= 64
}

impl<'a> Forms<'a> {
    pub(super) fn new(func: &'a Function, endianness: Endianness, outside: &'a [bool]) -> Self {
        Forms {
            func,
            endianness,
            outside,
            equal: FxHashMap::default(),
            converted: FxHashMap::default(),
            forms: FxHashMap::default(),
            terms: Vec::new(),
            term_index: FxHashMap::default(),
            sums: Vec::new(),
            sum_index: FxHashMap::default(),
        }
    }

    /// What `value` is called after aliases and the claims so far.
    pub(super) fn root(&self, value: Value) -> Value {
        let mut value = self.func.dfg.resolve_aliases(value);
        while let Some(&other) = self.equal.get(&value) {
            value = self.func.dfg.resolve_aliases(other);
        }
        value
    }

    /// From here on `result`, of a load that went, is `value`.
    pub(super) fn set_equal(&mut self, result: Value, value: Value) {
        let result = self.func.dfg.resolve_aliases(result);
        self.equal.insert(result, value);
        // Forms that are made of it are out of date.
        if self.forms.contains_key(&result) {
            self.forms.clear();
        }
    }

    /// From here on `result`, of a load that went, is the conversion of `value`.
    pub(super) fn set_converted(&mut self, result: Value, value: Value, conversion: &Conversion) {
        let result = self.func.dfg.resolve_aliases(result);
        self.converted.insert(result, (value, conversion.clone()));
    }

    /// The value that `value` is computed from by steps of conversions alone, and the steps.
    pub(super) fn peeled(&self, value: Value) -> (Value, Vec<Step>) {
        let mut value = self.root(value);
        let mut steps = Vec::new();
        while let Some((inner, outer)) = self.inner(value) {
            steps.splice(0..0, outer);
            value = self.root(inner);
        }
        (value, steps)
    }

    fn inner(&self, value: Value) -> Option<(Value, Vec<Step>)> {
        if let Some((inner, conversion)) = self.converted.get(&value) {
            return Some((*inner, conversion.steps.to_vec()));
        }
        let ValueDef::Result(inst, 0) = self.func.dfg.value_def(value) else {
            return None;
        };
        let ty = self.func.dfg.value_type(value);
        let (arg, step) = match self.func.dfg.insts[inst] {
            InstructionData::Unary { opcode, arg } => match opcode {
                Opcode::Uextend => (arg, Step::ZeroExtend(ty)),
                Opcode::Sextend => (arg, Step::SignExtend(ty)),
                Opcode::Ireduce => (arg, Step::Reduce(ty)),
                _ => return None,
            },
            InstructionData::LoadNoOffset {
                opcode: Opcode::Bitcast,
                flags,
                arg,
            } => {
                let flags = self.func.dfg.mem_flags[flags];
                (arg, Step::Bitcast(ty, flags.explicit_endianness()))
            }
            _ => return None,
        };
        Some((arg, vec![step]))
    }

    /// The form of an address, if it has one.
    pub(super) fn address(&mut self, value: Value, offset: i64) -> Option<Form> {
        if self.func.dfg.value_type(value) != types::I64 {
            return None;
        }
        let form = self.form(value);
        Some(Form {
            constant: form.constant.wrapping_add(offset),
            ..form
        })
    }

    /// The form of a value of an integer type of at most 64 bits.
    fn form(&mut self, value: Value) -> Form {
        let value = self.root(value);
        let mut stack = vec![value];
        while let Some(&next) = stack.last() {
            if self.forms.contains_key(&next) {
                stack.pop();
                continue;
            }
            let inst = self.followed(next);
            let operands: &[Value] = inst.map_or(&[], |inst| self.func.dfg.inst_args(inst));
            let height = stack.len();
            for &operand in operands {
                let operand = self.root(operand);
                if !self.forms.contains_key(&operand) {
                    stack.push(operand);
                }
            }
            if stack.len() == height {
                let form = match inst {
                    Some(inst) => self.of_result(next, inst),
                    None => self.leaf(next),
                };
                self.forms.insert(next, form);
            }
        }
        self.forms[&value]
    }

    /// The instruction that makes `value`, if its form is made of those of its operands.
    fn followed(&self, value: Value) -> Option<Inst> {
        let dfg = &self.func.dfg;
        let ValueDef::Result(inst, 0) = dfg.value_def(value) else {
            return None;
        };
        let is_int = |&value: &Value| is_narrow_int(dfg.value_type(value));
        if !is_int(&value) || !dfg.inst_args(inst).iter().all(is_int) {
            return None;
        }
        let followed = match dfg.insts[inst].opcode() {
            Opcode::StackAddr | Opcode::SymbolValue => dfg.value_type(value) == types::I64,
            Opcode::Iconst
            | Opcode::Iadd
            | Opcode::Isub
            | Opcode::Ineg
            | Opcode::Imul
            | Opcode::Ishl
            | Opcode::Ushr
            | Opcode::Sshr
            | Opcode::Band
            | Opcode::Bor
            | Opcode::Bxor
            | Opcode::Bnot
            | Opcode::Uextend
            | Opcode::Sextend
            | Opcode::Ireduce
            | Opcode::Icmp
            | Opcode::Select
            | Opcode::SelectSpectreGuard => true,
            _ => self.is_readonly_load(inst),
        };
        followed.then_some(inst)
    }

    fn is_readonly_load(&self, inst: Inst) -> bool {
        let InstructionData::Load { flags, .. } = self.func.dfg.insts[inst] else {
            return false;
        };
        let flags = self.func.dfg.mem_flags[flags];
        let region = flags.alias_region();
        flags.readonly() && !region.is_some_and(|region| self.outside[region.as_u32() as usize])
    }

    fn of_result(&mut self, value: Value, inst: Inst) -> Form {
        let dfg = &self.func.dfg;
        let ty = dfg.value_type(value);
        let bits = ty.bits();
        let args: Vec<Form> = dfg
            .inst_args(inst)
            .iter()
            .map(|&arg| self.forms[&self.root(arg)])
            .collect();
        let data = dfg.insts[inst];
        let opcode = data.opcode();
        match (opcode, &args[..]) {
            (Opcode::Iconst, _) => {
                let number = constant_of(self.func, value).unwrap_or_default();
                self.sum(value, bits, &[], number)
            }
            (Opcode::Iadd, &[a, b]) => self.sum(value, bits, &[(1, a), (1, b)], 0),
            (Opcode::Isub, &[a, b]) => self.sum(value, bits, &[(1, a), (-1, b)], 0),
            (Opcode::Ineg, &[a]) => self.sum(value, bits, &[(-1, a)], 0),
            (Opcode::Imul, &[a, b]) if self.is_constant(b) => {
                self.sum(value, bits, &[(b.constant, a)], 0)
            }
            (Opcode::Imul, &[a, b]) if self.is_constant(a) => {
                self.sum(value, bits, &[(a.constant, b)], 0)
            }
            (Opcode::Ishl, &[a, b]) if self.is_constant(b) => {
                // The amount is taken modulo the width.
                let scale = 1i64 << (b.constant as u32 % bits);
                self.sum(value, bits, &[(scale, a)], 0)
            }
            _ => {
                let (key, constant) = self.key_of(data, ty, args);
                let term = self.term(key);
                let form = self.of_term(bits, term);
                Form { constant, ..form }
            }
        }
    }

    /// The term that an instruction makes, and what is added to it.
    fn key_of(&self, data: InstructionData, ty: Type, mut args: Vec<Form>) -> (TermKey, i64) {
        let opcode = data.opcode();
        let mut condition = 0;
        match data {
            InstructionData::StackAddr {
                stack_slot, offset, ..
            } => return (TermKey::Slot(stack_slot), i64::from(i32::from(offset))),
            InstructionData::UnaryGlobalValue { global_value, .. } => {
                return (TermKey::Symbol(global_value), 0);
            }
            InstructionData::Load { flags, offset, .. } => {
                let offset = i64::from(i32::from(offset));
                let key = TermKey::ReadonlyLoad {
                    opcode,
                    ty,
                    endianness: self.func.dfg.mem_flags[flags].endianness(self.endianness),
                    address: Form {
                        constant: args[0].constant.wrapping_add(offset),
                        ..args[0]
                    },
                };
                return (key, 0);
            }
            InstructionData::IntCompare { cond, .. } => condition = cond as u8,
            _ => {}
        }
        let commutes = [Opcode::Imul, Opcode::Band, Opcode::Bor, Opcode::Bxor];
        if commutes.contains(&opcode) {
            args.sort();
        }
        let key = TermKey::Operation {
            opcode,
            condition,
            ty,
            args,
        };
        (key, 0)
    }

    fn leaf(&mut self, value: Value) -> Form {
        let term = self.term(TermKey::Leaf(value));
        self.of_term(self.func.dfg.value_type(value).bits(), term)
    }

    fn term(&mut self, key: TermKey) -> Term {
        let next = self.terms.len() as Term;
        *self.term_index.entry(key.clone()).or_insert_with(|| {
            self.terms.push(key);
            next
        })
    }

    fn of_term(&mut self, bits: u32, term: Term) -> Form {
        Form {
            sum: self.intern((bits, vec![(term, 1)])),
            constant: 0,
        }
    }

    fn intern(&mut self, terms: Terms) -> Sum {
        let next = Sum(self.sums.len() as u32);
        *self.sum_index.entry(terms.clone()).or_insert_with(|| {
            self.sums.push(terms);
            next
        })
    }

    fn is_constant(&self, form: Form) -> bool {
        self.sums[form.sum.0 as usize].1.is_empty()
    }

    /// `Σ scale·form + constant`, which is what `value` is.
    fn sum(&mut self, value: Value, bits: u32, parts: &[(i64, Form)], constant: i64) -> Form {
        let mut scales = std::collections::BTreeMap::<Term, i64>::new();
        let mut constant = constant;
        for &(scale, form) in parts {
            constant = constant.wrapping_add(scale.wrapping_mul(form.constant));
            for &(term, inner) in &self.sums[form.sum.0 as usize].1 {
                let total = scales.entry(term).or_default();
                *total = total.wrapping_add(scale.wrapping_mul(inner));
            }
        }
        let scales = scales
            .into_iter()
            .map(|(term, scale)| (term, sign_extend(scale, bits)));
        let terms: Vec<(Term, i64)> = scales.filter(|&(_, scale)| scale != 0).collect();
        if terms.len() > TERMS_MAX {
            return self.leaf(value);
        }
        Form {
            sum: self.intern((bits, terms)),
            constant: sign_extend(constant, bits),
        }
    }

    /// The values that `sum` is made of.
    pub(super) fn leaves(&self, sum: Sum) -> Vec<Value> {
        let mut leaves = Vec::new();
        let mut seen = FxHashSet::default();
        let mut stack = vec![sum];
        while let Some(sum) = stack.pop() {
            for &(term, _) in &self.sums[sum.0 as usize].1 {
                if !seen.insert(term) {
                    continue;
                }
                match &self.terms[term as usize] {
                    TermKey::Leaf(value) => leaves.push(*value),
                    TermKey::Slot(_) | TermKey::Symbol(_) => {}
                    TermKey::Operation { args, .. } => stack.extend(args.iter().map(|arg| arg.sum)),
                    TermKey::ReadonlyLoad { address, .. } => stack.push(address.sum),
                }
            }
        }
        leaves
    }

    /// If the two values are equal wherever both are computed from the same instances of some
    /// values, those values.
    pub(super) fn equality(&mut self, a: Value, b: Value) -> Option<Vec<Value>> {
        let (a, b) = (self.root(a), self.root(b));
        let ty = self.func.dfg.value_type(a);
        if self.func.dfg.value_type(b) != ty {
            return None;
        }
        if is_narrow_int(ty) {
            let form = self.form(a);
            return (form == self.form(b)).then(|| self.leaves(form.sum));
        }
        if a == b {
            return Some(vec![a]);
        }
        let constant = self.constant_bits(a);
        if constant.is_some() && constant == self.constant_bits(b) {
            return Some(Vec::new());
        }
        self.equality_of_operations(a, b)
    }

    /// As [`Forms::equality`], for results of the same pure operation. Operands dominate, so this
    /// comes to an end.
    fn equality_of_operations(&mut self, a: Value, b: Value) -> Option<Vec<Value>> {
        let func = self.func;
        let inst_of = |value: Value| match func.dfg.value_def(value) {
            ValueDef::Result(inst, 0) => Some(inst),
            _ => None,
        };
        let (x, y) = (inst_of(a)?, inst_of(b)?);
        let opcode = func.dfg.insts[x].opcode();
        let is_plain = match (&func.dfg.insts[x], &func.dfg.insts[y]) {
            (InstructionData::Unary { .. }, InstructionData::Unary { .. })
            | (InstructionData::Binary { .. }, InstructionData::Binary { .. }) => true,
            (InstructionData::UnaryConst { .. } | InstructionData::UnaryIeee16 { .. }, _) => {
                func.dfg.insts[x] == func.dfg.insts[y]
            }
            _ => false,
        };
        let is_pure = !opcode.can_trap() && !opcode.other_side_effects();
        if !is_plain || !is_pure || opcode != func.dfg.insts[y].opcode() {
            return None;
        }
        let mut leaves = Vec::new();
        for (&a, &b) in func.dfg.inst_args(x).iter().zip(func.dfg.inst_args(y)) {
            leaves.extend(self.equality(a, b)?);
        }
        Some(leaves)
    }

    /// The bits of a constant of another type.
    fn constant_bits(&self, value: Value) -> Option<u64> {
        let ValueDef::Result(inst, 0) = self.func.dfg.value_def(value) else {
            return None;
        };
        match self.func.dfg.insts[inst] {
            InstructionData::UnaryImm { imm, .. } => Some(imm.bits() as u64),
            InstructionData::UnaryIeee32 { imm, .. } => Some(u64::from(imm.bits())),
            InstructionData::UnaryIeee64 { imm, .. } => Some(imm.bits()),
            _ => None,
        }
    }
}
