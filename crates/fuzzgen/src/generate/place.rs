//! Places: addresses with what may be done at them.

use cranelift_codegen::ir::{AliasRegionData, BlockArg, InstBuilder, StackSlot, Value, types};

use super::Tagging;
use super::function::Gen;

/// What the bytes of a place belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// Buffer p0, or a slot of that home that a caller passed.
    Main,
    /// Buffer p1, likewise.
    Other,
    /// Buffer p2, never written.
    Readonly,
    /// A slot of this function; the region by which it may be tagged, if any.
    Slot(StackSlot, Option<u32>),
    /// Any writable bytes: no region.
    Unknown,
}

impl Space {
    /// The only region by which accesses may be tagged.
    pub(crate) fn region(self) -> Option<u32> {
        match self {
            Space::Main => Some(MAIN),
            Space::Other => Some(OTHER),
            Space::Readonly => Some(3),
            Space::Slot(_, region) => region,
            Space::Unknown => None,
        }
    }
}

/// The region of p0.
pub(crate) const MAIN: u32 = 1;
/// The region of p1.
pub(crate) const OTHER: u32 = 2;
/// The region of cells that hold addresses.
pub(crate) const TABLE: u32 = 4;
/// Regions of slots start here.
pub(crate) const SLOTS: u32 = 10;

/// An address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) base: Value,
    pub(crate) space: Space,
    /// The valid bytes start here, from `base`.
    pub(crate) low: i64,
    /// The valid bytes end here, from `base`.
    pub(crate) high: i64,
    /// The alignment of `base`.
    pub(crate) align: i64,
}

impl Place {
    pub(crate) fn is_writable(&self) -> bool {
        self.space != Space::Readonly
    }

    pub(crate) fn holds(&self, width: i64) -> bool {
        self.high - self.low >= width
    }
}

