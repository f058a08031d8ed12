//! What one instruction does to memory.
//!
//! The only file that matches opcodes to decide what is safe. The match over [`Opcode`] is
//! exhaustive, so that an opcode which a new Cranelift adds cannot be forgotten: the build stops.

use std::fmt;

use cranelift_codegen::ir::{
    ExternalName, Function, Inst, InstructionData, LibCall, Opcode, Value, ValueDef, types,
};

use crate::faults::{Fault, planted};

/// How an instruction uses the bytes that its address operand names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// It names no bytes.
    #[default]
    None,
    /// A plain load.
    Load,
    /// A plain store.
    Store,
    /// An atomic access. It also orders memory ([`Effects::fence`]).
    Atomic {
        /// The bytes may be written, too.
        writes: bool,
    },
}

/// The effects of one instruction on memory.
///
/// *Escaped memory* is all memory but the private stack slots of this frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// What it does to the bytes that its address names.
    pub access: Access,
    /// It may read any escaped memory (calls, returns).
    pub reads_escaped: bool,
    /// It may write any escaped memory (calls).
    pub writes_escaped: bool,
    /// Plain accesses of escaped memory are not moved, forwarded or killed across it.
    pub fence: bool,
    /// It may trap.
    pub may_trap: bool,
    /// All escaped memory must be exact here, whether or not the instruction traps.
    pub observes: bool,
    /// The frame and its slots end here: return and tail calls.
    pub ends_frame: bool,
    /// It reads the stack or the frame pointer or switches stacks: no slot of the function is
    /// private.
    pub exposes_frame: bool,
}

impl Effects {
    /// No effect on memory at all.
    pub const NONE: Effects = Effects {
        access: Access::None,
        reads_escaped: false,
        writes_escaped: false,
        fence: false,
        may_trap: false,
        observes: false,
        ends_frame: false,
        exposes_frame: false,
    };

    const TRAP: Effects = Effects {
        may_trap: true,
        observes: true,
        ..Effects::NONE
    };

    const CALL: Effects = Effects {
        reads_escaped: true,
        writes_escaped: true,
        fence: true,
        may_trap: true,
        observes: true,
        ..Effects::NONE
    };

    const DEBUG: Effects = Effects {
        reads_escaped: true,
        writes_escaped: true,
        fence: true,
        observes: true,
        ..Effects::NONE
    };

    const FENCE: Effects = Effects {
        fence: true,
        ..Effects::NONE
    };

    /// The effects of `inst`.
    pub fn of(func: &Function, inst: Inst) -> Effects {
        // A stack map, through which a collector reads and rewrites slots, can only stand at a
        // call, which has those effects as it is.
        let data = &func.dfg.insts[inst];
        debug_assert!(
            data.opcode().is_safepoint() || func.dfg.user_stack_map_entries(inst).is_none()
        );
        Effects::of_kind(func, data)
    }

    fn of_kind(func: &Function, data: &InstructionData) -> Effects {
        match Kind::of(data.opcode()) {
            Kind::Call if planted(Fault::CallIgnored) => Effects::NONE,
            Kind::Call if planted(Fault::TryCallIgnored) && data.opcode().is_branch() => {
                Effects::NONE
            }
            Kind::TailCall if planted(Fault::TailCallIgnored) => Effects::NONE,
            Kind::Fence if planted(Fault::FenceIgnored) => Effects::NONE,
            Kind::Debug if planted(Fault::DebugIgnored) => Effects::NONE,
            Kind::Trap if planted(Fault::TrapIgnored) => Effects::NONE,
            Kind::FramePointer if planted(Fault::FrameExposed) => Effects::NONE,
            Kind::Atomic { writes } if planted(Fault::AtomicIgnored) => {
                let access = if writes { Access::Store } else { Access::Load };
                Effects::of_access(func, data, access)
            }
            Kind::None => Effects::NONE,
            Kind::Load => Effects::of_access(func, data, Access::Load),
            Kind::Store => Effects::of_access(func, data, Access::Store),
            Kind::Atomic { writes } => Effects {
                fence: true,
                ..Effects::of_access(func, data, Access::Atomic { writes })
            },
            Kind::Fence => Effects::FENCE,
            Kind::Call => Effects::CALL,
            Kind::TailCall => Effects {
                ends_frame: true,
                ..Effects::CALL
            },
            Kind::Return => Effects {
                reads_escaped: true,
                ends_frame: true,
                ..Effects::NONE
            },
            Kind::StackSwitch => Effects {
                exposes_frame: true,
                ..Effects::CALL
            },
            Kind::FramePointer => Effects {
                exposes_frame: true,
                ..Effects::NONE
            },
            Kind::Debug => Effects::DEBUG,
            Kind::Trap => Effects::TRAP,
            Kind::UnsignedDivision => Effects::of_division(func, data, |divisor| divisor != 0),
            // The most negative number divided by -1 overflows.
            Kind::SignedDivision => Effects::of_division(func, data, |divisor| {
                divisor != 0 && (divisor != -1 || planted(Fault::DivisionOverflow))
            }),
        }
    }

