//! What the optimizer may do: passes, budgets, regions and names that are left alone.

use std::fmt;
use std::str::FromStr;

use cranelift_codegen::ir::AliasRegionData;

/// A pass of the pipeline. Its name is the file name, the command-line name, the prefix of its
/// statistics and its filetest folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pass {
    /// Bytes of a stack slot become SSA values.
    Sroa,
    /// A load takes the value that a dominating store or load of the same bytes holds.
    Forward,
    /// A store that nothing observes, or that writes what is already there, goes.
    Dse,
}

impl Pass {
    /// Every pass, in pipeline order.
    pub const ALL: &'static [Pass] = &[Pass::Sroa, Pass::Forward, Pass::Dse];

    /// The name by which the pass is selected.
    pub const fn name(self) -> &'static str {
        match self {
            Pass::Sroa => "sroa",
            Pass::Forward => "forward",
            Pass::Dse => "dse",
        }
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is not the name of a pass or a preset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    what: &'static str,
    name: String,
    known: String,
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown {} '{}' (known: {})",
            self.what, self.name, self.known
        )
    }
}

impl std::error::Error for UnknownName {}

fn lookup<T: Copy>(
    what: &'static str,
    all: &[T],
    name_of: impl Fn(T) -> &'static str,
    name: &str,
) -> Result<T, UnknownName> {
    all.iter()
        .copied()
        .find(|&item| name_of(item) == name)
        .ok_or_else(|| UnknownName {
            what,
            name: name.to_string(),
            known: all
                .iter()
                .map(|&item| name_of(item))
                .collect::<Vec<_>>()
                .join(", "),
        })
}

impl FromStr for Pass {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        lookup("pass", Pass::ALL, Pass::name, name)
    }
}

/// A named set of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preset {
    /// Every pass, full budgets. The default.
    Speed,
    /// Every pass, with budgets for a baseline tier: long walks are given up early.
    Minimal,
    /// [`Preset::Speed`] for CLIF made by Wasmtime: its epoch counter is an outside region.
    Wasmtime,
}

impl Preset {
    /// Every preset.
    pub const ALL: &'static [Preset] = &[Preset::Speed, Preset::Minimal, Preset::Wasmtime];

    /// The name by which the preset is selected.
    pub const fn name(self) -> &'static str {
        match self {
            Preset::Speed => "speed",
            Preset::Minimal => "minimal",
            Preset::Wasmtime => "wasmtime",
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Preset {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        lookup("preset", Preset::ALL, Preset::name, name)
    }
}

/// Names an alias region, the same one in every function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionName {
    /// The region's `user_id`.
    UserId(u32),
    /// The region's whole description.
    Description(String),
}

impl RegionName {
    /// Whether this names the region with the given data.
    pub fn matches(&self, region: &AliasRegionData) -> bool {
        match self {
            RegionName::UserId(id) => region.user_id == *id,
            RegionName::Description(text) => region.description == *text,
        }
    }
}

/// How the optimizer works. [`Options::default`] is [`Preset::Speed`].
#[derive(Clone, Debug)]
pub struct Options {
    /// The passes that run. The pipeline's own order applies, not this one.
    pub passes: Vec<Pass>,
    /// Regions that change from outside the function (polling words, device memory). Accesses to
    /// them are never merged, removed or moved.
    pub outside_regions: Vec<RegionName>,
    /// Functions, by name as CLIF prints it (`%name`, `u0:7`), that are returned as they came.
    pub untouched_functions: Vec<String>,
    /// Stack slots, by the bits of their key, whose accesses are left alone.
    pub untouched_slot_keys: Vec<u64>,
    /// How many rewrites may be done in all by one [`Optimizer`](crate::Optimizer); `None` for no
    /// bound. With a bound, a search over it finds the first rewrite at fault: the n-th rewrite is
    /// the n-th remark of [`Action::Removed`](crate::Action::Removed).
    pub fuel: Option<u64>,
    /// Collect [`Remark`](crate::Remark)s.
    pub remarks: bool,
    /// Run Cranelift's verifier and the MemorySSA verifier after every pass that changed the
    /// function.
    pub verify: bool,
    /// Prove each rewrite on the function as it came, by an independent checker. Slow.
    pub check: bool,
    /// Steps of memory walks allowed for each memory access of the function, on average.
    pub walk_steps_per_access: u32,
}

impl Options {
    /// The options of a preset.
    pub fn preset(preset: Preset) -> Options {
        let mut options = Options {
            passes: Pass::ALL.to_vec(),
            outside_regions: Vec::new(),
            untouched_functions: Vec::new(),
            untouched_slot_keys: Vec::new(),
            fuel: None,
            remarks: false,
            verify: false,
            check: false,
            walk_steps_per_access: 64,
        };
        match preset {
            Preset::Speed => {}
            Preset::Minimal => options.walk_steps_per_access = 8,
            Preset::Wasmtime => options
                .outside_regions
                .push(RegionName::Description("EpochCounter+0x0".to_string())),
        }
        options
    }
}

impl Default for Options {
    fn default() -> Self {
        Options::preset(Preset::Speed)
    }
}