impl Gen<'_, '_, '_> {
    /// The region with this identity in this function.
    pub(crate) fn region(&mut self, user_id: u32) -> cranelift_codegen::ir::AliasRegion {
        self.b.func.dfg.alias_regions.insert(AliasRegionData {
            user_id,
            description: format!("r{user_id}").into(),
        })
    }

    /// A place with room for `width` bytes; recent ones are likelier.
    pub(crate) fn place(&mut self, width: i64, writable: bool) -> Place {
        let fits: Vec<Place> = self
            .places
            .iter()
            .copied()
            .filter(|place| place.holds(width) && (place.is_writable() || !writable))
            .collect();
        if self.c.percent(30) {
            return fits[fits.len() - 1 - self.c.below(fits.len().min(4))];
        }
        self.c.pick(&fits)
    }

    /// A place that pointers of unknown origin may point to.
    pub(crate) fn pointee(&mut self) -> Place {
        let place = self.place(16, true);
        if self.is_pointee(place) {
            place
        } else {
            self.places[0]
        }
    }

    pub(crate) fn is_pointee(&self, place: Place) -> bool {
        self.world.tagging != Tagging::Full || place.space.region() == Some(MAIN)
    }

    /// What a pointer of unknown origin points into.
    pub(crate) fn unknown(&self) -> Space {
        match self.world.tagging {
            Tagging::Full => Space::Main,
            Tagging::Mixed | Tagging::Sparse => Space::Unknown,
        }
    }

    /// Whether an access to `space` is to be tagged.
    pub(crate) fn is_tagged(&mut self, space: Space) -> bool {
        match self.world.tagging {
            Tagging::Mixed => self.c.percent(60),
            Tagging::Sparse => space == Space::Readonly,
            Tagging::Full => true,
        }
    }

    /// The place as an address of its own, with `width` valid bytes from there.
    pub(crate) fn address_in(&mut self, place: Place, width: i64) -> Value {
        let at = self.c.between(place.low, place.high - width);
        self.moved(place.base, at)
    }

    pub(crate) fn moved(&mut self, base: Value, by: i64) -> Value {
        match by {
            0 => base,
            _ => self.b.ins().iadd_imm_s(base, by),
        }
    }

    /// Makes a new place out of others.
    pub(crate) fn derive_place(&mut self) {
        let place = match self.c.below(6) {
            0 => self.shifted_place(),
            1 | 2 => self.indexed_place(),
            3 => self.selected_place(),
            4 => self.joined_place(),
            _ => self.loaded_place(),
        };
        self.places.push(place);
    }

    fn shifted_place(&mut self) -> Place {
        let place = self.place(1, false);
        let by = self.c.between(place.low, place.high - 1);
        let base = self.moved(place.base, by);
        Place {
            base,
            low: place.low - by,
            high: place.high - by,
            align: if by % place.align == 0 {
                place.align
            } else {
                1
            },
            ..place
        }
    }

    fn indexed_place(&mut self) -> Place {
        let place = self.place(16, false);
        let scale = self.c.pick(&[1i64, 4, 8]);
        let mask = if place.holds(32) {
            self.c.pick(&[1i64, 3])
        } else {
            1
        };
        let index = self.index(mask);
        let scaled = self.b.ins().imul_imm_s(index, scale);
        let base = self.b.ins().iadd(place.base, scaled);
        self.shape.variable_indices += 1;
        let spare = if place.holds(mask * scale + 8) {
            mask * scale
        } else {
            0
        };
        if spare == 0 {
            return place;
        }
        Place {
            base,
            high: place.high - spare,
            align: place.align.min(scale),
            ..place
        }
    }

    /// A number from 0 to `mask`.
    pub(crate) fn index(&mut self, mask: i64) -> Value {
        let value = self.value(types::I64);
        self.b.ins().band_imm_u(value, mask)
    }

    /// Two places of which either may be taken.
    fn pair(&mut self) -> (Place, Place, Place) {
        let first = self.place(16, true);
        let second = self.place(16, true);
        let space = match first.space == second.space {
            true => first.space,
            false => match (first.space.region(), second.space.region()) {
                (Some(MAIN), Some(MAIN)) => Space::Main,
                (Some(OTHER), Some(OTHER)) => Space::Other,
                _ if self.world.tagging == Tagging::Full => return (first, first, first),
                _ => Space::Unknown,
            },
        };
        let both = Place {
            base: first.base,
            space,
            low: first.low.max(second.low),
            high: first.high.min(second.high),
            align: first.align.min(second.align),
        };
        if both.holds(8) {
            return (first, second, both);
        }
        (first, first, first)
    }

    fn selected_place(&mut self) -> Place {
        let (first, second, both) = self.pair();
        let condition = self.condition();
        self.shape.address_selects += 1;
        let base = self.b.ins().select(condition, first.base, second.base);
        Place { base, ..both }
    }

    /// A block parameter, by way of two arms or of one branch with both.
    fn joined_place(&mut self) -> Place {
        let (first, second, both) = self.pair();
        let condition = self.condition();
        let join = self.b.create_block();
        let base = self.b.append_block_param(join, types::I64);
        let (one, two) = (
            [BlockArg::Value(first.base)],
            [BlockArg::Value(second.base)],
        );
        self.shape.address_params += 1;
        if self.c.percent(40) {
            self.shape.double_edges += 1;
            self.b.ins().brif(condition, join, &one, join, &two);
        } else {
            let other = self.b.create_block();
            self.b.ins().brif(condition, join, &one, other, &[]);
            self.b.switch_to_block(other);
            let scope = self.open();
            self.store_to(second);
            self.close(&scope);
            self.b.ins().jump(join, &two);
        }
        self.b.switch_to_block(join);
        Place { base, ..both }
    }

    fn store_to(&mut self, place: Place) {
        if place.is_writable() && self.c.percent(60) {
            self.store_somewhere_in(place);
        }
    }

    /// An address loaded from a cell.
    fn loaded_place(&mut self) -> Place {
        let base = self.load_pointer();
        Place {
            base,
            space: self.unknown(),
            low: 0,
            high: 16,
            align: 1,
        }
    }
}
