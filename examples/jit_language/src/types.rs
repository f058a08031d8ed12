//! The types of a program, each once, with their layout in memory.

use std::collections::HashMap;

/// Bytes of the largest type.
pub(crate) const TYPE_BYTES_MAX: u64 = 1 << 20;

/// Up to so many scalars, an aggregate is passed and returned as that many values, and copied by
/// loads and stores. A larger one is passed by pointer to a copy, and copied by `memcpy`.
pub(crate) const SMALL_SCALARS_MAX: usize = 4;

/// A type: equal types are the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Type(u32);

impl Type {
    pub(crate) const I64: Type = Type(0);
    pub(crate) const F64: Type = Type(1);
    pub(crate) const BOOL: Type = Type(2);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    I64,
    F64,
    Bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Scalar(Scalar),
    Struct(String, Vec<Field>),
    Array { element: Type, length: u64 },
}

#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) ty: Type,
    pub(crate) offset: u32,
}

/// A scalar somewhere in a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub(crate) offset: u32,
    pub(crate) scalar: Scalar,
}

#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) size: u32,
    /// The alignment as a power of two.
    pub(crate) align_shift: u8,
    /// The scalars in order, if there are at most [`SMALL_SCALARS_MAX`].
    pub(crate) leaves: Option<Vec<Leaf>>,
}

pub(crate) struct Types {
    all: Vec<(Kind, Layout)>,
    arrays: HashMap<(Type, u64), Type>,
}

impl Types {
    pub(crate) fn new() -> Types {
        let scalar = |scalar, size: u32| {
            let leaf = Leaf { offset: 0, scalar };
            let layout = Layout {
                size,
                align_shift: size.trailing_zeros() as u8,
                leaves: Some(vec![leaf]),
            };
            (Kind::Scalar(scalar), layout)
        };
        Types {
            // In the order of the constants of `Type`.
            all: vec![
                scalar(Scalar::I64, 8),
                scalar(Scalar::F64, 8),
                scalar(Scalar::Bool, 1),
            ],
            arrays: HashMap::new(),
        }
    }

    fn push(&mut self, kind: Kind, layout: Layout) -> Type {
        self.all.push((kind, layout));
        Type(self.all.len() as u32 - 1)
    }

    /// `None` if it is too large.
    pub(crate) fn array(&mut self, element: Type, length: u64) -> Option<Type> {
        if let Some(&known) = self.arrays.get(&(element, length)) {
            return Some(known);
        }
        let of = self.layout(element);
        let size = u64::from(of.size).checked_mul(length)?;
        if size > TYPE_BYTES_MAX {
            return None;
        }
        let leaves = match &of.leaves {
            Some(leaves) if leaves.len() as u64 * length <= SMALL_SCALARS_MAX as u64 => {
                let starts = (0..length as u32).map(|at| at * of.size);
                Some(starts.flat_map(|start| shifted(leaves, start)).collect())
            }
            _ => None,
        };
        let layout = Layout {
            size: size as u32,
            align_shift: of.align_shift,
            leaves,
        };
        let ty = self.push(Kind::Array { element, length }, layout);
        self.arrays.insert((element, length), ty);
        Some(ty)
    }

    /// A new struct, laid out as C does; `None` if it is too large.
    pub(crate) fn structure(&mut self, name: String, fields: Vec<(String, Type)>) -> Option<Type> {
        let (mut size, mut align_shift) = (0_u64, 0);
        let mut leaves = Some(Vec::new());
        let mut placed = Vec::new();
        for (name, ty) in fields {
            let of = self.layout(ty);
            size = size.next_multiple_of(1 << of.align_shift);
            let offset = size as u32;
            size += u64::from(of.size);
            if size > TYPE_BYTES_MAX {
                return None;
            }
            align_shift = align_shift.max(of.align_shift);
            leaves = leaves.zip(of.leaves.as_ref()).map(|(mut all, of)| {
                all.extend(shifted(of, offset));
                all
            });
            leaves = leaves.filter(|all| all.len() <= SMALL_SCALARS_MAX);
            placed.push(Field { name, ty, offset });
        }
        let layout = Layout {
            size: size.next_multiple_of(1 << align_shift) as u32,
            align_shift,
            leaves,
        };
        Some(self.push(Kind::Struct(name, placed), layout))
    }

    pub(crate) fn kind(&self, ty: Type) -> &Kind {
        &self.all[ty.0 as usize].0
    }

    pub(crate) fn layout(&self, ty: Type) -> &Layout {
        &self.all[ty.0 as usize].1
    }

    pub(crate) fn scalar(&self, ty: Type) -> Option<Scalar> {
        match self.kind(ty) {
            Kind::Scalar(scalar) => Some(*scalar),
            Kind::Struct(..) | Kind::Array { .. } => None,
        }
    }

    /// The type as it is written.
    pub(crate) fn name(&self, ty: Type) -> String {
        match self.kind(ty) {
            Kind::Scalar(Scalar::I64) => "i64".to_string(),
            Kind::Scalar(Scalar::F64) => "f64".to_string(),
            Kind::Scalar(Scalar::Bool) => "bool".to_string(),
            Kind::Struct(name, _) => name.clone(),
            Kind::Array { element, length } => format!("[{}; {length}]", self.name(*element)),
        }
    }
}

fn shifted(leaves: &[Leaf], by: u32) -> impl Iterator<Item = Leaf> + '_ {
    leaves.iter().map(move |leaf| Leaf {
        offset: leaf.offset + by,
        scalar: leaf.scalar,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_that_of_c() {
        let mut types = Types::new();
        let fields = [("a", Type::BOOL), ("b", Type::F64), ("c", Type::BOOL)];
        let fields = fields.map(|(name, ty)| (name.to_string(), ty));
        let inner = types.structure("S".to_string(), fields.to_vec()).unwrap();
        let layout = types.layout(inner);
        assert_eq!((layout.size, layout.align_shift), (24, 3));
        let offsets = |ty| {
            let leaves = types.layout(ty).leaves.as_ref();
            leaves.map(|leaves| leaves.iter().map(|leaf| leaf.offset).collect::<Vec<_>>())
        };
        assert_eq!(offsets(inner), Some(vec![0, 8, 16]));
        let pair = types.array(inner, 2).unwrap();
        assert_eq!(types.layout(pair).size, 48);
        assert!(types.layout(pair).leaves.is_none());
        assert_eq!(types.array(inner, 2), Some(pair));
        assert_eq!(types.name(pair), "[S; 2]");
        assert_eq!(types.array(pair, u64::MAX), None);
    }
}
