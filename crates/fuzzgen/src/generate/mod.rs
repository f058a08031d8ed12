//! The generator. What it builds is valid CLIF and keeps the memory contract by construction:
//!
//! - Each address is a [`Place`](place::Place): a base value, the bytes around it that are valid, and
//!   the space they lie in. The space fixes the only region by which they may be tagged.
//! - Every function has the same parameters: `a`, `b` (buffer p0, region 1, may overlap), `c` (p1,
//!   region 2), `d` (p2, readonly), `t` (p4: addresses, region 4), `e` (p3, may be out of bounds),
//!   `u` (any 16 writable bytes), `x`, `y` (data), `g` (bit 0: `e` is in bounds), `fuel`.
//! - A slot has a home; it is passed only for parameters of the same region.
//! - Slots are written when a function or the scope that has them starts, and `t` holds none of its
//!   slots when it ends. Exceptions end functions anywhere, so a handler first clears the tables that
//!   a lost frame may have written.
//! - Addresses are never data: where a slot lies differs from run to run.
//! - Loops count down; functions call those after them, or themselves while fuel lasts.

mod access;
mod calls;
mod control;
mod data;
mod function;
mod place;

use arbitrary::Unstructured;
use clif_memopt_filetest::exec::{Buffer, Invocation};
use cranelift_codegen::ir::{AbiParam, Function, Signature, Type, types};
use cranelift_codegen::isa::CallConv;

use crate::case::Case;
use crate::choices::{Choices, bytes_of_seed};
use crate::shape::Shape;

/// How large cases are.
#[derive(Clone, Debug)]
pub struct Config {
    /// Functions of a case, at most.
    pub functions_max: usize,
    /// Statements of a function, at most.
    pub statements_max: usize,
    /// Invocations of a case.
    pub invocations: usize,
    /// Whether some accesses are big-endian. No little-endian target compiles them, so such cases are
    /// not run.
    pub big_endian: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            functions_max: 3,
            statements_max: 30,
            invocations: 5,
            big_endian: false,
        }
    }
}

/// The result types that functions have.
const RETURNS: [&[Type]; 5] = [
    &[types::I64],
    &[types::I64, types::I32],
    &[types::F64, types::I64],
    &[types::I64, types::I8X16],
    &[types::I128],
];

/// The functions of a case, as they are declared.
pub(crate) struct World {
    pub(crate) signatures: Vec<Signature>,
    pub(crate) big_endian: bool,
    pub(crate) tagging: Tagging,
}

/// How accesses are tagged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tagging {
    /// The same bytes with and without their region.
    Mixed,
    /// Only cells of addresses and readonly data.
    Sparse,
    /// All but what `e` points to.
    Full,
}

impl World {
    fn new(choices: &mut Choices<'_, '_>, config: &Config) -> World {
        let count = 1 + choices.below(config.functions_max);
        let mut signatures: Vec<Signature> = (0..count).map(|_| signature(choices)).collect();
        // Tail calls need the same signature.
        if choices.percent(25) {
            signatures[0].call_conv = CallConv::Tail;
            signatures = vec![signatures[0].clone(); count];
        }
        World {
            signatures,
            big_endian: config.big_endian,
            tagging: choices.pick(&[Tagging::Mixed, Tagging::Sparse, Tagging::Full]),
        }
    }
}

fn signature(choices: &mut Choices<'_, '_>) -> Signature {
    let conv = [
        (5, CallConv::SystemV),
        (5, CallConv::Tail),
        (1, CallConv::Fast),
    ];
    let mut signature = Signature::new(choices.weighted(&conv));
    let mut params = vec![types::I64; 8];
    params.extend([types::I32, types::I32, types::I64]);
    signature.params = params.into_iter().map(AbiParam::new).collect();
    let returns = choices.weighted(&[
        (5, RETURNS[0]),
        (2, RETURNS[1]),
        (1, RETURNS[2]),
        (1, RETURNS[3]),
        (1, RETURNS[4]),
    ]);
    signature.returns = returns.iter().copied().map(AbiParam::new).collect();
    signature
}