    fn of_access(func: &Function, data: &InstructionData, access: Access) -> Effects {
        // An access without flags, were Cranelift to add one, has no promise to rely on.
        let notrap = data
            .memflags_data(&func.dfg)
            .is_some_and(|flags| flags.notrap() || planted(Fault::AccessTrapIgnored));
        Effects {
            access,
            may_trap: !notrap,
            observes: !notrap,
            ..Effects::NONE
        }
    }

    fn of_division(
        func: &Function,
        data: &InstructionData,
        is_safe: impl Fn(i64) -> bool,
    ) -> Effects {
        let InstructionData::Binary { args, .. } = data else {
            return Effects::TRAP;
        };
        match constant_of(func, args[1]) {
            Some(divisor) if is_safe(divisor) => Effects::NONE,
            _ => Effects::TRAP,
        }
    }

    /// Whether the instruction matters to memory analyses.
    pub fn any(&self) -> bool {
        *self != Effects::NONE
    }

    /// Whether it may write memory or orders it: a MemoryDef.
    pub fn is_def(&self) -> bool {
        self.writes_escaped
            || self.fence
            || matches!(self.access, Access::Store | Access::Atomic { .. })
    }

    /// Whether it only reads the bytes that its address names: a MemoryUse.
    pub fn is_use(&self) -> bool {
        self.access == Access::Load && !self.is_def()
    }
}

/// The opcodes that have the same effects, flags and operands aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    None,
    Load,
    Store,
    Atomic { writes: bool },
    Fence,
    Call,
    TailCall,
    Return,
    StackSwitch,
    FramePointer,
    Debug,
    Trap,
    UnsignedDivision,
    SignedDivision,
}

