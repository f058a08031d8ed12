//! Numbers and layout are names: another choice of them must not change what is left.

use cranelift_codegen::ir::Function;

use super::stability::count_ops;
use super::{Finding, Oracle, Setup, optimize_unchecked};

/// The function with other numbers for its values and blocks, and its blocks, the first aside, laid
/// out in reverse.
///
/// # Panics
/// If the text of a function does not parse: the fault of the printer or the reader.
pub fn permuted(function: &Function) -> Function {
    let text = function.to_string();
    let values = renumbered(&text, "v");
    let text = renumbered(&values, "block");
    let mut permuted = match cranelift_reader::parse_functions(&text) {
        Ok(mut functions) if functions.len() == 1 => functions.remove(0),
        Ok(functions) => panic!("{} functions in the text of one", functions.len()),
        Err(error) => panic!("a printed function does not parse: {error}"),
    };
    reverse_layout(&mut permuted);
    permuted
}

/// Lays the blocks out in reverse, the entry aside.
fn reverse_layout(function: &mut Function) {
    let layout = &mut function.layout;
    let blocks: Vec<_> = layout.blocks().skip(1).collect();
    for pair in blocks.windows(2) {
        let insts: Vec<_> = layout.block_insts(pair[1]).collect();
        for &inst in &insts {
            layout.remove_inst(inst);
        }
        layout.remove_block(pair[1]);
        let before = layout.blocks().nth(1).unwrap_or(pair[0]);
        layout.insert_block(pair[1], before);
        for inst in insts {
            layout.append_inst(inst, pair[1]);
        }
    }
}

/// `text` with the numbers of entities of this prefix turned around.
fn renumbered(text: &str, prefix: &str) -> String {
    let numbers = entities(text, prefix);
    let Some(most) = numbers.iter().map(|(_, number)| *number).max() else {
        return text.to_string();
    };
    let mut result = String::with_capacity(text.len());
    let mut at = 0;
    for (range, number) in numbers {
        result.push_str(&text[at..range.start]);
        result.push_str(&(most - number).to_string());
        at = range.end;
    }
    result.push_str(&text[at..]);
    result
}

/// Where the numbers of entities of this prefix stand.
fn entities(text: &str, prefix: &str) -> Vec<(std::ops::Range<usize>, u32)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices(prefix) {
        let is_word = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric());
        if at > 0 && is_word(text.as_bytes().get(at - 1)) {
            continue;
        }
        let start = at + prefix.len();
        let digits = text[start..].bytes().take_while(u8::is_ascii_digit).count();
        let end = start + digits;
        if is_word(text.as_bytes().get(end)) {
            continue;
        }
        if let Ok(number) = text[start..end].parse() {
            found.push((start..end, number));
        }
    }
    found
}

/// Optimizes the permuted function: as many memory operations must be left as in `optimized`.
///
/// # Errors
/// A finding: the numbers differ.
pub fn check_permutations(
    original: &Function,
    optimized: &Function,
    setup: &Setup,
) -> Result<(), Finding> {
    let other = permuted(original);
    let other = optimize_unchecked(&other, setup)?;
    let (one, two) = (count_ops(optimized), count_ops(&other));
    if one == two {
        return Ok(());
    }
    let message = format!(
        "{}: {one} memory operations are left, but {two} of the permuted function",
        original.name
    );
    Err(Finding::new(Oracle::Permutation, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_turn_around_and_names_do_not() {
        assert_eq!(
            renumbered("v0 = iadd v1, v2 ; v", "v"),
            "v2 = iadd v1, v0 ; v"
        );
        assert_eq!(
            renumbered("i8x16 system_v fv1 v3", "v"),
            "i8x16 system_v fv1 v0"
        );
    }
}