/// Generates a case from fuzzer bytes.
pub fn generate(bytes: &mut Unstructured<'_>, config: &Config) -> Case {
    let mut choices = Choices::new(bytes);
    let world = World::new(&mut choices, config);
    let mut shape = Shape::default();
    let functions: Vec<Function> = (0..world.signatures.len())
        .map(|index| {
            let budget = 4 + choices.below(config.statements_max);
            function::build(&world, index, &mut choices, &mut shape, budget)
        })
        .collect();
    let invocations = invocations(&mut choices, &functions, &world, config.invocations);
    shape.functions = functions.len() as u64;
    shape.invocations = invocations.len() as u64;
    Case {
        functions,
        invocations,
        shape,
        mixed_tags: world.tagging == Tagging::Mixed,
    }
}

/// Generates the case of a fuzzer's bytes.
pub fn case_of_bytes(bytes: &[u8], config: &Config) -> Case {
    generate(&mut Unstructured::new(bytes), config)
}

/// Generates the case of a seed. One of eight has big-endian accesses.
pub fn case_of_seed(seed: u64, config: &Config) -> Case {
    let bytes = bytes_of_seed(seed);
    let mut config = config.clone();
    config.big_endian |= seed % 8 == 7;
    case_of_bytes(&bytes, &config)
}

fn buffers(choices: &mut Choices<'_, '_>, world: &World) -> Vec<Buffer> {
    let mut texts = Vec::new();
    for (name, size) in [("p0", 96), ("p1", 64), ("p2", 32), ("p3", 48)] {
        let bytes = (0..size).map(|_| {
            let byte = choices.weighted(&[(3, None), (1, Some(0)), (1, Some(0xff))]);
            format!(" {:02x}", byte.unwrap_or(choices.below(256)))
        });
        texts.push(format!(
            "{name} = {size} bytes{}",
            bytes.collect::<String>()
        ));
    }
    let cells: String = (0..8)
        .map(|_| match choices.below(2) {
            _ if world.tagging == Tagging::Full => format!(" p0+{}", choices.below(81)),
            0 => format!(" p0+{}", choices.below(81)),
            _ => format!(" p1+{}", choices.below(49)),
        })
        .collect();
    texts.push(format!("p4 = 64 bytes{cells}"));
    texts
        .iter()
        .filter_map(|text| Buffer::parse(text).ok())
        .collect()
}

fn invocations(
    choices: &mut Choices<'_, '_>,
    functions: &[Function],
    world: &World,
    count: usize,
) -> Vec<Invocation> {
    let buffers = buffers(choices, world);
    let texts: Vec<String> = (0..count)
        .map(|index| run_text(choices, functions, world, index))
        .collect();
    texts
        .iter()
        .map(|text| match Invocation::parse(text, functions, &buffers) {
            Ok(run) => run,
            Err(error) => panic!("generator: run line '{text}': {error:#}"),
        })
        .collect()
}

fn run_text(
    choices: &mut Choices<'_, '_>,
    functions: &[Function],
    world: &World,
    index: usize,
) -> String {
    // Mostly the first function, which calls the others.
    let function = match index {
        0..3 => 0,
        _ => choices.below(functions.len()),
    };
    let b = match choices.below(3) {
        0 => 8 * choices.below(6),
        1 => 8 * choices.below(6) + 4,
        _ => choices.below(49),
    };
    let (e, g) = choices.weighted(&[
        (4, ("p3", 1)),
        (2, ("p3+8", 1)),
        (1, ("p3+28", 0)),
        (1, ("p3+41", 0)),
        (1, ("oob", 0)),
    ]);
    let u = match choices.below(3) {
        0 => format!("p0+{}", choices.below(81)),
        1 if world.tagging != Tagging::Full => format!("p1+{}", choices.below(49)),
        _ => "p0+8".to_string(),
    };
    let x = choices.weighted(&[(2, None), (1, Some(0)), (1, Some(1)), (1, Some(-1))]);
    let x = x.unwrap_or(choices.bits().cast_signed());
    let y = choices.between(-9, 9);
    let g = g | (choices.below(64) << 1);
    let fuel = choices.below(8);
    format!(
        "{}(p0+{}, p0+{b}, p1, p2, p4, {e}, {u}, {x}, {y}, {g}, {fuel})",
        functions[function].name,
        16 * choices.below(4),
    )
}
