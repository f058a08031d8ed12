//! `test optimize [passes=A,B] [preset=NAME] [outside=USERID]`: the function after the optimizer. It
//! must pass Cranelift's verifier and parse back to the same text.

use anyhow::{Context as _, Result, anyhow, bail};
use cranelift_codegen::ir::Function;
use cranelift_codegen::isa::TargetIsa;
use cranelift_codegen::verify_function;
use cranelift_memopt::Options;
use cranelift_memopt::print::clif;
use cranelift_reader::parse_functions;

use super::{PrintSubtest, Printed};
use crate::expect::precise_difference;
use crate::options::optimize_functions;
use crate::source::InFunction;

/// The subtest.
pub(crate) struct Optimize {
    pub(crate) options: Options,
}

impl PrintSubtest for Optimize {
    fn print(&self, functions: &[Function], isa: &dyn TargetIsa) -> Result<Vec<Printed>> {
        let optimized = optimize_functions(functions, &self.options, isa)?;
        optimized
            .into_iter()
            .enumerate()
            .map(|(index, (function, report))| {
                check_valid(&function, isa)
                    .context("after optimization")
                    .with_context(|| InFunction::new(index, &function))?;
                Ok(Printed {
                    text: clif(&function),
                    report: Some(report),
                })
            })
            .collect()
    }

    fn checks_itself(&self) -> bool {
        true
    }
}

fn check_valid(function: &Function, isa: &dyn TargetIsa) -> Result<()> {
    verify_function(function, isa).map_err(|errors| anyhow!("{errors}"))?;
    let text = clif(function);
    let parsed = parse_functions(&text)?;
    let [parsed] = parsed.as_slice() else {
        bail!("it does not parse back as one function");
    };
    if let Some(difference) = precise_difference(&text, &clif(parsed)) {
        bail!("it parses back as another function\n{difference}");
    }
    Ok(())
}
