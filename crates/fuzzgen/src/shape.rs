//! What the generated functions really contain, and what the optimizer did with them.

use std::collections::BTreeMap;
use std::fmt;

use cranelift_memopt::Stats;

macro_rules! shapes {
    ($($field:ident $doc:literal;)*) => {
        /// How often each shape occurs in a case.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Shape {
            $(#[doc = $doc] pub $field: u64,)*
        }

        impl Shape {
            /// Every shape: its name and its count, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }
        }
    };
}

shapes! {
    functions "Functions.";
    invocations "Invocations.";
    loads "Plain loads.";
    stores "Plain stores.";
    extending_loads "Extending loads.";
    truncating_stores "Truncating stores.";
    vector_accesses "Accesses of vectors.";
    wide_accesses "Accesses of i128.";
    float_accesses "Accesses of floats.";
    tagged "Accesses with a region.";
    untagged "Accesses without a region.";
    big_endian "Accesses marked big-endian.";
    little_endian "Accesses marked little-endian.";
    aligned "Accesses marked aligned.";
    notrap "Accesses marked notrap.";
    may_trap "Accesses that name a trap code.";
    can_move "Accesses marked can_move.";
    readonly "Loads marked readonly.";
    repeated "Accesses of a place that was accessed before.";
    store_backs "Loads stored back.";
    double_stores "The same value stored twice.";
    overwrites "A store right before another one over it.";
    copies "Runs of loads and stores that copy bytes.";
    far_accesses "Accesses that trap if the pointer is out of bounds.";
    covered_notrap "Accesses that cannot trap since one before did not.";
    guarded_notrap "Accesses that cannot trap in this arm only.";
    slots "Stack slots.";
    scoped_slots "Stack slots of a few statements.";
    pointer_slots "Stack slots that hold addresses.";
    escapes_by_store "Addresses of slots stored to memory.";
    escapes_by_call "Addresses of slots passed to calls.";
    loaded_pointers "Addresses loaded from memory.";
    address_selects "Selects of addresses.";
    address_params "Block parameters that are addresses.";
    double_edges "Branches with both arms to one block.";
    variable_indices "Addresses with a variable index.";
    loop_addresses "Addresses that move on in a loop.";
    ifs "Branches that join again.";
    switches "br_table.";
    loops "Loops of one entry.";
    irreducible "Loops of two entries.";
    endless "Loops without an exit.";
    early_returns "Returns in the middle.";
    traps "trap, trapz, trapnz.";
    divisions "Divisions that may trap.";
    memory_functions "Calls of memory functions.";
    variable_lengths "Memory functions with a variable length.";
    host_calls "Calls of opaque functions.";
    calls "Direct calls.";
    indirect_calls "Indirect calls.";
    try_calls "try_call.";
    throws "Calls that throw.";
    tail_calls "return_call.";
    recursions "Calls of the function itself.";
    collections "Calls that change what stack maps name.";
    stack_maps "Calls with a user stack map.";
    atomics "Atomic accesses.";
    fences "Fences.";
    debugtraps "debugtrap.";
    sequence_points "sequence_point.";
}

/// Shapes and statistics of the optimizer, summed over cases.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    shapes: BTreeMap<&'static str, u64>,
    stats: BTreeMap<&'static str, u64>,
    marks: BTreeMap<&'static str, u64>,
}

impl Tally {
    /// Adds the shapes of a case.
    pub fn add_shape(&mut self, shape: &Shape) {
        for (name, count) in shape.iter() {
            *self.shapes.entry(name).or_default() += count;
        }
    }

    /// Adds the optimizer's statistics.
    pub fn add_stats(&mut self, stats: &Stats) {
        for (name, count) in stats.iter() {
            *self.stats.entry(name).or_default() += count;
        }
    }

    /// Adds to a count of the oracles.
    pub fn mark(&mut self, name: &'static str, count: u64) {
        *self.marks.entry(name).or_default() += count;
    }

    /// Adds another tally.
    pub fn add(&mut self, other: &Tally) {
        let maps = [
            (&mut self.shapes, &other.shapes),
            (&mut self.stats, &other.stats),
            (&mut self.marks, &other.marks),
        ];
        for (into, from) in maps {
            for (name, count) in from {
                *into.entry(name).or_default() += count;
            }
        }
    }

    /// A count by name: of a shape, of the optimizer or of the oracles.
    pub fn get(&self, name: &str) -> u64 {
        let maps = [&self.shapes, &self.stats, &self.marks];
        maps.iter()
            .find_map(|map| map.get(name))
            .copied()
            .unwrap_or(0)
    }

    /// All counts by name: shapes, then those of the optimizer, then those of the oracles.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let shapes = Shape::default();
        let shapes: Vec<_> = shapes.iter().map(|(name, _)| name).collect();
        let others = self.stats.keys().chain(self.marks.keys()).copied();
        let names = shapes.into_iter().chain(others);
        names.map(|name| (name, self.get(name)))
    }

    /// The names of shapes that never occurred.
    pub fn missing_shapes(&self) -> Vec<&'static str> {
        let all = Shape::default();
        all.iter()
            .map(|(name, _)| name)
            .filter(|name| self.get(name) == 0)
            .collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in self.iter() {
            writeln!(f, "{name:<32}{count:>12}")?;
        }
        Ok(())
    }
}
