//! Bugs that can be planted on purpose, one at a time, to see that the tests catch each of them.
//!
//! Only with the feature `seeded-faults`, which no release turns on. The choice is global to the
//! process. Each fault breaks one rule of the memory contract, or one step that keeps it.

#![cfg_attr(
    not(feature = "seeded-faults"),
    expect(unreachable_pub, reason = "public with it")
)]

#[cfg(feature = "seeded-faults")]
use std::sync::atomic::{AtomicUsize, Ordering};

macro_rules! faults {
    ($($name:ident $text:literal $breaks:literal;)*) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Fault {
            $(#[doc = $breaks] $name,)*
        }

        #[cfg(feature = "seeded-faults")]
        impl Fault {
            /// Every fault.
            pub const ALL: &'static [Fault] = &[$(Fault::$name),*];

            /// The name by which it is chosen.
            pub fn name(self) -> &'static str {
                match self {
                    $(Fault::$name => $text,)*
                }
            }

            /// What it does wrong.
            pub fn breaks(self) -> &'static str {
                match self {
                    $(Fault::$name => $breaks,)*
                }
            }
        }
    };
}

faults! {
    CallIgnored "call-ignored" "Calls touch no memory.";
    TryCallIgnored "try-call-ignored" "A call with exception edges touches no memory.";
    TailCallIgnored "tail-call-ignored" "A tail call sees no memory.";
    FenceIgnored "fence-ignored" "Fences order nothing.";
    AtomicIgnored "atomic-ignored" "Atomic accesses are plain ones.";
    TrapIgnored "trap-ignored" "Trap instructions observe no memory.";
    AccessTrapIgnored "access-trap-ignored" "Loads and stores never trap.";
    DebugIgnored "debug-ignored" "Debug points observe no memory.";
    DivisionOverflow "division-overflow" "Signed division by -1 never traps.";
    FrameExposed "frame-exposed" "Slots stay private though the frame pointer is read.";
    EscapeByStore "escape-by-store" "Storing a slot's address is no escape.";
    EscapeByCall "escape-by-call" "Passing a slot's address is no escape.";
    EscapeByBranch "escape-by-branch" "Sending a slot's address to a block parameter is no escape.";
    EscapeByArithmetic "escape-by-arithmetic" "Select and other arithmetic on a slot's address is no escape.";
    EscapeAtOnce "escape-at-once" "The call that makes a slot escape cannot touch it.";
    EscapeInBlock "escape-in-block" "A slot that escapes is private again in the next block.";
    StackMapIgnored "stack-map-ignored" "Collectors do not touch the slots of a stack map.";
    SlotKeyIgnored "slot-key-ignored" "Slots with a key are not read from outside.";
    OutOfBounds "out-of-bounds" "Accesses out of a slot's bounds are of the slot.";
    OutsideIgnored "outside-ignored" "Outside regions do not change from outside.";
    RegionlessApart "regionless-apart" "An access without a region touches no region.";
    RegionsUnified "regions-unified" "A load takes its value from an access of another region.";
    OverlapIgnored "overlap-ignored" "Accesses that overlap in part do not touch.";
    WidthIgnored "width-ignored" "Accesses of different widths at one address are the same bytes.";
    ExtensionDistributes "extension-distributes" "An extended sum is the sum of the extended parts, wrapping or not.";
    LoopCarriedAddress "loop-carried-address" "The walker takes an address for the same in every iteration.";
    LoopCarriedStore "loop-carried-store" "Dead-store elimination takes an address for the same in every iteration.";
    ReadonlyTrap "readonly-trap" "A readonly load that may trap goes, though a call came between.";
    Endianness "endianness" "Byte order does not matter.";
    SignExtension "sign-extension" "Sign-extending loads extend with zeros.";
    Truncation "truncation" "A truncating store keeps the high bits.";
    AlignedKept "aligned-kept" "A surviving access stays aligned though the other was not.";
    DominanceIgnored "dominance-ignored" "A source need not have executed.";
    MemoryVersion "memory-version" "A load takes the value of an earlier load whatever came between.";
    ReadIgnored "read-ignored" "Loads do not observe stores.";
    ReturnIgnored "return-ignored" "Return observes no memory.";
    EscapedAtTrap "escaped-at-trap" "Traps do not observe escaped slots.";
    EndlessLoop "endless-loop" "A loop without an exit reaches what comes after it.";
    OnePath "one-path" "An overwrite on one path is enough.";
    TrapCode "trap-code" "A store that traps with another code stands in.";
    NotrapBetween "notrap-between" "Accesses after a store that may trap do not rest on it.";
    HalfStores "half-stores" "A store in two halves traps before it stores anything.";
    WiderKiller "wider-killer" "A wider store that may trap is no observation point.";
    LoadAsWitness "load-as-witness" "A load shows that a page may be written.";
    RemovedKiller "removed-killer" "A store that was removed still overwrites.";
    SroaOutOfBounds "sroa-out-of-bounds" "A slot becomes values though an access is out of its bounds.";
    SroaEscape "sroa-escape" "A slot becomes values though its address goes elsewhere.";
    SroaByteOrder "sroa-byte-order" "Bytes of a value lie in native order, however they were stored.";
    SroaSignExtension "sroa-sign-extension" "A sign-extending load of a value extends with zeros.";
    UpdateWhole "update-whole" "A narrow store to a wide cell leaves its old bytes.";
    UpdateDrops "update-drops" "A narrow store to a wide cell drops its other bytes.";
    UpdateReads "update-reads" "A narrow store to a wide cell needs nothing of its old value.";
    LoopParam "loop-param" "A value has no parameter at the head of a loop.";
    OneWayParam "one-way-param" "A value has no parameter where it was not written on all ways.";
    IndexIgnored "index-ignored" "Bytes that a variable index may reach become values.";
    RangeWraps "range-wraps" "The bounds of an index hold though its computation wraps.";
    FillOnce "fill-once" "A fill writes its byte to the first byte of a value only.";
    FillWhole "fill-whole" "A fill of a part of a value fills all of it.";
    CopyRest "copy-rest" "A copy or fill that goes leaves out what stays in memory.";
    CopyWithin "copy-within" "A copy within a slot is one between two.";
    CopyResult "copy-result" "What a memory function returns is no address of the slot.";
    HalvesSwapped "halves-swapped" "The high half of a wide integer comes first.";
    ChoiceInverted "choice-inverted" "Of two addresses the other one is accessed.";
    ChoiceForgotten "choice-forgotten" "A store to one of a few addresses leaves the last as it was.";
    ChoiceMixed "choice-mixed" "Of two addresses, one of which stays in memory, the other one is accessed.";
    UnreachableUses "unreachable-uses" "Uses in unreachable blocks do not keep an address.";
    SlotsMerged "slots-merged" "A parameter that gets the addresses of two slots is one of the first.";
    FrameOverlap "frame-overlap" "What later blocks read of a slot does not keep others out of it.";
    FrameOverwrite "frame-overwrite" "A slot that is written in part holds nothing of before.";
    FrameEscape "frame-escape" "A slot that has escaped is free after its last direct access.";
    FrameTwoEscapes "frame-two-escapes" "Slots share though both addresses are out.";
    FrameCompare "frame-compare" "Slots share though an address is compared.";
    FrameAlignment "frame-alignment" "A slot that others share keeps its own alignment.";
    FrameRegion "frame-region" "Slots share whatever the regions of their accesses.";
    FrameDebugTag "frame-debug-tag" "Debug tags name no slots.";
    DifferentValue "different-value" "A store of another value of the same type is in vain.";
}

#[cfg(feature = "seeded-faults")]
static PLANTED: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Plants a fault in the place of the one before, or none.
#[cfg(feature = "seeded-faults")]
pub fn plant(fault: Option<Fault>) {
    let number = fault.map_or(usize::MAX, |fault| fault as usize);
    PLANTED.store(number, Ordering::SeqCst);
}

/// Whether the fault is planted: never without the feature.
#[cfg(feature = "seeded-faults")]
pub(crate) fn planted(fault: Fault) -> bool {
    PLANTED.load(Ordering::Relaxed) == fault as usize
}

/// Whether the fault is planted: never without the feature.
#[cfg(not(feature = "seeded-faults"))]
#[inline(always)]
pub(crate) const fn planted(_: Fault) -> bool {
    false
}