impl Kind {
    fn of(opcode: Opcode) -> Kind {
        match opcode {
            Opcode::Load
            | Opcode::Uload8
            | Opcode::Sload8
            | Opcode::Uload16
            | Opcode::Sload16
            | Opcode::Uload32
            | Opcode::Sload32
            | Opcode::Uload8x8
            | Opcode::Sload8x8
            | Opcode::Uload16x4
            | Opcode::Sload16x4
            | Opcode::Uload32x2
            | Opcode::Sload32x2 => Kind::Load,

            Opcode::Store | Opcode::Istore8 | Opcode::Istore16 | Opcode::Istore32 => Kind::Store,

            Opcode::AtomicLoad => Kind::Atomic { writes: false },
            Opcode::AtomicStore | Opcode::AtomicRmw | Opcode::AtomicCas => {
                Kind::Atomic { writes: true }
            }
            Opcode::Fence => Kind::Fence,

            Opcode::Call | Opcode::CallIndirect | Opcode::TryCall | Opcode::TryCallIndirect => {
                Kind::Call
            }
            Opcode::ReturnCall | Opcode::ReturnCallIndirect => Kind::TailCall,
            Opcode::Return => Kind::Return,

            Opcode::StackSwitch => Kind::StackSwitch,
            Opcode::GetStackPointer | Opcode::GetFramePointer => Kind::FramePointer,

            Opcode::Debugtrap | Opcode::SequencePoint => Kind::Debug,

            Opcode::Trap
            | Opcode::Trapz
            | Opcode::Trapnz
            | Opcode::UaddOverflowTrap
            | Opcode::FcvtToUint
            | Opcode::FcvtToSint => Kind::Trap,
            Opcode::Udiv | Opcode::Urem => Kind::UnsignedDivision,
            Opcode::Sdiv | Opcode::Srem => Kind::SignedDivision,

            Opcode::Jump
            | Opcode::Brif
            | Opcode::BrTable
            | Opcode::FuncAddr
            | Opcode::Splat
            | Opcode::Swizzle
            | Opcode::X86Pshufb
            | Opcode::Insertlane
            | Opcode::Extractlane
            | Opcode::Smin
            | Opcode::Umin
            | Opcode::Smax
            | Opcode::Umax
            | Opcode::AvgRound
            | Opcode::UaddSat
            | Opcode::SaddSat
            | Opcode::UsubSat
            | Opcode::SsubSat
            | Opcode::StackAddr
            | Opcode::DynamicStackAddr
            | Opcode::SymbolValue
            | Opcode::TlsValue
            | Opcode::GetPinnedReg
            | Opcode::SetPinnedReg
            | Opcode::GetReturnAddress
            | Opcode::GetExceptionHandlerAddress
            | Opcode::Iconst
            | Opcode::F16const
            | Opcode::F32const
            | Opcode::F64const
            | Opcode::F128const
            | Opcode::Vconst
            | Opcode::Shuffle
            | Opcode::Nop
            | Opcode::Select
            | Opcode::SelectSpectreGuard
            | Opcode::Bitselect
            | Opcode::Blendv
            | Opcode::VanyTrue
            | Opcode::VallTrue
            | Opcode::VhighBits
            | Opcode::Icmp
            | Opcode::Iadd
            | Opcode::Isub
            | Opcode::Ineg
            | Opcode::Iabs
            | Opcode::Imul
            | Opcode::Umulhi
            | Opcode::Smulhi
            | Opcode::SqmulRoundSat
            | Opcode::X86Pmulhrsw
            | Opcode::SaddOverflowCin
            | Opcode::UaddOverflowCin
            | Opcode::UaddOverflow
            | Opcode::SaddOverflow
            | Opcode::UsubOverflow
            | Opcode::SsubOverflow
            | Opcode::UmulOverflow
            | Opcode::SmulOverflow
            | Opcode::SsubOverflowBin
            | Opcode::UsubOverflowBin
            | Opcode::Band
            | Opcode::Bor
            | Opcode::Bxor
            | Opcode::Bnot
            | Opcode::Rotl
            | Opcode::Rotr
            | Opcode::Ishl
            | Opcode::Ushr
            | Opcode::Sshr
            | Opcode::Bitrev
            | Opcode::Clz
            | Opcode::Cls
            | Opcode::Ctz
            | Opcode::Bswap
            | Opcode::Popcnt
            | Opcode::Fcmp
            | Opcode::Fadd
            | Opcode::Fsub
            | Opcode::Fmul
            | Opcode::Fdiv
            | Opcode::Sqrt
            | Opcode::Fma
            | Opcode::Fneg
            | Opcode::Fabs
            | Opcode::Fcopysign
            | Opcode::Fmin
            | Opcode::Fmax
            | Opcode::Ceil
            | Opcode::Floor
            | Opcode::Trunc
            | Opcode::Nearest
            | Opcode::Bitcast
            | Opcode::ScalarToVector
            | Opcode::Bmask
            | Opcode::Ireduce
            | Opcode::Snarrow
            | Opcode::Unarrow
            | Opcode::Uunarrow
            | Opcode::SwidenLow
            | Opcode::SwidenHigh
            | Opcode::UwidenLow
            | Opcode::UwidenHigh
            | Opcode::IaddPairwise
            | Opcode::X86Pmaddubsw
            | Opcode::Uextend
            | Opcode::Sextend
            | Opcode::Fpromote
            | Opcode::Fdemote
            | Opcode::Fvdemote
            | Opcode::FvpromoteLow
            | Opcode::FcvtToUintSat
            | Opcode::FcvtToSintSat
            | Opcode::X86Cvtt2dq
            | Opcode::FcvtFromUint
            | Opcode::FcvtFromSint
            | Opcode::Isplit
            | Opcode::Iconcat
            | Opcode::ExtractVector => Kind::None,
        }
    }
}

/// Lists the effects, for example `load, traps`.
impl fmt::Display for Effects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Destructured, so that a new effect is not left out of the text.
        let Effects {
            access,
            reads_escaped,
            writes_escaped,
            fence,
            may_trap,
            observes,
            ends_frame,
            exposes_frame,
        } = *self;
        let access = match access {
            Access::None => None,
            Access::Load => Some("load"),
            Access::Store => Some("store"),
            Access::Atomic { writes: false } => Some("atomic load"),
            Access::Atomic { writes: true } => Some("atomic store"),
        };
        let flags = [
            (reads_escaped, "reads escaped"),
            (writes_escaped, "writes escaped"),
            (fence, "fence"),
            (may_trap, "traps"),
            (observes && !may_trap, "observes"),
            (ends_frame, "ends frame"),
            (exposes_frame, "exposes frame"),
        ];
        let words = flags.iter().filter(|(set, _)| *set).map(|(_, word)| *word);
        let mut separator = "";
        for word in access.into_iter().chain(words) {
            write!(f, "{separator}{word}")?;
            separator = ", ";
        }
        Ok(())
    }
}

