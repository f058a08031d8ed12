//! What the optimizer counted.

macro_rules! counters {
    ($($field:ident $name:literal $doc:literal;)*) => {
        /// Counters of one function, or of many added up. Their names are `area.counter`.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $(#[doc = $doc] pub $field: u64,)*
        }

        impl Stats {
            /// Every counter: its name and its value, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                [$(($name, self.$field)),*].into_iter()
            }

            /// Adds the counters of `other`.
            pub fn add(&mut self, other: &Stats) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

counters! {
    view_loads "view.loads" "Plain loads of the function before any pass.";
    view_stores "view.stores" "Plain stores of the function before any pass.";
    memssa_defs "memssa.defs" "MemoryDefs built.";
    memssa_phis "memssa.phis" "MemoryPhis built.";
    memssa_walks "memssa.walks" "Clobber walks, without those that the cache answered.";
    memssa_walk_steps "memssa.walk_steps" "Defs and phis that clobber walks looked at.";
    memssa_walks_exhausted "memssa.walks_exhausted" "Clobber walks that ended for want of budget.";
    sroa_slots "sroa.slots" "Stack slots of which bytes became values.";
    sroa_cells "sroa.cells" "Groups of bytes that became one value each.";
    sroa_loads "sroa.loads" "Loads of stack slots replaced by values.";
    sroa_stores "sroa.stores" "Stores to stack slots replaced by values.";
    sroa_copies "sroa.copies" "Calls of memory functions on stack slots replaced by values.";
    sroa_copied_loads "sroa.copied_loads" "Loads made of calls of memory functions.";
    sroa_copied_stores "sroa.copied_stores" "Stores made of calls of memory functions.";
    sroa_params "sroa.params" "Block parameters added.";
    sroa_rounds "sroa.rounds" "Rounds that changed something.";
    sroa_kept_key "sroa.kept_key" "Slots kept: they have a key, or the options say so.";
    sroa_kept_stack_map "sroa.kept_stack_map" "Slots kept: a stack map names them.";
    sroa_kept_frame "sroa.kept_frame" "Slots kept: the function reads its stack or frame pointer, or switches stacks.";
    sroa_kept_escapes "sroa.kept_escapes" "Slots kept: the address is used by more than loads, stores and memory functions.";
    sroa_kept_out_of_bounds "sroa.kept_out_of_bounds" "Slots kept: an access is out of bounds.";
    sroa_kept_shared_table "sroa.kept_shared_table" "Slots kept: two branches share a table.";
    sroa_kept_fixed "sroa.kept_fixed" "Slots kept in part: accesses in an outside region.";
    sroa_kept_index "sroa.kept_index" "Slots kept in part: an index is not known.";
    sroa_kept_block "sroa.kept_block" "Slots kept in part: a memory function moves bytes whose number is not known, or too many.";
    sroa_kept_type "sroa.kept_type" "Slots kept in part: the type is not one that can be cut.";
    sroa_kept_pressure "sroa.kept_pressure" "Slots kept in part: too many values would be carried around.";
    forward_from_store "forward.from_store" "Loads that took the value of a store.";
    forward_from_load "forward.from_load" "Loads that took the value of an earlier load.";
    forward_kept_fixed "forward.kept_fixed" "Loads kept: left alone by the options or out of bounds.";
    forward_kept_no_source "forward.kept_no_source" "Loads kept: no access of the same bytes comes before.";
    forward_kept_clobbered "forward.kept_clobbered" "Loads kept: the bytes may have changed since.";
    forward_kept_region "forward.kept_region" "Loads kept: the source has another region.";
    forward_kept_type "forward.kept_type" "Loads kept: no bit-exact conversion from the source.";
    forward_kept_endianness "forward.kept_endianness" "Loads kept: the source has another byte order.";
    forward_kept_movable_source "forward.kept_movable_source" "Loads kept: the source is a load that Cranelift places by need.";
    forward_kept_stored_back "forward.kept_stored_back" "Loads kept: a store that may trap stores the value back.";
    forward_kept_flags "forward.kept_flags" "Loads kept: the function's table of flags is full.";
    dse_overwritten "dse.overwritten" "Stores removed: overwritten, or their slot dies, before anything observes them.";
    dse_already_there "dse.already_there" "Stores removed: memory held the value already.";
    dse_kept_fixed "dse.kept_fixed" "Stores kept: left alone by the options or out of bounds.";
    dse_kept_no_killer "dse.kept_no_killer" "Stores kept: no other store to such an address, and the memory outlives the frame.";
    dse_kept_read "dse.kept_read" "Stores kept: something may read the bytes.";
    dse_kept_trap "dse.kept_trap" "Stores kept: a trap may observe the bytes.";
    dse_kept_fence "dse.kept_fence" "Stores kept: a fence, an atomic access or a call orders memory.";
    dse_kept_return "dse.kept_return" "Stores kept: the memory outlives the function.";
    dse_kept_may_trap "dse.kept_may_trap" "Stores kept: the store itself may trap, and no other one traps in its place.";
    dse_kept_endless "dse.kept_endless" "Stores kept: a loop without an exit may come before the overwrite.";
    dse_kept_budget "dse.kept_budget" "Stores kept: the search ended for want of budget.";
    rewrite_out_of_fuel "rewrite.out_of_fuel" "Rewrites not done for want of fuel.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn add_and_iterate() {
        let mut total = Stats::default();
        let one = Stats {
            dse_overwritten: 2,
            ..Stats::default()
        };
        total.add(&one);
        total.add(&one);
        let found = total.iter().find(|(name, _)| *name == "dse.overwritten");
        assert_eq!(found, Some(("dse.overwritten", 4)));
    }
}