/// What a memory function of the C library does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryFunction {
    /// Copies bytes that are not written by it; of `memmove` too.
    Copy {
        to: Value,
        from: Value,
        length: Value,
    },
    /// Fills bytes with the low byte of `byte`.
    Set {
        to: Value,
        byte: Value,
        length: Value,
    },
}

/// The memory function that `inst` calls, if it does and passes what that takes.
pub(crate) fn memory_function(func: &Function, inst: Inst) -> Option<MemoryFunction> {
    let InstructionData::Call {
        opcode, func_ref, ..
    } = func.dfg.insts[inst]
    else {
        return None;
    };
    let ExternalName::LibCall(libcall) = func.dfg.ext_funcs[func_ref].name else {
        return None;
    };
    let &[to, second, length] = func.dfg.inst_args(inst) else {
        return None;
    };
    let is_pointer = |value: Value| func.dfg.value_type(value) == types::I64;
    let returns = match *func.dfg.inst_results(inst) {
        [] => true,
        [result] => is_pointer(result),
        _ => false,
    };
    if opcode != Opcode::Call || !returns || !is_pointer(to) || !is_pointer(length) {
        return None;
    }
    match libcall {
        LibCall::Memcpy | LibCall::Memmove if is_pointer(second) => Some(MemoryFunction::Copy {
            to,
            from: second,
            length,
        }),
        LibCall::Memset if func.dfg.value_type(second).is_int() => Some(MemoryFunction::Set {
            to,
            byte: second,
            length,
        }),
        _ => None,
    }
}

/// The number that `value` always is, sign-extended from its type, if `iconst` defines it.
pub(crate) fn constant_of(func: &Function, value: Value) -> Option<i64> {
    let value = func.dfg.resolve_aliases(value);
    let ValueDef::Result(inst, _) = func.dfg.value_def(value) else {
        return None;
    };
    let InstructionData::UnaryImm {
        opcode: Opcode::Iconst,
        imm,
    } = func.dfg.insts[inst]
    else {
        return None;
    };
    let ty = func.dfg.value_type(value);
    (ty.is_int() && ty.bits() <= 64).then(|| sign_extend(imm.bits(), ty.bits()))
}

/// The low `bits` (1 to 64) of `number`, sign-extended.
pub(crate) fn sign_extend(number: i64, bits: u32) -> i64 {
    let shift = 64 - bits;
    (number << shift) >> shift
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effects_of(body: &str, opcode: Opcode) -> Effects {
        let text = format!(
            "function %f(i64, i32, f32) {{\n sig0 = (i64)\n fn0 = %g sig0\nblock0(v0: i64, v1: i32, v2: f32):\n{body}\n}}"
        );
        let functions = cranelift_reader::parse_functions(&text).expect("test CLIF parses");
        let func = &functions[0];
        let inst = func
            .layout
            .blocks()
            .flat_map(|block| func.layout.block_insts(block))
            .find(|&inst| func.dfg.insts[inst].opcode() == opcode)
            .expect("the opcode is there");
        Effects::of(func, inst)
    }

    #[test]
    fn division_by_a_safe_constant_does_not_trap() {
        let safe = effects_of("v3 = iconst.i32 3\nv4 = sdiv v1, v3\nreturn", Opcode::Sdiv);
        assert_eq!(safe, Effects::NONE);
        let overflow = effects_of("v3 = iconst.i32 -1\nv4 = sdiv v1, v3\nreturn", Opcode::Sdiv);
        assert!(overflow.may_trap);
        let unsigned = effects_of("v3 = iconst.i32 -1\nv4 = udiv v1, v3\nreturn", Opcode::Udiv);
        assert!(!unsigned.may_trap);
        let zero = effects_of("v3 = iconst.i32 0\nv4 = udiv v1, v3\nreturn", Opcode::Udiv);
        assert!(zero.may_trap);
    }

    /// An opcode that Cranelift's tables give an effect on memory or a trap has one here, too.
    #[test]
    fn covers_what_cranelift_says_of_each_opcode() {
        for &opcode in Opcode::all() {
            let has_effect = opcode.can_load()
                || opcode.can_store()
                || opcode.can_trap()
                || opcode.is_call()
                || opcode.is_return();
            let pinned_register = matches!(opcode, Opcode::GetPinnedReg | Opcode::SetPinnedReg);
            let has_effect = has_effect || (opcode.other_side_effects() && !pinned_register);
            assert!(
                !has_effect || Kind::of(opcode) != Kind::None,
                "{opcode} has effects by Cranelift's tables and none here"
            );
        }
    }
}
